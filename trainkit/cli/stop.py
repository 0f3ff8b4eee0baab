"""`trainkit stop`: end sessions, with all that runs in them."""

from __future__ import annotations

import sys
from pathlib import Path

from trainkit.cli.survey import chosen, sessions
from trainkit.errors import NodeDiedError, TrainkitError
from trainkit.runtime.local import doors, process
from trainkit.runtime.local.doors import Session
from trainkit.runtime.local.launch import end_leftovers
from trainkit.runtime.local.messages import Shutdown

_GRACE_S = 5.0


def stop(prefix: str | None, *, force: bool) -> int:
    """End the session whose id starts with `prefix`, or all; says what was ended.

    Args:
        prefix: of a session's id; None means all, and what is left of those whose nodes were killed.
        force: kill at once, without asking the node first.

    Raises:
        ConfigError: no session, or more than one, has an id that starts so.
    """
    found = sessions()
    wanted = found if prefix is None else chosen(found, prefix)
    lines = [_end(session, force) for session in wanted]
    if prefix is None:
        lines.extend(_end_abandoned({session.folder for session in wanted}))
    sys.stdout.write("".join(f"{line}\n" for line in lines) or "no session is running\n")
    return 0


def _end(session: Session, force: bool) -> str:
    # Also those that have dropped the mark from their environment: without the node, they would get away.
    below = process.descendants(session.node)
    count = len({session.node, *below, *process.marked(str(session.folder))})
    asked = not force and _ask(session)
    if not asked:
        for pid in (session.node, *below):
            process.kill(pid)
    end_leftovers(session.folder)
    how = "ended" if asked else "killed"
    return f"session {session.id} {how}: node pid {session.node}, {count} processes in all"


def _ask(session: Session) -> bool:
    """Ask the node to end all; whether it did."""
    try:
        with doors.visit(session.folder) as node:
            node.tell(Shutdown())
            return node.await_end(_GRACE_S)
    except NodeDiedError:
        return True
    except TrainkitError:
        return False


def _end_abandoned(seen: set[Path]) -> list[str]:
    lines = []
    for folder in doors.folders(doors.home()):
        session = doors.session_at(folder)
        if folder not in seen and session is not None and not session.alive:
            count = end_leftovers(folder)
            lines.append(f"session {session.id}, whose node was gone, cleaned up: {count} processes killed")
    return lines
