"""Context of a process, and of the call that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.runtime.specs import WhereAmI

calling: ContextVar[tuple[Any, ...]] = ContextVar("trainkit_calling", default=(0, ""))
"""Id and name of the call that this thread or coroutine runs, and optional items; the id is 0 if no call is
running.
"""


class GivenName(str):
    """Name that the user gave to a method call. Messages show this name without the class name."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """Namespace, actor and resources of a process.

    Attributes:
        actor_id: id of the process's actor; None outside an actor.
        actor_name: name of the actor; "" without a name.
        class_name: name of the actor's class.
        resources: resources reserved for the process.
        restarts: number of the actor's restarts so far.
    """

    namespace: str = ""
    actor_id: int | None = None
    actor_name: str = ""
    class_name: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 0

    def seen_by(self, serial: int, mark: str) -> WhereAmI:
        """Return this context in its public form.

        Args:
            serial: number of the process in the session.
            mark: path of the session's folder.
        """
        call, name = calling.get()[:2]
        session = Path(mark).name.rpartition("-")[2]
        is_actor = self.actor_id is not None
        has_class = is_actor and not isinstance(name, GivenName)
        return WhereAmI(
            node_id=session,
            worker_id=f"{serial:x}",
            namespace=self.namespace,
            job_id=session,
            actor_id=f"{self.actor_id:016x}" if is_actor else None,
            actor_name=self.actor_name if is_actor else None,
            task_id=f"{call:016x}" if call else None,
            task_name=(f"{self.class_name}.{name}" if has_class else str(name)) if call else None,
            was_restarted=self.restarts > 0,
            resources=dict(self.resources),
        )
