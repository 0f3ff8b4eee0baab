"""HTTP server of the dashboard: its pages, its REST API and its streams, for the user who started it.

By default, the server listens on this machine only. The server's pages contain no data. All data comes from
paths below `/api`, which require the token in the printed address, as `Authorization: Bearer TOKEN`. Cookies
are not used, so that requests from pages of other sites contain no credentials.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import Any, Self

from trainkit.errors import DashboardError, MissingDependencyError

try:
    import plotly
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import BaseRoute, Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp
except ImportError as error:
    raise MissingDependencyError.of(
        "the dashboard needs Starlette, uvicorn and Plotly", "dashboard", error
    ) from error

from trainkit.plugins.dashboard import api, openapi, processes
from trainkit.plugins.dashboard.access import Access
from trainkit.plugins.dashboard.endpoints import (
    Call,
    Endpoint,
    refuse_fault,
    refuse_http,
)
from trainkit.plugins.dashboard.experiments.board import Board
from trainkit.plugins.dashboard.experiments.reading import NotFoundError
from trainkit.plugins.dashboard.machines import Hosts, RemoteDashboards
from trainkit.plugins.dashboard.openapi import OBJECT
from trainkit.plugins.dashboard.security import MAX_BODY, MAX_CONNECTIONS, MAX_HEAD, BoundedConnection, Guard
from trainkit.plugins.dashboard.stream import STREAMS
from trainkit.plugins.dashboard.threads import Threads

__all__ = ["ENDPOINTS", "MAX_BODY", "Dashboard", "NotFoundError"]

STATIC = Path(__file__).parent / "static"
_PLOTLY = "plotly.min.js"
_GRACE_S = 3


def _describe(call: Call) -> dict[str, Any]:
    return openapi.description(ENDPOINTS)


ENDPOINTS: tuple[Endpoint, ...] = (
    *api.READING,
    *api.STEERING,
    *processes.SESSIONS,
    *STREAMS,
    Endpoint("/api/openapi.json", "This description.", _describe, OBJECT),
)
"""All endpoints of the API."""


class Dashboard:
    """HTTP server. `serve_forever` runs the server; `shutdown` and `server_close` end it.

    Args:
        root: folder that contains experiments, or the folder of one experiment.
        port: port to listen on; 0 means any free port.
        host: address to listen on. With the default, only this machine can reach the server.
        read_only: True: show experiments, but refuse steering, traces, and notes.
        path: listen on a Unix socket at this path, which only the user can open, instead of a port.
        hosts: other machines to show; then this machine may lack the folder `root`.

    Raises:
        DashboardError: `root` is not a folder, or the address or the port can't be used.
    """

    def __init__(
        self,
        root: Path,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        read_only: bool = False,
        path: str | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        if hosts is None and not root.is_dir():
            raise DashboardError(f"{root} is not a folder: name a folder of one experiment or of several")
        self.root = root
        self.token = secrets.token_urlsafe(24)
        self.board = Board(root)
        self.read_only = read_only
        self.threads = Threads()
        self._path = path
        self._socket = _listening(host, port) if path is None else _listening_at(path)
        self.server_address: tuple[str, int] = self._socket.getsockname()[:2] if path is None else (host, 0)
        self._remote = RemoteDashboards(hosts, read_only=read_only)
        config = uvicorn.Config(
            self._application(Access(self.token, host)),
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,
            h11_max_incomplete_event_size=MAX_HEAD,
        )
        self._server = uvicorn.Server(config)
        self._ended = threading.Event()
        self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.server_close()

    @property
    def address(self) -> str:
        """Address to open in a browser; it contains the token."""
        host, port = self.server_address
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{shown}:{port}/?token={self.token}"

    @property
    def greeting(self) -> str:
        """Line that a dashboard reads which starts this dashboard on a host."""
        return json.dumps({"version": openapi.version(), "token": self.token})

    @property
    def is_ending(self) -> bool:
        """True if the server is shutting down; all streams then end."""
        return self._server.should_exit

    def machines(self) -> list[dict[str, Any]]:
        """Return this machine and the hosts of the server, each with the reason why it shows nothing."""
        return self._remote.machines()

    def experiments(self) -> list[dict[str, Any]]:
        """Return the summaries of the experiments of all machines."""
        return self._remote.experiments(self.board.summaries())

    def sessions(self) -> list[dict[str, Any]]:
        """Return the heads of the sessions of all machines."""
        return self._remote.sessions(processes.sessions())

    def serve_forever(self) -> None:
        """Answer requests until `shutdown` is called from another thread, or Ctrl-C is pressed."""
        self._ended.clear()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Make `serve_forever` end, and wait until it has ended."""
        self._server.should_exit = True
        self._ended.wait()

    def server_close(self) -> None:
        """Stop listening, cancel work that has not begun, and wait for work that runs in threads and for
        dashboards on hosts.
        """
        self._server.should_exit = True  # Traces that are being recorded end when this flag is set.
        self._socket.close()
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)
        self._remote.close()
        self.threads.close()

    def _application(self, access: Access) -> ASGIApp:
        drawing = StaticFiles(directory=Path(plotly.__file__).parent / "package_data")

        async def page(request: Request) -> Response:
            return FileResponse(STATIC / "index.html")

        async def plotly_script(request: Request) -> Response:
            return await drawing.get_response(_PLOTLY, request.scope)

        routes: list[BaseRoute] = [
            *(endpoint.route(self) for endpoint in ENDPOINTS),
            Route("/", page),
            Route(f"/static/{_PLOTLY}", plotly_script),
            Mount("/api/machines", self._remote),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        handlers = {HTTPException: refuse_http, Exception: refuse_fault}
        application = Starlette(routes=routes, exception_handlers=handlers)
        application.router.redirect_slashes = False
        return Guard(application, access)


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that no other program can take the port before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise DashboardError(
            f"port {port} of {host} cannot be used: {why}; choose another --port or --host"
        ) from error
    # The option TCP_NODELAY is set on the listening socket, because accepted connections inherit it. asyncio
    # sets the option only for sockets with an explicit protocol number, which this socket does not have.
    # Without the option, each answer's body would wait 40 ms until the client acknowledges the head.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _listening_at(path: str) -> socket.socket:
    """Return a listening Unix socket that only this user can open."""
    made = socket.socket(socket.AF_UNIX)
    others = os.umask(0o177)
    try:
        made.bind(path)
    except OSError as error:
        made.close()
        raise DashboardError(f"{path} cannot be used as a socket: {error.strerror or error}") from error
    finally:
        os.umask(others)
    made.listen(128)
    return made
