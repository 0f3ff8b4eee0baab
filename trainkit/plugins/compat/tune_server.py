"""Server of `ray.tune.web_server`: the dashboard in a thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from trainkit.plugins.dashboard.server import Dashboard


class TuneServer(threading.Thread):
    """Dashboard of experiments in a thread of this program, for a `TuneClient` or a browser.

    Args:
        runner: folder of experiments, or one experiment; Ray expects its trial runner here.
        port: port to listen on, for this machine only; None means 4321.

    Raises:
        DashboardError: the folder does not exist, or the port can't be used.
    """

    DEFAULT_PORT = 4321

    def __init__(self, runner: str | os.PathLike[str], port: int | None = None) -> None:
        super().__init__(name="trainkit-tune-server", daemon=True)
        root = Path(runner).expanduser().absolute()
        self._dashboard = Dashboard(root, self.DEFAULT_PORT if port is None else port)
        self.start()

    @property
    def address(self) -> str:
        """Address for a `TuneClient` or a browser, with the token that both need."""
        return self._dashboard.address

    def run(self) -> None:
        """Answer requests until `shutdown`."""
        self._dashboard.serve_forever()

    def shutdown(self) -> None:
        """End the server, and wait for its end."""
        self._dashboard.shutdown()
        self.join()
        self._dashboard.server_close()
