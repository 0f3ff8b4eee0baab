"""The dead: how they ended, for those who ask, and what they were, for those who list; the last ones only."""

from __future__ import annotations

from collections import deque
from typing import Any

from trainkit.runtime.local.children import Worker
from trainkit.runtime.local.messages import StartActor
from trainkit.runtime.specs import Registration
from trainkit.runtime.supervise import Exit, describe

_MOST_GRAVES = 10_000
_MOST_ACTORS = 1_000

Row = dict[str, Any]


class Graves(dict[int, Exit]):
    """How each worker ended, by its id; those buried first are forgotten first."""

    def __init__(self) -> None:
        super().__init__()
        self._forgotten = 0

    def __setitem__(self, worker_id: int, exit_: Exit) -> None:
        self.pop(worker_id, None)
        super().__setitem__(worker_id, exit_)
        while len(self) > _MOST_GRAVES:
            del self[next(iter(self))]
            self._forgotten += 1

    def unknown(self) -> Exit:
        """How one ended that is not among the graves, nor among the living."""
        if not self._forgotten:
            return Exit(requested=True, reason="it belongs to a session that has ended")
        return Exit(
            requested=True,
            reason=f"its record is gone: {_MOST_GRAVES:,} more have ended since, or of another session",
        )


class DeadActors:
    """What is listed of the last actors that ended."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=_MOST_ACTORS)

    def add(self, row: Row, exit_: Exit) -> None:
        """Remember an actor by what was last listed of it."""
        cause = describe(exit_, row["class_name"]).partition("\n")[0]
        self._rows.append({**row, "state": "DEAD", "death_cause": cause})

    def rows(self) -> list[Row]:
        """Those who died first come first."""
        return [dict(row) for row in self._rows]


def actor_row(worker: Worker) -> Row:
    """What is listed of an actor that has a process, or is about to have one."""
    state = "ALIVE" if worker.pid is not None else "RESTARTING" if worker.restarts else "PENDING"
    return {
        **_row(worker.worker_id, worker.class_name or worker.name, worker.registration),
        "state": state,
        "pid": worker.pid,
        "resources": dict(worker.placement.resources),
        "restarts": worker.restarts,
    }


def pending_row(asked: StartActor) -> Row:
    """What is listed of an actor that waits for its turn."""
    return {
        **_row(asked.worker_id, asked.class_name or asked.name, asked.registration),
        "state": "PENDING",
        "pid": None,
        "resources": dict(asked.placement.resources),
        "restarts": 0,
    }


def _row(worker_id: int, class_name: str, registration: Registration | None) -> Row:
    return {
        "actor_id": f"{worker_id:016x}",
        "class_name": class_name,
        "name": (registration.name if registration else None) or "",
        "namespace": (registration.namespace if registration else None) or "",
        "detached": registration is not None and registration.detached,
        "death_cause": None,
    }
