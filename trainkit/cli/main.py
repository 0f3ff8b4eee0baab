"""Entry point of the command line."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence

from trainkit.cli.clean import clean
from trainkit.cli.dashboard import dashboard
from trainkit.cli.experiments import is_experiment, list_experiments
from trainkit.cli.sessions import status
from trainkit.cli.show import TableOptions, show
from trainkit.cli.stop import stop_all, stop_experiment, stop_session
from trainkit.cli.tail import tail
from trainkit.cli.why import why, why_experiment
from trainkit.errors import ConfigError, TrainkitError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 when it could not do what it was asked, 130 after Ctrl-C.

    Args:
        arguments: those behind the program's name; None takes this process's.
    """
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # letters that it can't hold are spelled out
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if chosen.command is None:
            parser.print_help()
            return 0
        return _run(chosen)
    except TrainkitError as error:
        sys.stderr.write(f"trainkit: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads has seen enough
        sys.stderr.close()
        return 1


def _run(chosen: argparse.Namespace) -> int:
    match chosen.command:
        case "status":
            return status(as_json=chosen.json)
        case "why":
            if chosen.trial is not None or is_experiment(chosen.id):
                return why_experiment(chosen.id, chosen.trial)
            return why(chosen.id)
        case "stop":
            return _stop(chosen)
        case "ls" if chosen.folder is None or not is_experiment(chosen.folder):
            return list_experiments(chosen.folder)
        case "ls":
            return show(chosen.folder, TableOptions())
        case "tail":
            return tail(
                chosen.experiment,
                chosen.trial,
                lines=chosen.lines,
                follow=not chosen.no_follow,
                printed=chosen.printed,
            )
        case "dashboard":
            return dashboard(chosen.folder, chosen.port)
        case "clean":
            return clean(chosen.experiment, keep_best=chosen.keep_best, yes=chosen.yes)
    view = TableOptions(chosen.sort, chosen.filter, chosen.columns, chosen.limit, chosen.desc, chosen.output)
    return show(chosen.experiment, view)


def _stop(chosen: argparse.Namespace) -> int:
    if chosen.yes and not chosen.all:
        raise ConfigError(
            "--yes answers what --all asks: type `trainkit stop --all --yes` to end all of your sessions, "
            "and leave --yes out to end one session, an experiment or a trial"
        )
    if chosen.experiment is None and chosen.session is not None:
        if chosen.all:
            raise ConfigError("--session ends one session and --all all of yours: choose one of them")
        return stop_session(chosen.session, force=chosen.force)
    if chosen.experiment is None:
        return stop_all(force=chosen.force, yes=chosen.yes)
    if chosen.session is not None or chosen.all or chosen.force:
        raise ConfigError(
            "--session, --all (with or without --yes) and --force end sessions: leave them out to stop an "
            "experiment or a trial"
        )
    return stop_experiment(chosen.experiment, chosen.trial)


_EXPERIMENT = "path of its folder, or its name where experiments are written"
_TRIAL = "its id, name or number, or how they begin"


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 0 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainkit",
        description="Look at your experiments and your sessions on this machine, and end them.",
    )
    version = sys.modules["trainkit"].__version__  # of the package that this module is in
    parser.add_argument("--version", action="version", version=f"trainkit {version}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(name: str, help: str, *aliases: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, aliases=aliases)
        command.set_defaults(command=name)
        return command

    ls = add("ls", "the experiments in a folder", "list-experiments", "lsx")
    ls.add_argument("folder", metavar="DIR", nargs="?", help="without it, where experiments are written")
    _add_show(add("show", "an experiment's trials", "list-trials"))

    tail_ = add("tail", "what trials report, as it comes")
    tail_.add_argument("experiment", metavar="EXPERIMENT", help=_EXPERIMENT)
    tail_.add_argument("trial", metavar="TRIAL", nargs="?", help=_TRIAL)
    tail_.add_argument(
        "--lines", "-n", type=_count, default=10, help="how many of those before (default: 10)"
    )
    tail_.add_argument("--no-follow", action="store_true", help="do not wait for others")
    tail_.add_argument("--printed", action="store_true", help="what TRIAL prints, where log_to_file keeps it")

    why_ = add("why", "why a trial was stopped, or something waits, or how it ended")
    why_.add_argument(
        "id",
        metavar="EXPERIMENT|ID",
        help="an experiment; or the beginning of the id, or the name, of an actor, request or group",
    )
    why_.add_argument("trial", metavar="TRIAL", nargs="?", help=f"of the experiment: {_TRIAL}")

    stop_ = add(
        "stop",
        "stop a trial or an experiment; or end sessions with all that runs in them, which it asks about",
    )
    stop_.add_argument("experiment", metavar="EXPERIMENT", nargs="?", help=_EXPERIMENT)
    stop_.add_argument("trial", metavar="TRIAL", nargs="?", help=f"only this trial: {_TRIAL}")
    stop_.add_argument("--session", metavar="ID", help="end the session whose id begins so")
    stop_.add_argument("--all", action="store_true", help="end all of your sessions")
    stop_.add_argument("--yes", "-y", action="store_true", help="with --all: do not ask")
    stop_.add_argument(
        "--force", action="store_true", help="kill sessions without asking experiments and nodes first"
    )

    clean_ = add("clean", "remove the checkpoints of trials that have ended")
    clean_.add_argument("experiment", metavar="EXPERIMENT", help=_EXPERIMENT)
    clean_.add_argument(
        "--keep-best", action="store_true", help="but those of the trial whose last report is best"
    )
    clean_.add_argument("--yes", "-y", action="store_true", help="do not ask")

    dashboard_ = add("dashboard", "look at experiments in a browser, and stop trials")
    dashboard_.add_argument("folder", metavar="DIR", nargs="?", help="of experiments; or one experiment")
    dashboard_.add_argument("--port", type=int, default=0, help="to listen at (default: one that is free)")

    status_ = add("status", "what runs in your sessions, what it holds, and what waits")
    status_.add_argument("--json", action="store_true", help="as one JSON document, for other programs")
    return parser


def _add_show(show_: argparse.ArgumentParser) -> None:
    show_.add_argument("experiment", metavar="EXPERIMENT", help=_EXPERIMENT)
    show_.add_argument("--sort", metavar="COLUMNS", help="separated by commas")
    show_.add_argument("--desc", action="store_true", help="the largest first")
    show_.add_argument("--filter", metavar="CONDITION", help="such as 'loss < 0.5' or 'status == ERROR'")
    show_.add_argument("--columns", metavar="COLUMNS", help="separated by commas, such as trial_id,config/lr")
    show_.add_argument("--limit", metavar="ROWS", type=_count, help="at most so many")
    show_.add_argument("--output", "-o", metavar="FORM", help="csv or json, or a file whose name ends so")
