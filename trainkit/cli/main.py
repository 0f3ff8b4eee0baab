"""What `trainkit` takes on the command line, and which of its commands is run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trainkit.cli.dashboard import dashboard
from trainkit.cli.inquiry import why
from trainkit.cli.status import status
from trainkit.cli.stop import stop
from trainkit.errors import TrainkitError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 1 when it could not do what it was asked.

    Args:
        arguments: those behind the program's name; None takes this process's.
    """
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.command == "status":
            return status(as_json=chosen.json)
        if chosen.command == "why":
            return why(chosen.id)
        if chosen.command == "dashboard":
            return dashboard(chosen.folder, chosen.port)
        return stop(chosen.session, force=chosen.force)
    except TrainkitError as error:
        sys.stderr.write(f"trainkit: {error}\n")
        return 1
    except BrokenPipeError:  # whoever reads has seen enough
        sys.stderr.close()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainkit", description="Look at your sessions on this machine, and end them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status_ = commands.add_parser("status", help="what runs, what it holds, and what waits")
    status_.add_argument("--json", action="store_true", help="as one JSON document, for other programs")
    why_ = commands.add_parser("why", help="why something waits, or how it ended")
    why_.add_argument(
        "id", metavar="ID", help="the beginning of the id, or the name, of an actor, request or group"
    )
    dashboard_ = commands.add_parser("dashboard", help="look at experiments in a browser, and stop trials")
    dashboard_.add_argument("folder", nargs="?", help="of experiments; without it, where they are by default")
    dashboard_.add_argument("--port", type=int, default=0, help="to listen at; without it, one that is free")
    stop_ = commands.add_parser("stop", help="end sessions, with all that runs in them")
    stop_.add_argument("--session", metavar="ID", help="the beginning of its id; without it, all of yours")
    stop_.add_argument("--force", action="store_true", help="kill them without asking their nodes first")
    return parser
