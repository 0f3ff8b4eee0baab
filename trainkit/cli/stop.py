"""`trainkit stop`: stop a trial or an experiment, or end sessions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainkit.cli import HELP, Command, confirmed
from trainkit.cli.experiments import (
    TRIAL,
    add_experiment,
    add_json,
    chosen_trial,
    experiment_folder,
)
from trainkit.cli.sessions import NO_SESSION, find_session, sessions
from trainkit.client import Experiment
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, NodeDiedError, StoreError, TrainkitError, TuneError
from trainkit.runtime.local.client.launch import end_leftovers
from trainkit.runtime.local.system import boot, process
from trainkit.runtime.local.wire import sessions as local_sessions
from trainkit.runtime.local.wire.messages import Shutdown
from trainkit.runtime.local.wire.sessions import Session
from trainkit.tune.results.overview import LogReader
from trainkit.tune.store.commands import asker, leave_command
from trainkit.tune.store.ownership import owned_by, owner_of
from trainkit.tune.store.schema import FILENAME

_EVERY_S = 0.1
PATIENCE_S = 120.0
"""Seconds to wait until a trial or experiment has ended. A trial has 5 s to report and 60 s to clean up."""
_NOTICE_S = 1.0
"""Seconds to wait until a session's program has noticed that the session was ended, and by which user."""


