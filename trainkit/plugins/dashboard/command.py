"""Command `trainkit dashboard`, which serves pages on experiments until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from trainkit.cli import HELP, Command
from trainkit.cli.experiments import folder_of_experiments
from trainkit.errors import ConfigError
from trainkit.plugins import dashboard


class ServeDashboard(Command):
    """Command `trainkit dashboard`."""

    help = HELP["dashboard"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="DIR", nargs="?", help="folder of one experiment or of several")
        parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free port)")
        parser.add_argument("--host", help="address to listen on (default: 127.0.0.1, this machine only)")
        parser.add_argument(
            "--read-only", action="store_true", help="only show experiments: no steering, tracing or notes"
        )
        parser.add_argument("--optuna", action="store_true", help="serve Optuna's own dashboard, read-only")

    def run(self, arguments: argparse.Namespace) -> int:
        root: Path = folder_of_experiments(arguments.folder)
        if arguments.optuna:
            if arguments.host is not None:
                raise ConfigError(
                    "--optuna serves this machine only: leave --host out, and connect by an ssh tunnel"
                )
            return _serve_optuna(root, arguments.port)
        host = arguments.host or "127.0.0.1"
        with dashboard.Dashboard(root, arguments.port, host, read_only=arguments.read_only) as server:
            dashboard.stand_back()
            _serve(server, f"Experiments in {root}: open {server.address}")
        return 0


def _serve_optuna(root: Path, port: int) -> int:
    with dashboard.OptunaDashboard(root, port) as server:
        for name, why in server.storage.left_out.items():
            sys.stdout.write(f"Experiment {name} is left out: {why}\n")
        _serve(server, f"Experiments in {root}, in Optuna's dashboard: open {server.address}")
    return 0


def _serve(server: Any, words: str) -> None:
    sys.stdout.write(f"{words}\nCtrl-C stops the server.\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.stdout.write("\n")
