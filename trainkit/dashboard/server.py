"""HTTP server of the dashboard: pages and JSON for the user who started it.

    GET  /                                            all experiments of the folder
    GET  /experiments/NAME[/trials/ID]                one experiment, one trial
    POST /experiments/NAME/stop, .../trials/ID/stop   ask the program that runs it to stop it
    GET  /api/experiments[/NAME[/trials/ID]]          the same as JSON
    POST /api/experiments/NAME[/trials/ID]/stop

The server listens on this machine only. A request needs the token of the address that was printed: in a
cookie, which the first visit with `?token=` sets, or as `Authorization: Bearer TOKEN`. A request that changes
something needs it in the form or the header, so that the page of another site can't make it.
"""

from __future__ import annotations

import hmac
import re
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from trainkit.clock import SYSTEM
from trainkit.dashboard import pages
from trainkit.dashboard.pages import Curve
from trainkit.dashboard.reading import MetricReader, View, experiments
from trainkit.errors import DashboardError, StoreError, TrainkitError
from trainkit.tune.core.metrics import encode, without_objects
from trainkit.tune.store.ownership import ask_to_stop, asker

MAX_CURVES = 100
"""Curves in one picture, of the best trials."""
MAX_BODY = 10_000
_ROUTE = re.compile(
    r"(?P<api>/api)?/experiments(/(?P<name>[^/]+)(/trials/(?P<trial>[^/]+))?)?(?P<stop>/stop)?"
)


class NotFoundError(Exception):
    """Page that does not exist."""


