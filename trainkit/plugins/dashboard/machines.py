"""Dashboards on other machines: `ssh` starts a dashboard on each host, and this server shows its data.

On a host, the dashboard listens on a Unix socket that only the user can open. The connection of `ssh` that
starts the dashboard also forwards this socket. No port is opened, and nothing is copied to the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import h11
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from trainkit.plugins.cluster.commands import Event, RemoteCommand
from trainkit.plugins.cluster.machines import Machine, Machines
from trainkit.plugins.dashboard.openapi import version
from trainkit.plugins.dashboard.security import refusal
from trainkit.plugins.dashboard.stream import QUIET_S

Row = dict[str, Any]

PAUSES_S = (5.0, 300.0)
"""Shortest and longest pause before a lost host is reached again. The pause doubles with each failure."""
CLOSE_S = 5.0
"""Seconds that a dashboard on a host has to end when this server ends."""
_STREAMS = {"experiments": "", "sessions": "?sessions=1"}
"""Query of the stream of each list."""
_REQUEST_HEADS = frozenset({b"accept", b"content-type", b"if-none-match", b"if-range", b"range"})
_ANSWER_HEADS = _REQUEST_HEADS | {
    b"accept-ranges",
    b"allow",
    b"content-disposition",
    b"content-length",
    b"content-range",
    b"etag",
    b"last-modified",
}


@dataclass(frozen=True)
class Hosts:
    """Hosts whose dashboards a server shows.

    Attributes:
        machines: hosts that `ssh` reaches.
        folder: folder of experiments on each host; "~" is the home there; None: the host's default folder.
        python: Python on the hosts.
    """

    machines: Machines
    folder: str | None = None
    python: str = sys.executable


class RemoteDashboard:
    """Dashboard on a host, which is reached again after its connection is lost.

    Args:
        machine: the host.
        hosts: settings of all hosts.
        folder: folder of this machine for sockets.
        read_only: True: the dashboard refuses steering, traces, and notes.

    Attributes:
        name: name of the host, with its port where the user names a port.
        problem: why the host shows nothing; "" while it is connected.
        lists: "experiments" and "sessions" of the host, as its dashboard's stream last sent them.
    """

    def __init__(self, machine: Machine, hosts: Hosts, folder: str, *, read_only: bool) -> None:
        self.name = f"{machine.name}:{machine.port}" if machine.port else machine.name
        self.problem = f"{self.name} is being reached"
        self.lists: dict[str, list[Row]] = {}
        self._machine, self._hosts, self._folder, self._read_only = machine, hosts, folder, read_only
        self._local = self._token = self._why = ""
        self._followers: list[threading.Thread] = []
        self._closing, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, name=f"trainkit-{self.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask the dashboard on the host to end, and do not reach the host again."""
        self._closing.set()
        self._over.set()

    def join(self) -> None:
        """Wait until the dashboard on the host has ended, or its connection."""
        self._thread.join()

    # --- connection -------------------------------------------------------------------------------

    def _stay(self) -> None:
        pause, longest = PAUSES_S
        while True:
            self._over.clear()
            if self._closing.is_set():
                return
            try:
                why = self._run()
            except OSError as error:
                why = f"ssh can't be started: {error}"
            if self._token:
                pause = PAUSES_S[0]
            self.lists, self._token, self._why = {}, "", ""
            self.problem = f"{why} (next attempt in {pause:g} s)"
            self._closing.wait(pause)
            pause = min(2 * pause, longest)

    def _run(self) -> str:
        """Run a dashboard on the host until it or its connection ends; return why it has ended."""
        failure = last = ""

        def on_event(event: Event) -> None:
            nonlocal failure, last
            text = event.data.decode(errors="replace")
            if event.kind == "err":
                last = text.strip().rpartition("\n")[2]
            elif event.kind == "out":
                self._greet(text)
            elif event.kind == "ended":
                failure = str(event.error or f"the dashboard on {self.name} has ended")
                self._over.set()

        remote = f"/tmp/trainkit-{secrets.token_hex(16)}.sock"
        # Each attempt has a socket of its own, because a master connection of ssh keeps its sockets. The name
        # is short, because the length of a socket's path is limited.
        self._local = os.path.join(self._folder, secrets.token_hex(3))
        words = [self._hosts.python, "-m", "trainkit", "dashboard", "--socket", remote]
        words += ["--read-only"] if self._read_only else []
        words += ["--", self._hosts.folder] if self._hosts.folder is not None else []
        command = RemoteCommand(
            self._machine,
            words,
            folder="",
            python=self._hosts.python,
            tell=on_event,
            options=[f"LocalForward={self._local} {remote}"],
        )
        self._over.wait()
        command.leave()
        if not command.join(CLOSE_S):
            command.kill()
            command.join()
        while self._followers:
            self._followers.pop().join()
        return self._why or (f"{failure}: {last}" if last else failure)

    def _greet(self, text: str) -> None:
        """Begin to follow the dashboard on the host, which has printed its version and its token."""
        try:
            hello = json.loads(text)
            theirs, self._token = hello["version"], hello["token"]
        except (ValueError, TypeError, KeyError):
            self._give_up(f"the dashboard there has answered {text[:200]!r}")
            return
        if theirs != version():
            self._give_up(f"trainkit {theirs} is installed there, and {version()} here: install the same")
            return
        for query in _STREAMS.values():
            self._followers.append(threading.Thread(target=self._follow, args=(query,), daemon=True))
            self._followers[-1].start()

    def _give_up(self, words: str) -> None:
        self._why = self._why or f"{self.name}: {words}"
        self._over.set()

    def _follow(self, query: str) -> None:
        """Keep a list of the host up to date, until the connection ends."""
        connection = _Connection(self._local)
        try:
            connection.request("GET", f"/api/stream{query}", headers=self._credentials())
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise ConnectionError(answer.read(1000).decode(errors="replace"))
            for line in answer:
                if line.startswith(b"data: "):
                    change = json.loads(line.removeprefix(b"data: "))
                    if "error" in change:
                        raise ConnectionError(change["error"])
                    self.lists |= {name: change[name] for name in change["changed"]}
                    if self.lists.keys() == _STREAMS.keys():
                        self.problem = ""
            self._give_up("the dashboard there has closed a stream")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._give_up(f"no data comes through ssh: {str(error) or type(error).__name__}")
        finally:
            connection.close()

    def _credentials(self) -> dict[str, str]:
        return {"Host": "localhost", "Authorization": f"Bearer {self._token}"}

    # --- requests ---------------------------------------------------------------------------------

    async def answer(self, path: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the path `/api/PATH` on the host, and the host's answer to the client."""
        started = False

        async def send_on(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if self.problem:
                raise ConnectionError(self.problem)
            reader, writer = await asyncio.open_unix_connection(self._local)
            try:
                talk = h11.Connection(h11.CLIENT)
                for event in self._request(path, scope):
                    writer.write(talk.send(event) or b"")
                events = _events(talk, reader)
                head = await anext(events)
                answer = StreamingResponse(_content(events), head.status_code)
                answer.raw_headers = [pair for pair in head.headers if pair[0] in _ANSWER_HEADS]
                await answer(scope, receive, send_on)
            finally:
                writer.close()
        except (OSError, h11.RemoteProtocolError) as error:
            if not started:
                await refusal(502, f"{self.name}: {error}")(scope, receive, send)
            # Otherwise, the server closes the connection, so that the client sees that the answer is cut.

    def _request(self, path: bytes, scope: Scope) -> Iterable[Any]:
        query = scope["query_string"]
        heads = [pair for pair in scope["headers"] if pair[0] in _REQUEST_HEADS]
        own = {**self._credentials(), "Connection": "close", "Content-Length": str(len(scope["body"]))}
        yield h11.Request(
            method=scope["method"],
            target=b"/api/" + path + (b"?" + query if query else b""),
            headers=[*heads, *own.items()],
        )
        yield h11.Data(scope["body"])
        yield h11.EndOfMessage()


async def _events(talk: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """Yield the events of an answer, of which the first is its head."""
    while True:
        event = talk.next_event()
        if event is h11.NEED_DATA:
            talk.receive_data(await reader.read(2**16))
        elif isinstance(event, h11.EndOfMessage):
            return
        elif not isinstance(event, h11.InformationalResponse):
            yield event


async def _content(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for event in events:
        yield bytes(event.data)


class _Connection(http.client.HTTPConnection):
    """Connection of HTTP to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=3 * QUIET_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class RemoteDashboards:
    """Dashboards of all hosts, and the application that passes on requests below `/api/machines/HOST/`.

    Args:
        hosts: the hosts; None: no hosts.
        read_only: True: their dashboards refuse steering, traces, and notes.
    """

    def __init__(self, hosts: Hosts | None, *, read_only: bool) -> None:
        self._cleaning = contextlib.ExitStack()
        self._each: dict[str, RemoteDashboard] = {}
        if hosts is not None:
            folder = self._cleaning.enter_context(tempfile.TemporaryDirectory(prefix="trainkit-"))
            for machine in hosts.machines:
                each = RemoteDashboard(machine, hosts, folder, read_only=read_only)
                self._each[each.name] = each

    def close(self) -> None:
        """End the dashboards on all hosts."""
        for each in self._each.values():
            each.close()
        for each in self._each.values():
            each.join()
        self._cleaning.close()

    def machines(self) -> list[Row]:
        """Return this machine and all hosts, each with the reason why it shows nothing."""
        own = {"machine": "", "problem": ""}
        return [own, *({"machine": each.name, "problem": each.problem} for each in self._each.values())]

    def experiments(self, own: list[Row]) -> list[Row]:
        """Return the summaries of this machine's experiments, followed by the experiments of all hosts.

        An experiment in a folder that machines share appears once. Its machine is the machine that runs it.
        """
        found: dict[Any, Row] = {}
        for row in [*own, *self._rows("experiments", "name")]:
            key = row["name"] if row["created"] is None else (row["path"], row["created"])
            if key not in found or (row["running"] and not found[key]["running"]):
                found[key] = row
        return list(found.values())

    def sessions(self, own: list[Row]) -> list[Row]:
        """Return this machine's sessions, followed by the sessions of all hosts."""
        return [*own, *self._rows("sessions", "session_id")]

    def _rows(self, kind: str, key: str) -> Iterable[Row]:
        for each in self._each.values():
            for row in each.lists.get(kind, ()):
                yield {**row, key: f"{each.name}/{row[key]}", "machine": each.name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, _, path = scope["raw_path"].partition(b"/machines/")[2].partition(b"/")
        host = self._each.get(unquote_to_bytes(name).decode(errors="replace"))
        if host is None:
            await refusal(404, "this dashboard shows no such machine")(scope, receive, send)
        else:
            await host.answer(path, scope, receive, send)
