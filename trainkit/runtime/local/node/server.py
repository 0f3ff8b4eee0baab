"""Server for other programs of the user: the session's folder and its socket.

The folder is the user's alone, so only their programs find the socket, and one of another user is
refused all the same. What a guest sends can end its own visit, but nothing else.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.clock import SYSTEM
from trainkit.runtime.local.node.loop import LoopConnection
from trainkit.runtime.local.wire.frames import Frame
from trainkit.runtime.local.wire.messages import (
    Available,
    CancelOwed,
    FindActor,
    Kill,
    QueryExit,
    Reconnect,
    Shutdown,
    State,
)
from trainkit.runtime.local.wire.sessions import CARD, is_own, socket_path

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node

MAY_ASK = (Available, CancelOwed, FindActor, QueryExit, Kill, Reconnect, Shutdown, State)

_BACKLOG = 64
_WAIT_S = 0.1


class SessionServer:
    """Lets in other programs of the user.

    Args:
        node: whose loop it lives in.
        folder: of the session; made here.
        driver: pid of the program that started the session.
    """

    def __init__(self, node: Node, folder: Path, driver: int) -> None:
        self._node = node
        self._folder = folder
        self._driver = driver
        self._started = SYSTEM.now()
        self.guests: set[int] = set()
        folder.mkdir(mode=0o700, exist_ok=True)  # the driver may have asked for its scratch folder already
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self._listener.bind(socket_path(fd))
        finally:
            os.close(fd)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        node.watch(self._listener.fileno(), self._admit)
        self._write_card(driver_gone=False)

    def driver_left(self) -> None:
        """Say that the program which started the session has ended."""
        self._write_card(driver_gone=True)

    def _write_card(self, *, driver_gone: bool) -> None:
        aside = self._folder / f"{CARD}.new"
        aside.write_text(  # importing json would take longer than all else that is done here
            f'{{"node": {os.getpid()}, "driver": {self._driver}, "started": {self._started!r}, '
            f'"driver_gone": {"true" if driver_gone else "false"}}}'
        )
        aside.rename(self._folder / CARD)  # whoever reads finds it whole

    def _admit(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except ConnectionError:  # it left again
            return
        except OSError:  # no descriptor is left: it waits at the door until there may be one
            fd = self._listener.fileno()
            self._node.unwatch(fd)
            self._node.after(_WAIT_S, lambda: self._node.watch(fd, self._admit))
            return
        if not is_own(sock):
            sock.close()
            return
        serial = self._node.worker_table.next_serial()
        conn = LoopConnection(
            sock, self._node, lambda frame: self._ask(serial, frame), lambda: self._dismiss(serial)
        )
        self.guests.add(serial)
        self._node.admit(serial, conn, lambda: self._read(serial, conn))

    def _read(self, serial: int, conn: LoopConnection) -> None:
        try:
            with conn.reading:
                conn.read_available()
        except Exception:  # another version's program, say: its visit is over, and the session goes on
            sys.stderr.write(f"trainkit: a visitor was sent away:\n{traceback.format_exc()}")
            self._dismiss(serial)

    def _ask(self, serial: int, frame: Frame) -> None:
        self._node.from_client(serial, frame, MAY_ASK)

    def _dismiss(self, serial: int) -> None:
        self.guests.discard(serial)
        self._node.drop_client(serial)