class Dashboard(ThreadingHTTPServer):
    """HTTP server; `serve_forever` runs it, `shutdown` and `server_close` end it.

    Args:
        root: folder of experiments, or one experiment.
        port: to listen at; 0 for a free one.

    Raises:
        DashboardError: `root` is no folder, or the port is taken.
    """

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless the client has only gone away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def __init__(self, root: Path, port: int = 0) -> None:
        if not root.is_dir():
            raise DashboardError(
                f"there is no folder {root}: name one that holds experiments, or one experiment"
            )
        self.root = root
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise DashboardError(f"port {port} cannot be used: {why}; name another --port") from error

    @property
    def address(self) -> str:
        """Address to open, with the token."""
        return f"http://127.0.0.1:{self.server_address[1]}/?token={self.token}"

    def accepts(self, token: str) -> bool:
        """Return True for the token of this server."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def folder_of(self, name: str) -> Path:
        """Return the folder of the experiment with this name; only folders that were found are opened."""
        for folder in experiments(self.root):
            if folder.name == name:
                return folder
        raise NotFoundError(f"there is no experiment {name!r} in {self.root}")


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name that the server calls
        self._answer(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._post)

    # --- access and errors ------------------------------------------------------------------------

    def _answer(self, method: Any) -> None:
        is_api = self.path.startswith("/api/")
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            self.close_connection = True
            self._fail(HTTPStatus.BAD_REQUEST, str(error), is_api)
            return
        query = dict(parse_qsl(url.query))
        form = self._form()
        try:
            if url.path == "/style.css":
                self._send(
                    resources.files("trainkit.dashboard").joinpath("style.css").read_text(), "text/css"
                )
            elif not self._may(query, form):
                self._fail(HTTPStatus.FORBIDDEN, "open the address that `trainkit dashboard` printed", is_api)
            elif "token" in query:
                self._welcome(url.path)
            else:
                method(url.path, query)
        except NotFoundError as error:
            self._fail(HTTPStatus.NOT_FOUND, str(error), is_api)
        except TrainkitError as error:
            self._fail(HTTPStatus.CONFLICT, str(error), is_api)

    def _form(self) -> dict[str, str]:
        length = self.headers.get("Content-Length", "0")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MAX_BODY:
            self.close_connection = True  # a body that is not read would be taken for the next request
            return {}
        return dict(parse_qsl(self.rfile.read(int(length)).decode(errors="replace")))

    def _may(self, query: Mapping[str, str], form: Mapping[str, str]) -> bool:
        # Another site may have a name that points at this machine.
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost"):
            return False
        shown = [self.headers.get("Authorization", "").removeprefix("Bearer ")]
        if self.command in ("GET", "HEAD"):
            # By hand: http.cookies gives up at an odd cookie of another program on this machine.
            pairs = [pair.strip().partition("=") for pair in self.headers.get("Cookie", "").split(";")]
            shown += [query.get("token", ""), *(value for name, _, value in pairs if name == self._cookie)]
        else:
            shown.append(form.get("token", ""))
        return any(map(self.server.accepts, shown))

    @property
    def _cookie(self) -> str:
        return f"trainkit-{self.server.server_address[1]}"

    def _welcome(self, path: str) -> None:
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", path)
        cookie = f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
        self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", "0")
        self.end_headers()

    # --- requests ---------------------------------------------------------------------------------

    def _get(self, path: str, query: Mapping[str, str]) -> None:
        if path == "/":
            self._send(self._listing())
            return
        route = _ROUTE.fullmatch(path)
        if route is None or route["stop"]:
            raise NotFoundError(f"there is no page {path}")
        if route["name"] is None:
            if not route["api"]:
                raise NotFoundError(f"there is no page {path}")
            self._send_json([_plain(seen, rows=False) for seen in self._all()[0]])
            return
        folder = self.server.folder_of(unquote(route["name"]))
        seen = View.of(folder, SYSTEM.now())
        if route["trial"] is None:
            page = (
                _plain(seen) if route["api"] else self._experiment(folder, seen, pages.TableQuery.of(query))
            )
        else:
            page = self._trial(folder, seen, unquote(route["trial"]), as_json=bool(route["api"]))
        if isinstance(page, str):
            self._send(page)
        else:
            self._send_json(page)

    def _post(self, path: str, query: Mapping[str, str]) -> None:
        del query
        route = _ROUTE.fullmatch(path)
        if route is None or not route["stop"] or route["name"] is None:
            raise NotFoundError(f"there is nothing at {path} to post to")
        folder = self.server.folder_of(unquote(route["name"]))
        seen = View.of(folder, SYSTEM.now())
        trial_id = unquote(route["trial"]) if route["trial"] else None
        if trial_id is not None and all(row.trial_id != trial_id for row in seen.rows):
            raise NotFoundError(f"there is no trial {trial_id!r} in {seen.name}")
        if seen.overview.owner is None:
            raise StoreError(f"{seen.name} is not running: there is nothing to stop")
        ask_to_stop(folder, trial_id, f"{asker()}, by the dashboard")
        if route["api"]:
            self._send_json({"asked": "stop", "trial": trial_id}, HTTPStatus.ACCEPTED)
            return
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", path.removesuffix("/stop"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _all(self) -> tuple[list[View], list[str]]:
        seen, problems = [], []
        for folder in experiments(self.server.root):
            try:
                seen.append(View.of(folder, SYSTEM.now()))
            except StoreError as error:
                problems.append(str(error))
        return seen, problems

    def _listing(self) -> str:
        seen, problems = self._all()
        return pages.listing(str(self.server.root), seen, problems)

    def _experiment(self, folder: Path, seen: View, query: pages.TableQuery) -> str:
        curves: list[Curve] = []
        if seen.overview.metric is not None:
            with MetricReader(folder) as reader:
                curves = [
                    Curve(row.trial_id, reader.curve(row.trial_id, seen.overview.metric), place == 0)
                    for place, row in enumerate(seen.ranked[:MAX_CURVES])
                ]
        return pages.experiment(seen, curves, query, self.server.token)

    def _trial(self, folder: Path, seen: View, trial_id: str, *, as_json: bool) -> str | dict[str, Any]:
        row = next((row for row in seen.rows if row.trial_id == trial_id), None)
        if row is None:
            raise NotFoundError(f"there is no trial {trial_id!r} in {seen.name}")
        with MetricReader(folder) as reader:
            decisions = reader.decisions(trial_id)
            curve = reader.curve(trial_id, seen.overview.metric) if seen.overview.metric is not None else []
            history = reader.history(trial_id) if as_json else []
        kept = seen.overview.trials[row.index]
        if as_json:
            return {**asdict(row), "history": history, "decisions": decisions}
        return pages.trial(seen, row, kept, curve, decisions, self.server.token)

    # --- answers ----------------------------------------------------------------------------------

    def _fail(self, status: HTTPStatus, text: str, is_api: bool) -> None:
        if is_api:
            self._send_json({"error": text}, status)
        else:
            self._send(pages.problem(status.phrase, text), status=status)

    def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(encode(without_objects(value)), "application/json", status)

    def _send(self, text: str, kind: str = "text/html", status: HTTPStatus = HTTPStatus.OK) -> None:
        data = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print only server errors, as a page that refreshes itself would fill the terminal."""
        if args and str(args[1] if len(args) > 1 else "").startswith("5"):
            sys.stderr.write(f"trainkit dashboard: {format % args}\n")


def _plain(seen: View, *, rows: bool = True) -> dict[str, Any]:
    whole, best = seen.overview, seen.best
    found = {
        "name": seen.name,
        "path": str(whole.folder),
        "metric": whole.metric,
        "mode": whole.mode,
        "created": whole.created,
        "owner": whole.owner,
        "state": whole.state,
        "remaining_s": whole.remaining_s,
        "counts": Counter(str(row.status) for row in seen.rows),
        "best": asdict(best) if best else None,
    }
    return {**found, "trials": [asdict(row) for row in seen.rows]} if rows else found
