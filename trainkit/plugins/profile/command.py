"""Command `trainkit trace`, which records the next steps of a trainer's rank."""

from __future__ import annotations

import argparse
import sys

from trainkit.cli import HELP, Command
from trainkit.plugins.profile.client import trace
from trainkit.plugins.profile.ranks import MAX_STEPS, TRACE_S


class Trace(Command):
    """Command `trainkit trace`."""

    help = HELP["trace"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=int, help="PID of the rank, see the dashboard")
        parser.add_argument(
            "--steps", metavar="N", type=int, default=5, help=f"steps, 1 to {MAX_STEPS}; default 5"
        )
        parser.add_argument(
            "--timeout",
            metavar="SECONDS",
            type=float,
            default=TRACE_S,
            help=f"timeout for these steps; default {TRACE_S:g}",
        )
        parser.add_argument("-o", "--output", metavar="FILE", help="file to write; default trace-PID.json")

    def run(self, arguments: argparse.Namespace) -> int:
        path = arguments.output or f"trace-{arguments.pid}.json"
        written = trace(arguments.pid, path, steps=arguments.steps, timeout_s=arguments.timeout)
        sys.stdout.write(f"{written}: open it at https://ui.perfetto.dev\n")
        return 0
