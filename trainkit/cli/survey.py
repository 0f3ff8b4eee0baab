"""All of a user's sessions, as plain data: what the commands show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.runtime.local import doors, process
from trainkit.runtime.local.doors import Session
from trainkit.runtime.local.messages import State

KINDS = ("nodes", "actors", "tasks", "placement_groups", "requests")


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one session says of itself.

    Attributes:
        age_s: seconds since it was started.
        driver: pid of the program that started it; None if that has ended.
        lists: dicts by kind, see KINDS.
        problem: why the lists are empty; "" if the node answered.
    """

    session: Session
    age_s: float
    driver: int | None
    lists: dict[str, list[dict[str, Any]]]
    problem: str = ""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "session_id": self.session.id,
            "node_pid": self.session.node,
            "driver_pid": self.driver,
            "age_s": round(self.age_s, 3),
            "problem": self.problem,
            **self.lists,
        }


def sessions() -> list[Session]:
    """The user's sessions whose nodes run, newest first."""
    return doors.sessions(doors.home())


def chosen(found: Sequence[Session], prefix: str) -> list[Session]:
    """Those whose id starts with `prefix`; raises ConfigError if it is none, or more than one."""
    matching = [session for session in found if session.id.startswith(prefix)]
    if len(matching) != 1:
        there = ", ".join(session.id for session in found) or "none"
        raise ConfigError(
            f"{'several sessions' if matching else 'no session'} of yours in {doors.home()} with an id that "
            f"starts with {prefix!r}; there are: {there}"
        )
    return matching


def survey(session: Session) -> Survey:
    """Ask a session's node for all it has to tell."""
    lists: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    problem = ""
    try:
        with doors.visit(session.folder) as node:
            for kind in KINDS:
                lists[kind] = node.ask(State(kind))
    except TrainkitError as error:
        problem = str(error)
    gone = session.driver_gone or not process.exists(session.driver)
    return Survey(
        session=session,
        age_s=max(0.0, SYSTEM.now() - session.started),
        driver=None if gone else session.driver,
        lists=lists,
        problem=problem,
    )
