"""Command `trainkit dashboard`, which serves pages on experiments until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from trainkit.cli import HELP, Command
from trainkit.cli.experiments import folder_of_experiments
from trainkit.errors import ConfigError
from trainkit.plugins import dashboard
from trainkit.plugins.cluster.machines import Machines

_HINT = "Ctrl-C stops the server."


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
        parser.add_argument(
            "--ssh", metavar="HOSTS", help="also show other machines: host1,host2, each as [user@]host[:port]"
        )
        parser.add_argument(
            "--python", default=sys.executable, help="Python on the machines of --ssh (default: this path)"
        )
        parser.add_argument("--socket", metavar="PATH", help=argparse.SUPPRESS)  # on the machines of --ssh
        parser.add_argument("--optuna", action="store_true", help="serve Optuna's own dashboard, read-only")

    def run(self, arguments: argparse.Namespace) -> int:
        root: Path = folder_of_experiments(arguments.folder)
        if arguments.optuna:
            if arguments.host is not None:
                raise ConfigError(
                    "--optuna serves this machine only: leave --host out, and connect by an ssh tunnel"
                )
            return _serve_optuna(root, arguments.port)
        hosts = None
        if arguments.ssh is not None:
            there = arguments.folder  # "~" is the home on each host
            folder = str(root) if there and not there.startswith("~") else there
            hosts = dashboard.Hosts(Machines.named(arguments.ssh), folder, arguments.python)
        with dashboard.Dashboard(
            root,
            arguments.port,
            arguments.host or "127.0.0.1",
            read_only=arguments.read_only,
            path=arguments.socket,
            hosts=hosts,
        ) as server:
            dashboard.stand_back()
            if arguments.socket is None:
                also = f" and on {', '.join(map(str, hosts.machines))}" if hosts is not None else ""
                _serve(server, f"Experiments in {root}{also}: open {server.address}\n{_HINT}")
            else:
                _serve_host(server)
        return 0


def _serve_host(server: Any) -> None:
    """Serve the machine that has started this program by `ssh`, and which ends it by SIGTERM."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    _serve(server, server.greeting)


def _serve_optuna(root: Path, port: int) -> int:
    with dashboard.OptunaDashboard(root, port) as server:
        for name, why in server.storage.left_out.items():
            sys.stdout.write(f"Experiment {name} is left out: {why}\n")
        _serve(server, f"Experiments in {root}, in Optuna's dashboard: open {server.address}\n{_HINT}")
    return 0


def _serve(server: Any, words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.stdout.write("\n")
