"""Clients of the node, which are the processes of the session and other programs of the user.

Other programs connect to a socket in the session's folder. Only the user who owns the session can open the
folder. In addition, connections from programs of other users are refused. An invalid message closes the
connection of the program that sent it, and has no other effect.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import TrainkitError
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.node.loop import Loop, LoopConnection, try_send
from trainkit.runtime.local.node.records import SessionRecord, WorkerTable
from trainkit.runtime.local.wire.channel import FAILURE, NOTICE, REQUEST, VALUE, Connection, Frame
from trainkit.runtime.local.wire.messages import (
    Available,
    FindActor,
    Kill,
    QueryExit,
    Reconnect,
    Shutdown,
    State,
    packed,
)
from trainkit.runtime.local.wire.sessions import CARD, is_own, socket_path
from trainkit.runtime.serialize import pack

MAY_ASK = (Available, FindActor, QueryExit, Kill, Reconnect, Shutdown, State)

_BACKLOG = 64
_WAIT_S = 0.1


class Clients:
    """Connections of the processes that make requests, by the number of each process.

    Args:
        loop: the node's event loop.
        dispatch: function that handles a message from a process.
    """

    def __init__(self, loop: Loop, dispatch: Callable[[int, Frame], None]) -> None:
        self._loop = loop
        self._dispatch = dispatch
        self._conns: dict[int, Connection] = {}

    def add(
        self, serial: int, sock: socket.socket, on_close: Callable[[], None] = lambda: None
    ) -> Connection:
        """Serve the requests of a new process of the session."""
        conn = self._loop.connection(sock, functools.partial(self._serve, serial), on_close)
        self._conns[serial] = conn
        return conn

    def admit(self, serial: int, conn: Connection, reader: Callable[[], None]) -> None:
        """Serve the requests of another program."""
        self._conns[serial] = conn
        self._loop.watch(conn.fileno(), reader)

    def drop(self, serial: int) -> None:
        """Close the connection of a process that has ended."""
        conn = self._conns.pop(serial, None)
        if conn is not None:
            self._loop.end(conn)

    def notify(self, serial: int, message: Any) -> None:
        """Send a message to the process with number `serial`, if it is still connected."""
        conn = self._conns.get(serial)
        if conn is not None:
            try_send(conn, NOTICE, 0, packed(message))

    def answer(self, serial: int, call_id: int, value: Any) -> None:
        """Answer a request with `value`. An exception as the value makes the request fail."""
        conn = self._conns.get(serial)
        if conn is not None:
            failed = isinstance(value, Exception)
            body = pack_failure(value, "trainkit") if failed else pack(value)
            try_send(conn, FAILURE if failed else VALUE, call_id, body)

    def _serve(self, serial: int, frame: Frame) -> None:
        """Handle a message from a process. An error affects only the process that sent the message."""
        try:
            self._dispatch(serial, frame)
        except Exception as error:
            sys.stderr.write(f"trainkit: the node could not serve a request:\n{traceback.format_exc()}")
            if frame.kind == REQUEST:
                reason = f"the session's node could not serve the request: {type(error).__name__}: {error}"
                self.answer(serial, frame.call_id, TrainkitError(reason))


@dataclass(eq=False)
class SessionServer:
    """Server for other programs of the user.

    Args:
        loop: the node's event loop.
        clients: connections of the processes that make requests.
        table: table of workers, which assigns numbers to processes.
        session: record of the session, whose folder is created here.
        dispatch: function that handles a message from a program, and is also given the types of messages
            that the program may send.
    """

    _loop: Loop
    _clients: Clients
    _table: WorkerTable
    _session: SessionRecord
    _dispatch: Callable[[int, Frame, tuple[type, ...]], None]

    def __post_init__(self) -> None:
        self._started, self._folder = SYSTEM.now(), self._session.folder
        # The folder exists already if the driver has asked for its scratch folder.
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self._listener.bind(socket_path(fd))
        finally:
            os.close(fd)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), self._admit)
        self.write_card()

    def write_card(self) -> None:
        """Write the file that describes the session and whether its program has ended."""
        aside, of = self._folder / f"{CARD}.new", self._session
        # The text is written by hand, as importing `json` would take longer than this method.
        aside.write_text(
            f'{{"node": {os.getpid()}, "driver": {of.driver_pid}, "started": {self._started!r}, '
            f'"driver_gone": {"true" if of.driver_gone else "false"}, "program": {of.program}}}'
        )
        aside.rename(self._folder / CARD)  # a rename is atomic, so readers always see a complete file

    def _admit(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except ConnectionError:  # the program has closed the connection again
            return
        except OSError:  # no descriptor is free, so the program waits until the next attempt
            fd = self._listener.fileno()
            self._loop.unwatch(fd)
            self._loop.after(_WAIT_S, lambda: self._loop.watch(fd, self._admit))
            return
        if not is_own(sock):
            sock.close()
            return
        serial = self._table.next_serial()
        conn = LoopConnection(
            sock,
            self._loop,
            lambda frame: self._dispatch(serial, frame, MAY_ASK),
            lambda: self._clients.drop(serial),
        )
        self._clients.admit(serial, conn, lambda: self._read(serial, conn))

    def _read(self, serial: int, conn: LoopConnection) -> None:
        try:
            with conn.reading:
                conn.read_available()
        except Exception:  # a program with a different version of trainkit may send invalid messages
            sys.stderr.write(f"trainkit: the node refused another program:\n{traceback.format_exc()}")
            self._clients.drop(serial)
