"""Protection of the dashboard's server: limits on the size and duration of requests, and access checks."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainkit.plugins.dashboard.access import Access
from trainkit.tune.core.metrics import encode

MAX_BODY = 64 * 1024
"""Maximum number of bytes of a request's body."""
MAX_HEAD = 32 * 1024
"""Maximum number of bytes of a request's line and headers."""
REQUEST_S = 10.0
"""Seconds that a client has to send the head of a request, and again to send the body."""
MAX_CONNECTIONS = 256
"""Maximum number of connections of all clients together.

If more than half of this number of connections exist, each new connection closes the connection that has
waited longest for a request.
"""
READ_S = 30.0
"""Seconds that a client has to continue reading an answer after the output buffer has become full."""

# Inline styles are allowed, because Plotly sets inline styles. Scripts are allowed only from files of the
# server.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def answer(value: Any, status: int = 200) -> Response:
    """Return `value` as JSON that every reader accepts: NaN and infinities become strings."""
    # The text is ASCII, because names may contain characters that UTF-8 can't represent.
    text = encode(value)
    return Response(text, status, media_type="application/json")


def refusal(status: int, words: str) -> Response:
    """Return the answer to a refused request: `status` is at least 400, and `words` are for the user."""
    return answer({"error": words}, status)


def _closing(status: int, words: str) -> Response:
    """Return a refusal that closes the connection, because the rest of the request is not read."""
    refused = refusal(status, words)
    refused.headers["Connection"] = "close"
    return refused


class Guard:
    """Middleware that refuses requests that are not from the user. The middleware reads the bodies of all
    other requests completely, into `scope["body"]`.

    Args:
        app: application to protect.
        access: rule for access.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_api = scope["path"].startswith("/api")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = b"no-store" if is_api else b"no-cache"
                headers = [*message.get("headers", ()), *_HEADERS, (b"cache-control", kept)]
                message = {**message, "headers": headers}
            await send(message)

        found: Response | bytes | None = self._refused(Headers(scope=scope), scope, is_api=is_api)
        if found is None:
            try:
                async with asyncio.timeout(REQUEST_S):
                    found = await _body(Request(scope, receive))
            except TimeoutError:
                found = _closing(408, f"the request was incomplete after {REQUEST_S:g} s")
            except ClientDisconnect:
                return
        if isinstance(found, Response):
            await found(scope, receive, send_guarded)
        else:
            await self._app({**scope, "body": found}, receive, send_guarded)

    def _refused(self, headers: Headers, scope: Scope, *, is_api: bool) -> Response | None:
        """Check the path and headers of a request; return a refusal, or None if the request is allowed."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        if size + sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD:
            return _closing(431, f"the URL and headers of the request have more than {MAX_HEAD} bytes")
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._access.knows_host(hosts[0]):
            return _closing(
                403,
                f"{', '.join(hosts)!r} is not a name of this server: use a name or IP address of its machine",
            )
        is_foreign = any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins)
        site = headers.get("sec-fetch-site", "none")
        if is_foreign or (is_api and site not in ("none", "same-origin")):
            return _closing(
                403,
                "requests from pages of other sites are refused: open the address that `trainkit "
                "dashboard` printed",
            )
        if is_api and not self._access.knows_token(headers.getlist("authorization")):
            return _closing(
                403,
                "the token is missing or wrong: open the address that `trainkit dashboard` printed, or send "
                "the token of that address as `Authorization: Bearer TOKEN`",
            )
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal():
            return _closing(400, "the Content-Length header is not a number")
        if len(length) > 18 or int(length) > MAX_BODY:
            return _too_long()
        return None


async def _body(request: Request) -> bytes | Response:
    """Return a request's body; a refusal if it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return _too_long()
    return bytes(body)


def _too_long() -> Response:
    return _closing(413, f"the body of the request has more than {MAX_BODY} bytes")


class _Deadline:
    """Timer that closes a connection unless the timer is cancelled."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, connection: H11Protocol) -> None:
        """Close the connection after `seconds` seconds; if a timer is already running, keep that timer."""
        if self._timer is None:
            self._timer = connection.loop.call_later(seconds, connection.transport.abort)

    def call_off(self) -> None:
        """Cancel the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedConnection(H11Protocol):
    """HTTP connection that is closed if its client sends too slowly or stops reading the answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head, self._reader = _Deadline(), _Deadline()
        self.waits_since = math.inf
        """Time, by the clock of the event loop, since which this connection waits for a complete request;
        infinity during an answer.
        """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head.set(REQUEST_S, self)
        # Clients that send nothing must not keep other clients from connecting.
        if len(self.connections) > MAX_CONNECTIONS // 2:
            bounded = [each for each in self.connections if isinstance(each, BoundedConnection)]
            oldest = min(bounded, key=lambda each: each.waits_since)
            if oldest.waits_since < math.inf:
                # The event loop closes the connection later, so this connection must not be chosen again.
                oldest.waits_since = math.inf
                oldest.transport.abort()
        self.waits_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.call_off()
        self._reader.call_off()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self.waits_since = math.inf
        else:
            self.waits_since = min(self.waits_since, self.loop.time())
        if self.cycle is not before:  # A new cycle means that the head of a request is complete.
            self._head.call_off()
        elif self.cycle is None or self.cycle.response_complete:
            self._head.set(REQUEST_S, self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.set(READ_S, self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.call_off()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP; if an earlier answer is being sent, close the connection instead."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
        else:
            super().send_400_response(msg)
