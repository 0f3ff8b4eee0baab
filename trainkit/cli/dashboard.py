"""`trainkit dashboard`: pages on experiments, served until Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path

from trainkit import settings
from trainkit.dashboard.server import Dashboard


def dashboard(folder: str | None, port: int) -> int:
    """Serve the experiments of `folder`; returns after Ctrl-C."""
    root = Path(folder).expanduser().absolute() if folder else settings.results_dir().absolute()
    with Dashboard(root, port) as server:
        sys.stdout.write(f"Experiments in {root}: open {server.address}\nCtrl-C ends this.\n")
        sys.stdout.flush()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
    return 0
