"""Context of a process: its session, its worker, and the call that it carries out."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.runtime.specs import WhereAmI

calling: ContextVar[tuple[Any, ...]] = ContextVar("trainkit_calling", default=(0, ""))
"""The number and the name of the call that runs in this thread or coroutine, and perhaps more; 0 for none."""


class GivenName(str):
    """The name that a call of a method was given, which stands without the class's."""

    __slots__ = ()


class ActorExit(BaseException):
    """Ends the actor; no `except Exception` of the user's stops it."""


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """A process's place in its session.

    Attributes:
        actor_id: None outside an actor.
        actor_name: of an actor that has one, else "".
        class_name: of an actor.
        resources: what it was given.
        restarts: how often the actor has been made anew before.
    """

    namespace: str = ""
    actor_id: int | None = None
    actor_name: str = ""
    class_name: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 0

    def seen_by(self, serial: int, mark: str) -> WhereAmI:
        """The same in public words.

        Args:
            serial: the process's number in the session.
            mark: of the session.
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
