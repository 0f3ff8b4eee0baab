"""Endpoints of the dashboard as data, from which its routes and its OpenAPI description are built."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainkit.errors import TrainkitError
from trainkit.plugins.dashboard.experiments.board import Board
from trainkit.plugins.dashboard.experiments.reading import NotFoundError
from trainkit.plugins.dashboard.security import answer, refusal
from trainkit.plugins.dashboard.threads import BusyError, Threads

logger = logging.getLogger("trainkit.dashboard")

Schema = dict[str, Any]
"""JSON schema in the form of OpenAPI."""

STREAM, DOWNLOAD = "text/event-stream", "application/octet-stream"
_LONGEST = 10_000
"""Maximum number of characters of a query parameter."""


class BadRequestError(Exception):
    """Error for a request with an invalid parameter or body."""


class ForbiddenError(Exception):
    """Request that this server never allows, such as a write to a read-only server."""


_STATUSES: dict[type[Exception], int] = {
    BadRequestError: 400,
    ForbiddenError: 403,
    NotFoundError: 404,
    BusyError: 429,
}


class Server(Protocol):
    """Attributes of the server that the functions of endpoints use."""

    board: Board
    threads: Threads
    read_only: bool

    def machines(self) -> list[dict[str, Any]]:
        """Return this machine and the hosts of the server, with their problems."""

    def experiments(self) -> list[dict[str, Any]]:
        """Return the summaries of the experiments of all machines."""

    def sessions(self) -> list[dict[str, Any]]:
        """Return the heads of the sessions of all machines."""

    @property
    def is_ending(self) -> bool:
        """True if streams and traces must end now."""


@dataclass(frozen=True)
class QueryParameter:
    """Parameter of a query.

    Attributes:
        name: name of the parameter in the URL.
        meaning: description of the parameter for the API reference.
        kind: type of the value: "string", "integer" or "boolean".
        default: value if the request does not contain the parameter.
        at_most: largest integer.
        at_least: smallest integer.
    """

    name: str
    meaning: str
    kind: str = "string"
    default: Any = None
    at_most: int | None = None
    at_least: int = 0

    def read(self, texts: Sequence[str]) -> Any:
        """Parse the parameter's value from its texts in the URL.

        Raises:
            BadRequestError: the value is invalid, or the parameter is given several times.
        """
        if not texts:
            return self.default
        if len(texts) > 1:
            raise BadRequestError(f"parameter {self.name} is given {len(texts)} times: give it once")
        (text,) = texts
        if len(text) > _LONGEST:
            raise BadRequestError(
                f"parameter {self.name} has {len(text)} characters: the maximum is {_LONGEST}"
            )
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise BadRequestError(f"{self.name} must be true or false, not {text[:100]!r}")
            return text == "true"
        if self.kind == "integer":
            if not (text.isascii() and text.isdecimal() and len(text) <= 18):
                raise BadRequestError(f"{self.name} must be an integer of at least 0, not {text[:100]!r}")
            if self.at_most is not None and int(text) > self.at_most:
                raise BadRequestError(f"{self.name} must be at most {self.at_most}, not {text}")
            if int(text) < self.at_least:
                raise BadRequestError(f"{self.name} must be at least {self.at_least}, not {text}")
            return int(text)
        return text

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        found: Schema = {"type": self.kind}
        if self.kind == "integer":
            found["minimum"] = self.at_least
        if self.at_most is not None:
            found["maximum"] = self.at_most
        if self.default is not None:
            found["default"] = self.default
        return found


@dataclass(frozen=True)
class Call:
    """One request to an endpoint, passed to the endpoint's function.

    Attributes:
        server: server that received the request.
        path: values of the placeholders in the endpoint's path.
        query: parsed values of the parameters that the endpoint declares.
        others: further parameters as strings, if the endpoint accepts parameters of any name.
        body: fields of the request's body.
        gone: event that is set when the client disconnects. It is used only by endpoints that wait and are
            not `in_turn`.
    """

    server: Server
    path: Mapping[str, str]
    query: Mapping[str, Any]
    others: Mapping[str, str]
    body: Mapping[str, Any]
    request: Request
    gone: threading.Event = field(default_factory=threading.Event)


def require_writable(call: Call) -> None:
    """Raise ForbiddenError if the server is read-only."""
    if call.server.read_only:
        raise ForbiddenError(
            "this dashboard is read-only: start it without --read-only to steer, trace or write notes"
        )


@asynccontextmanager
async def _watched(call: Call, *, needed: bool) -> AsyncIterator[None]:
    """Set the event `call.gone` if the client disconnects during the `with` block."""

    async def watch() -> None:
        while (await call.request.receive())["type"] != "http.disconnect":
            pass
        call.gone.set()

    watching = asyncio.create_task(watch()) if needed else None
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()


@dataclass(frozen=True)
class Endpoint:
    """One URL path with one HTTP method.

    Attributes:
        path: path such as "/api/experiments/{name}".
        summary: description in one line, for the API reference.
        run: function that receives a `Call`, and returns the answer or a complete HTTP response.
        answers: schema of the answer, or the media type of an answer that is not JSON.
        query: parameters that the URL may contain.
        body: schemas of the body's fields, by name.
        required: names of the fields that the body must contain.
        takes_any: True: also accept parameters that are not in `query`.
        is_async: True: `run` is a coroutine function. False: `run` is called in a thread.
        waits: True: `run` waits for another process, so it runs in a separate pool of threads.
        in_turn: used if `waits` is True. True: `run` begins after earlier requests to the same session are
            answered. False: `run` may run concurrently with earlier requests.
        method: "GET", "POST" or "PUT".
    """

    path: str
    summary: str
    run: Callable[[Call], Any]
    answers: Schema | str
    query: Sequence[QueryParameter] = ()
    body: Mapping[str, Schema] | None = None
    required: Sequence[str] = ()
    takes_any: bool = False
    is_async: bool = False
    waits: bool = False
    in_turn: bool = True
    method: str = "GET"

    def route(self, server: Server) -> Route:
        """Return the route that lets `server` answer requests to this endpoint."""

        async def handle(request: Request) -> Response:
            return await self._handle(server, request)

        return Route(self.path, handle, methods=[self.method])

    async def _handle(self, server: Server, request: Request) -> Response:
        try:
            call = self._call(server, request)
            if self.is_async:
                response: Response = await self.run(call)
                return response
            make = partial(self._made, call)
            if self.method == "GET" and self.in_turn and not isinstance(self.answers, str):
                # Concurrent requests are compared by raw path and query, because `request.url` changes names
                # with '#' or a tab.
                asked = request.scope["path"], request.scope["query_string"]
                return await server.threads.share(asked, make)
            return await make()
        except asyncio.CancelledError:
            if not server.is_ending:
                raise
            return refusal(503, "this dashboard has stopped")
        except tuple(_STATUSES) as error:
            return refusal(_STATUSES[type(error)], str(error))
        except TrainkitError as error:
            return refusal(409, str(error))

    async def _made(self, call: Call) -> Response:
        threads, make = call.server.threads, partial(self._answered, call)
        if not self.waits:
            return await threads.read(make, call.path.get("name"))
        if self.in_turn and (session := call.path.get("session")) is not None:
            return await threads.ask(make, session)
        async with _watched(call, needed=not self.in_turn):
            return await threads.wait(make, "commands" if self.in_turn else "traces")

    def _answered(self, call: Call) -> Response:
        found = self.run(call)
        return found if isinstance(found, Response) else answer(found)

    def _call(self, server: Server, request: Request) -> Call:
        given = {name: request.query_params.getlist(name) for name in request.query_params}
        known = {each.name: each for each in self.query}
        query = {name: each.read(given.get(name, [])) for name, each in known.items()}
        other = sorted(given.keys() - known)
        if other and not self.takes_any:
            there = f"choose from {', '.join(known)}" if known else "this request takes none"
            raise BadRequestError(f"unknown parameter {other[0][:100]!r}: {there}")
        others = {name: QueryParameter(name, "").read(given[name]) for name in other}
        body = {} if self.body is None else self._body(request.scope["body"])
        return Call(server, request.path_params, query, others, body, request)

    def _body(self, data: bytes) -> dict[str, Any]:
        try:
            body = json.loads(data, parse_constant=_no_number) if data else {}
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not valid JSON: {error}") from None
        if not isinstance(body, dict):
            raise BadRequestError("the body must be a JSON object, such as {...}")
        fields = self.body or {}
        for name, value in body.items():
            if name not in fields:
                there = f"its fields are {', '.join(fields)}" if fields else "it takes no fields"
                raise BadRequestError(f"the body has an unknown field {name[:100]!r}: {there}")
            kinds = fields[name]["type"]
            if not any(_IS[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
                raise BadRequestError(f"the field {name} of the body must be of type {_words(kinds)}")
        if lacking := [name for name in self.required if name not in body]:
            raise BadRequestError(f"the body lacks the required fields {', '.join(lacking)}")
        return body


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not valid JSON")


def _words(kinds: str | Sequence[str]) -> str:
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


_IS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


async def refuse_http(request: Request, error: Exception) -> Response:
    """Answer a request to an unknown path, or with an HTTP method that the path does not support."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {
        404: f"{request.url.path} does not exist on this server",
        405: f"this path does not support the method {request.method}",
    }
    refused = refusal(status, words.get(status, str(error)))
    refused.headers.update(getattr(error, "headers", None) or {})
    return refused


async def refuse_fault(request: Request, error: Exception) -> Response:
    """Answer a request that failed because of an error in the server, and log the error."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(500, f"the dashboard failed with {type(error).__name__}: its terminal shows the traceback")
