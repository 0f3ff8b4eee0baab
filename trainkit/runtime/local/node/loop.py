"""Event loop of the node: file descriptors, timers and connections."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
from collections.abc import Callable

from trainkit.clock import SYSTEM
from trainkit.runtime.local.wire.channel import Connection, Frame
from trainkit.runtime.serialize import Packed

After = Callable[[float, Callable[[], None]], bool]
"""Type of `Loop.after`, which schedules a call of a function after some seconds unless the call is scheduled
already.
"""


class Loop:
    """Single-threaded event loop."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._backlogged: dict[int, Connection] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.stopping = False

    def run(self, after_turn: Callable[[], None]) -> None:
        """Handle events until `stop` is called.

        Args:
            after_turn: function called after each turn of the loop.
        """
        while not self.stopping:
            for fd, event in self._poll.poll(self._timeout_ms()):
                if event & select.POLLOUT and fd in self._backlogged:
                    self._flush(fd)
                reader = self._readers.get(fd)
                if reader is not None and event & ~select.POLLOUT:
                    reader()
            self._run_timers()
            after_turn()

    def stop(self) -> None:
        """Leave the loop after this turn."""
        self.stopping = True

    def watch(self, fd: int, reader: Callable[[], None]) -> None:
        """Call `reader` whenever `fd` is readable."""
        self._readers[fd] = reader
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`."""
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> bool:
        """Call `action` once, `seconds` from now.

        Return False, and do nothing, if `action` is scheduled already.
        """
        if any(action == other for _, other in self._timers):
            return False
        self._timers.append((SYSTEM.monotonic() + seconds, action))
        return True

    def connection(
        self, sock: socket.socket, on_frame: Callable[[Frame], None], on_close: Callable[[], None]
    ) -> Connection:
        """Return a connection over `sock`, whose frames this loop reads."""
        conn = LoopConnection(sock, self, on_frame, on_close)
        self.watch(conn.fileno(), functools.partial(_read, conn))
        return conn

    def forget(self, conn: Connection) -> None:
        """Stop reading and flushing `conn`."""
        self.unwatch(conn.fileno())
        self._backlogged.pop(conn.fileno(), None)

    def end(self, conn: Connection) -> None:
        """Close `conn`, unless the process at the other end has closed it already."""
        if not conn.closed:
            self.forget(conn)
        conn.close()

    def flush_later(self, conn: Connection) -> None:
        """Send the unsent data of `conn` when `conn` becomes writable."""
        self._backlogged[conn.fileno()] = conn
        self._poll.modify(conn.fileno(), select.POLLIN | select.POLLOUT)

    def _timeout_ms(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(at for at, _ in self._timers) - SYSTEM.monotonic()) * 1000

    def _run_timers(self) -> None:
        now = SYSTEM.monotonic()
        due = [action for at, action in self._timers if at <= now]
        self._timers = [(at, action) for at, action in self._timers if at > now]
        for action in due:
            action()

    def _flush(self, fd: int) -> None:
        conn = self._backlogged[fd]
        conn.flush()
        if not conn.has_backlog:
            del self._backlogged[fd]
            if fd in self._readers:
                self._poll.modify(fd, select.POLLIN)


class LoopConnection(Connection):
    """Connection that is read by a `Loop`."""

    def __init__(
        self,
        sock: socket.socket,
        loop: Loop,
        handle_frame: Callable[[Frame], None],
        handle_close: Callable[[], None],
    ) -> None:
        super().__init__(sock)
        self._loop = loop
        self._handle_frame = handle_frame
        self._handle_close = handle_close

    def on_frame(self, frame: Frame) -> None:
        self._handle_frame(frame)

    def on_close(self) -> None:
        self._loop.forget(self)
        self._handle_close()

    def on_backlog(self) -> None:
        self._loop.flush_later(self)


def try_send(conn: Connection, kind: int, call_id: int, body: Packed) -> None:
    """Send a frame to a process that may have ended.

    Errors are ignored, because other code handles the end of the process.
    """
    with contextlib.suppress(OSError):
        conn.send(kind, call_id, body)


def _read(conn: Connection) -> None:
    with conn.reading:
        conn.read_available()