class Stop(Command):
    """`trainkit stop`."""

    help = HELP["stop"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_experiment(parser, nargs="?")
        parser.add_argument("trial", metavar="TRIAL", nargs="?", help=f"only this trial: {TRIAL}")
        parser.add_argument("--session", metavar="ID", help="end the session whose id begins with ID")
        parser.add_argument("--all", action="store_true", help="end all of your sessions")
        parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
        parser.add_argument(
            "--force",
            action="store_true",
            help="kill sessions at once, without asking experiments and nodes to end",
        )
        add_json(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        named = arguments.all or arguments.session is not None or arguments.experiment is not None
        if arguments.json and arguments.experiment is None:
            raise ConfigError("--json prints the answer of an experiment: name one, or leave --json out")
        if arguments.yes and not named:
            raise ConfigError(
                "--yes alone does not say what to end: type `trainkit stop --all --yes` to end all of your "
                "sessions, or name a session by --session ID, an experiment or a trial"
            )
        if arguments.experiment is None and arguments.session is not None:
            if arguments.all:
                raise ConfigError("--session ends one session and --all all of yours: choose one of them")
            _end_all([find_session(sessions(), arguments.session)], force=arguments.force)
            return 0
        if arguments.experiment is None:
            return stop_all(force=arguments.force, yes=arguments.yes)
        if arguments.session is not None or arguments.all or arguments.force:
            raise ConfigError(
                "--session, --all and --force end sessions: leave them out to stop an experiment or a trial"
            )
        return stop_experiment(arguments.experiment, arguments.trial, as_json=arguments.json)


def stop_experiment(word: str, trial: str | None, *, as_json: bool = False) -> int:
    """Stop the experiment `word` as Ctrl-C does, or stop one of its trials, and wait for the end.

    Args:
        word: path or name of the experiment.
        trial: id, name or number of the trial; None means the whole experiment.
        as_json: True prints the experiment's answer as JSON, and does not wait for the end.

    Raises:
        ConfigError: the experiment or trial does not exist.
        TuneError: no process runs the experiment, the trial has already ended, or the process that runs the
            experiment ended too early or did not stop it in time.
    """
    folder = experiment_folder(word)
    chosen = chosen_trial(folder, trial)
    answer = Experiment(folder).stop(chosen)
    if as_json:
        sys.stdout.write(f"{answer.as_json()}\n")
        return 0
    patience_ends = SYSTEM.monotonic() + PATIENCE_S
    while SYSTEM.monotonic() < patience_ends:
        running = owner_of(folder) is not None
        done = end_of(folder) if chosen is None else _outcome(folder, chosen)
        if done and (chosen is not None or not running):
            sys.stdout.write(f"{done}\n")
            return 0
        if not running:
            raise TuneError(
                f"the process that ran {folder} has ended before it completed the request: {answer.outcome}"
            )
        SYSTEM.sleep(_EVERY_S)
    raise TuneError(f"the process that runs {folder} has not completed the request within {PATIENCE_S:g} s")


def _outcome(folder: Path, trial_id: str) -> str:
    """Return a sentence that says how the trial ended; '' if the trial has not ended."""
    with LogReader(folder) as reader:
        trial = next(trial for trial in reader.trials() if trial.trial_id == trial_id)
    return f"trial {trial_id} is {trial.status}: {trial.reason}" if trial.status.is_finished else ""


def wait_for_end(folder: Path, patience_ends: float) -> bool:
    """Wait until no process runs the experiment; return False if it still runs at time `patience_ends`."""
    while owner_of(folder) is not None:
        if SYSTEM.monotonic() >= patience_ends:
            return False
        SYSTEM.sleep(_EVERY_S)
    return True


def end_of(folder: Path) -> str:
    """Return a sentence that says how the experiment ended; '' if it has not ended or has no file."""
    if not (folder / FILENAME).exists():
        return ""
    with LogReader(folder) as reader:
        last = next(reversed(reader.events()), None)
    if last is None or last.kind != "ended":
        return ""
    return f"{folder} ended: {last.detail}; resume with tune.Tuner.restore({str(folder)!r}, trainable).fit()"


def stop_all(*, force: bool, yes: bool) -> int:
    """End all of the user's sessions, and the remains of sessions whose nodes were killed.

    Args:
        force: True kills processes at once, without first asking experiments and nodes to end.
        yes: True does not ask the user for confirmation.

    Raises:
        ConfigError: standard input is not a terminal, so the user can't be asked.
    """
    found, abandoned = sessions(), _abandoned()
    if not found and not abandoned:
        sys.stdout.write(f"{NO_SESSION}\n")
        return 0
    if not yes:
        listed = "".join(f"  {_words(session)}\n" for session in (*found, *abandoned))
        if not sys.stdin.isatty():
            raise ConfigError(
                f"this would end all of your sessions, with all that runs in them:\n{listed}"
                "Type `trainkit stop --all --yes` to confirm, `trainkit stop --session ID` to end one of "
                "them, or `trainkit stop EXPERIMENT` to stop an experiment"
            )
        count = len(found) + len(abandoned)
        question = f"{listed}End {'this session' if count == 1 else f'these {count} sessions'}? [y/N] "
        if not confirmed(question):
            sys.stdout.write("nothing was ended\n")
            return 1
    _end_all(found, force=force)
    for session in abandoned:
        count = end_leftovers(session.folder)
        _say(f"session {session.id}, whose node had died, was cleaned up: {count} processes killed")
    return 0


def _words(session: Session) -> str:
    """Return a line that describes a session to the user."""
    if not session.alive:
        return f"session {session.id}: its node has died, and some of its processes still run"
    program = process.command_line(session.driver).replace(b"\0", b" ").decode(errors="replace").strip()
    driver = "its program has ended" if session.driver_gone else f"pid {session.driver}, {program[:100]}"
    tunes = "".join(f", runs the experiment {folder}" for folder in _experiments(session))
    return f"session {session.id}: {driver}{tunes}"


def _end_all(doomed: Sequence[Session], *, force: bool) -> None:
    by = asker()
    if not force:
        _end_experiments([folder for session in doomed for folder in _experiments(session)], by)
    for session in doomed:
        _say(_end(session, by, force=force))


def _experiments(session: Session) -> list[Path]:
    """Return the folders of experiments that processes of the session run."""
    return owned_by({session.driver, *process.marked(str(session.folder))})


def _end_experiments(folders: Sequence[Path], by: str) -> None:
    """Ask the programs that run these experiments to stop, and wait until all experiments have ended."""
    asked = []
    for folder in folders:
        try:
            asked.append((folder, leave_command(folder, "stop", {}, by)))
        except StoreError as error:  # this error is no failure, as the experiment ends with its session
            sys.stderr.write(f"trainkit: {error}\n")
    patience_ends = SYSTEM.monotonic() + PATIENCE_S
    for folder, wish in asked:
        if not wait_for_end(folder, patience_ends):
            sys.stderr.write(f"trainkit: the process that runs {folder} has not stopped in time\n")
        wish.unlink(missing_ok=True)  # a leftover command would stop the next run of the experiment
        if words := end_of(folder):
            _say(words)


def _end(session: Session, by: str, *, force: bool) -> str:
    # Processes are counted while the node lives. After its end, descendants of the node without the session's
    # environment variable can't be found.
    below = process.descendants(session.node)
    count = len({session.node, *below, *process.marked(str(session.folder))})
    local_sessions.note_end(session.folder, by)
    asked = not force and _ask(session)
    if not asked:
        for pid in (session.node, *below):
            process.kill(pid)
    _let_program_see(session)
    end_leftovers(session.folder)
    how = "ended" if asked else "killed"
    return f"session {session.id} {how}: node pid {session.node}, {count} processes in all"


def _ask(session: Session) -> bool:
    """Ask the node to end its session; return True if the node has ended it."""
    try:
        with local_sessions.connect(session.folder) as node:
            node.tell(Shutdown())
            return node.await_end(process.NODE_S)
    except NodeDiedError:
        return True
    except TrainkitError:
        return False


def _let_program_see(session: Session) -> None:
    """Wait until the session's program has read who ended the session and removed the session's folder."""
    deadline = SYSTEM.monotonic() + _NOTICE_S
    while session.folder.exists() and process.exists(session.driver) and SYSTEM.monotonic() < deadline:
        SYSTEM.sleep(0.01)


def _abandoned() -> list[Session]:
    """Return the sessions whose nodes were killed."""
    there = [local_sessions.session_at(folder) for folder in local_sessions.folders(boot.home())]
    return [session for session in there if session is not None and not session.alive]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
