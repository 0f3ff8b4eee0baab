"""Event loop of the node: file descriptors, timers and connections."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainkit.runtime.local.wire.channel import Connection
from trainkit.runtime.local.wire.frames import Frame
from trainkit.runtime.serialize import Packed

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node


class LoopConnection(Connection):
    """A connection of the node's loop."""

    def __init__(
        self,
        sock: socket.socket,
        node: Node,
        handle_frame: Callable[[Frame], None],
        handle_close: Callable[[], None],
    ) -> None:
        super().__init__(sock)
        self._node = node
        self._handle_frame = handle_frame
        self._handle_close = handle_close

    def on_frame(self, frame: Frame) -> None:
        self._handle_frame(frame)

    def on_close(self) -> None:
        self._node.forget(self)
        self._handle_close()

    def on_backlog(self) -> None:
        self._node.flush_later(self)


def try_send(conn: Connection, kind: int, call_id: int, body: Packed) -> None:
    """Send to a process that may have ended, which is found out elsewhere."""
    try:
        conn.send(kind, call_id, body)
    except OSError:
        return
