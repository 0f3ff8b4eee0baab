"""`trainkit stop`: the end of a trial, an experiment or a session."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainkit.cli.clean import confirmed
from trainkit.cli.experiments import chosen_trial, experiment_folder
from trainkit.cli.sessions import chosen, sessions
from trainkit.clock import SYSTEM, Clock
from trainkit.errors import ConfigError, NodeDiedError, StoreError, TrainkitError, TuneError
from trainkit.runtime.local.client.launch import end_leftovers
from trainkit.runtime.local.system import process
from trainkit.runtime.local.wire import sessions as doors
from trainkit.runtime.local.wire.messages import Shutdown
from trainkit.runtime.local.wire.sessions import Session
from trainkit.tune.results.overview import LogReader
from trainkit.tune.store.ownership import ask_to_stop, asker, owned_by, owner_of
from trainkit.tune.store.schema import FILENAME

_EVERY_S = 0.1
PATIENCE_S = 120.0
"""A trial has five seconds to its next report and sixty for its clean-up; then it is killed."""


def stop_experiment(word: str, trial: str | None, clock: Clock = SYSTEM) -> int:
    """Stop the experiment that `word` means, as Ctrl-C does, or one of its trials; return once it has ended.

    Raises:
        ConfigError: there is no such experiment or trial, nobody runs it, or the trial has ended already.
        TuneError: nothing came of it.
    """
    folder = experiment_folder(word)
    owner = owner_of(folder)
    if owner is None:
        raise ConfigError(f"nobody runs the experiment in {folder}, so there is nothing to stop")
    with LogReader(folder) as reader:
        chosen = None if trial is None else chosen_trial(reader.trials(), trial)
    if chosen is not None and chosen.status.is_finished:
        raise ConfigError(f"trial {chosen.trial_id} has ended already: {chosen.status}, {chosen.reason}")
    wish = ask_to_stop(folder, None if chosen is None else chosen.trial_id, asker())
    patience_ends = clock.monotonic() + PATIENCE_S
    while clock.monotonic() < patience_ends:
        running = owner_of(folder) is not None
        done = end_of(folder) if chosen is None else _outcome(folder, chosen.trial_id)
        if done and (chosen is not None or not running):
            sys.stdout.write(f"{done}\n")
            return 0
        if not running:
            wish.unlink(missing_ok=True)  # else whoever goes on with the experiment would be stopped
            raise TuneError(f"the process {owner} that ran {folder} has ended before it took this up")
        clock.sleep(_EVERY_S)
    raise TuneError(f"the process {owner} that runs {folder} has not done it within {PATIENCE_S:g} s")


def _outcome(folder: Path, trial_id: str) -> str:
    """What became of the trial; '' if it hasn't ended."""
    with LogReader(folder) as reader:
        trial = chosen_trial(reader.trials(), trial_id)
    return f"trial {trial_id} is {trial.status}: {trial.reason}" if trial.status.is_finished else ""


def wait_for_end(folder: Path, patience_ends: float, clock: Clock = SYSTEM) -> bool:
    """Wait until nobody runs the experiment any more; False if somebody does at `patience_ends`."""
    while owner_of(folder) is not None:
        if clock.monotonic() >= patience_ends:
            return False
        clock.sleep(_EVERY_S)
    return True


def end_of(folder: Path) -> str:
    """Return how the experiment ended; '' if it hasn't, or nothing is kept of it."""
    if not (folder / FILENAME).exists():
        return ""
    with LogReader(folder) as reader:
        last = next(reversed(reader.events()), None)
    if last is None or last.kind != "ended":
        return ""
    return (
        f"{folder} has ended: {last.detail}; go on with it by "
        f"tune.Tuner.restore({str(folder)!r}, trainable).fit()"
    )


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
        with doors.connect(session.folder) as node:
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
