"""`trainkit stop`: end sessions, with all that runs in them; what tunes in them ends first, as by Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainkit.cli.clean import confirmed
from trainkit.cli.steer import PATIENCE_S, end_of, wait_for_end
from trainkit.cli.survey import chosen, sessions
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, NodeDiedError, StoreError, TrainkitError
from trainkit.runtime.local import doors, process
from trainkit.runtime.local.doors import Session
from trainkit.runtime.local.launch import end_leftovers
from trainkit.runtime.local.messages import Shutdown
from trainkit.tune.running.commands import ask_to_stop, asker
from trainkit.tune.storing.ownership import owned_by

_GRACE_S = 5.0
_NOTICE_S = 1.0
"""Seconds that a program may take to see that its session was ended, and by whom."""


def stop_session(prefix: str, *, force: bool) -> int:
    """End the session whose id starts with `prefix`; says what was ended.

    Args:
        prefix: of the session's id.
        force: kill at once, without asking experiments and the node first.

    Raises:
        ConfigError: no session, or more than one, has an id that starts so.
    """
    _end_all(chosen(sessions(), prefix), force=force)
    return 0


def stop_all(*, force: bool, yes: bool) -> int:
    """End all of the user's sessions, and what is left of those whose nodes were killed.

    Args:
        force: as for `stop_session`.
        yes: don't ask.

    Raises:
        ConfigError: nobody is there to be asked.
    """
    found, abandoned = sessions(), _abandoned()
    if not found and not abandoned:
        sys.stdout.write("no session is running\n")
        return 0
    if not yes:
        listed = "".join(f"  {_words(session)}\n" for session in (*found, *abandoned))
        if not sys.stdin.isatty():
            raise ConfigError(
                f"this would end all of your sessions, with all that runs in them:\n{listed}"
                "Type `trainkit stop --all --yes` for that, `trainkit stop --session ID` to end one of them, "
                "or `trainkit stop EXPERIMENT` to stop an experiment"
            )
        count = len(found) + len(abandoned)
        question = f"{listed}End {'this session' if count == 1 else f'these {count} sessions'}? [y/N] "
        if not confirmed(question):
            sys.stdout.write("nothing was ended\n")
            return 1
    _end_all(found, force=force)
    for session in abandoned:
        count = end_leftovers(session.folder)
        _say(f"session {session.id}, whose node was gone, cleaned up: {count} processes killed")
    return 0


def _words(session: Session) -> str:
    """Return a line that describes a session to the person who decides about its end."""
    if not session.alive:
        return f"session {session.id}: its node is gone, and processes of it are left"
    program = process.command_line(session.driver).replace(b"\0", b" ").decode(errors="replace").strip()
    driver = "its program has ended" if session.driver_gone else f"pid {session.driver}, {program[:100]}"
    tunes = "".join(f", tunes in {folder}" for folder in _experiments(session))
    return f"session {session.id}: {driver}{tunes}"


def _end_all(doomed: Sequence[Session], *, force: bool) -> None:
    by = asker()
    if not force:
        _end_experiments([folder for session in doomed for folder in _experiments(session)], by)
    for session in doomed:
        _say(_end(session, by, force=force))


def _experiments(session: Session) -> list[Path]:
    """Folders of the experiments that processes of the session run."""
    return owned_by({session.driver, *process.marked(str(session.folder))})


def _end_experiments(folders: Sequence[Path], by: str) -> None:
    """Ask their programs to stop them, as for one by its name, and wait for all as long as for one."""
    asked = []
    for folder in folders:
        try:
            asked.append((folder, ask_to_stop(folder, None, by)))
        except StoreError as error:  # its session ends nevertheless, and then it ends too
            sys.stderr.write(f"trainkit: {error}\n")
    patience_ends = SYSTEM.monotonic() + PATIENCE_S
    for folder, wish in asked:
        if not wait_for_end(folder, patience_ends):
            sys.stderr.write(f"trainkit: what runs {folder} has not ended it in time\n")
        wish.unlink(missing_ok=True)  # else whoever goes on with it would be stopped
        if words := end_of(folder):
            _say(words)


def _end(session: Session, by: str, *, force: bool) -> str:
    # Also those that have dropped the mark from their environment: without the node, they would get away.
    below = process.descendants(session.node)
    count = len({session.node, *below, *process.marked(str(session.folder))})
    doors.note_end(session.folder, by)
    asked = not force and _ask(session)
    if not asked:
        for pid in (session.node, *below):
            process.kill(pid)
    _let_program_see(session)
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


def _let_program_see(session: Session) -> None:
    """Return when the session's program has read who ended it, after which it removes the folder."""
    deadline = SYSTEM.monotonic() + _NOTICE_S
    while session.folder.exists() and process.exists(session.driver) and SYSTEM.monotonic() < deadline:
        SYSTEM.sleep(0.01)


def _abandoned() -> list[Session]:
    """Sessions whose nodes are gone, and not in order."""
    there = [doors.session_at(folder) for folder in doors.folders(doors.home())]
    return [session for session in there if session is not None and not session.alive]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
