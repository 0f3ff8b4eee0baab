"""Optuna's own dashboard, which shows trainkit's experiments: `trainkit dashboard --optuna`."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from trainkit.errors import DashboardError
from trainkit.plugins.dashboard.access import Access
from trainkit.tune.core.checks import load

if TYPE_CHECKING:
    from trainkit.plugins.integrations.optuna_storage import ExperimentStorage

_LOOPBACK = "127.0.0.1"
_SCRIPT = Path(__file__).parent / "static" / "optuna.js"
_BUNDLE = b'<script defer src="/static/bundle.js"></script>'
_OURS = f'<script defer src="/static/{_SCRIPT.name}"></script>'.encode()
# This policy is for Optuna's page, whose parallel coordinates need `eval`.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' data: 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

Environment = dict[str, Any]
Start = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[Environment, Start], Iterable[bytes]]


class OptunaDashboard(ThreadingMixIn, WSGIServer):
    """Server of Optuna's dashboard, for users of this machine who know the printed address.

    The page itself contains no data of experiments. An added script takes the token from the address, keeps
    it in the browser tab, and sends it as a header. Cookies are not used, because browsers send a cookie to
    every port of the machine. Requests that would write are refused, because only the program of an
    experiment may write to the experiment.

    Args:
        root: folder of an experiment, or of several experiments.
        port: port to listen on; 0 means any free port.

    Raises:
        MissingDependencyError: optuna-dashboard is not installed.
        DashboardError: the port can't be used.
        StoreError, ConfigError: see `ExperimentStorage`.
    """

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0) -> None:
        app = load("optuna_dashboard", "Optuna's pages", "optuna-dashboard")
        # The next import needs Optuna, which is installed because optuna-dashboard needs it.
        storages = importlib.import_module("trainkit.plugins.integrations.optuna_storage")
        self.storage: ExperimentStorage = storages.ExperimentStorage(root)
        self.token = secrets.token_urlsafe(24)
        page = _page(app)
        try:
            super().__init__((_LOOPBACK, port), _QuietHandler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise DashboardError(f"port {port} cannot be used: {why}; choose another --port") from error
        self.set_app(_guarded(app.wsgi(self.storage), page, Access(self.token, _LOOPBACK)))

    @property
    def address(self) -> str:
        """Address to open, with the token."""
        return f"http://{_LOOPBACK}:{self.server_port}/dashboard?token={self.token}"


class _QuietHandler(WSGIRequestHandler):
    timeout = 30  # Seconds that a client has to send its request, or to continue reading the answer.

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _page(app: Any) -> bytes:
    """Return Optuna's page with an additional script, which sends the token and runs before Optuna's script.

    Raises:
        DashboardError: the page does not have the known form.
    """
    path = Path(app.__file__).with_name("index.html")
    page = path.read_bytes() if path.exists() else b""
    if page.count(_BUNDLE) != 1:
        raise DashboardError(
            f"the page of optuna-dashboard {app.__version__} is not supported: install optuna-dashboard 0.21"
        )
    return page.replace(_BUNDLE, _OURS + _BUNDLE)


def _guarded(app: Application, page: bytes, access: Access) -> Application:
    """Return an application that refuses requests without the token, and requests that write."""

    def answer(environment: Environment, start: Start) -> Iterable[bytes]:
        if not access.knows_host(environment.get("HTTP_HOST", "")):
            return _refusal(start, HTTPStatus.FORBIDDEN, "only 127.0.0.1 and localhost are valid host names")
        method, path = environment["REQUEST_METHOD"], environment.get("PATH_INFO", "")
        is_read = method in ("GET", "HEAD")
        if method == "GET" and path == f"/static/{_SCRIPT.name}":
            return _sent(start, _SCRIPT.read_bytes(), "text/javascript")
        if method == "GET" and (path == "/dashboard" or path.startswith("/dashboard/")):
            return _sent(start, page, "text/html; charset=utf-8", ("Content-Security-Policy", _POLICY))
        if is_read and (path == "/favicon.ico" or path.startswith("/static/")):
            return app(environment, start)
        query = dict(parse_qsl(environment.get("QUERY_STRING", "")))
        is_known = access.knows_token([environment.get("HTTP_AUTHORIZATION", "")])
        if not is_known and not access.is_token(query.get("token", "")):
            return _refusal(start, HTTPStatus.FORBIDDEN, "open the address that `trainkit dashboard` printed")
        if not is_read:
            words = "this page is read-only: use the commands of trainkit to steer experiments"
            return _refusal(start, HTTPStatus.METHOD_NOT_ALLOWED, words)
        return app(environment, start)

    return answer


def _sent(
    start: Start, body: bytes, kind: str, *headers: tuple[str, str], status: HTTPStatus = HTTPStatus.OK
) -> Iterable[bytes]:
    about = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Referrer-Policy", "no-referrer")]
    start(f"{status.value} {status.phrase}", [*about, *headers])
    return [body]


def _refusal(start: Start, status: HTTPStatus, words: str) -> Iterable[bytes]:
    # The errors have the form that Optuna's pages expect.
    return _sent(start, json.dumps({"reason": words}).encode(), "application/json", status=status)
