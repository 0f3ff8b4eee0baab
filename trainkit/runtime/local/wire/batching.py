"""Connections that carry several calls, or several answers, in one frame.

    post() post() post() ──one frame──▶ the other end
              └─ no thread waits? ─▶ the background thread flushes within a millisecond

A call that comes alone goes at once. Calls that come in a burst are collected until there are enough, until a
thread waits for an answer, or until the next tick of the background thread. Only values that cannot change
are collected as they are, so what is sent is what was posted.
"""

from __future__ import annotations

import contextlib
import errno
import pickle
import socket
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.runtime.local.wire.channel import Connection
from trainkit.runtime.serialize import NUMBERS, PROTOCOL, SHORT, Packed, is_small
from trainkit.runtime.signals import InterruptGuard

MOST = 256
"""Entries of one frame: enough to spread its own cost thin, few enough that the other end can begin."""

_ALONE_S = 30e-6
"""A post this long after the last frame does not belong to a burst."""


def lasting(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return arguments in a form that can wait to be sent: a tuple of atoms, or a pickle; None for none."""
    for value in args:
        if type(value) not in NUMBERS and not (type(value) is str and len(value) <= SHORT):
            break
    else:
        if not kwargs:
            return args
    return pickle.dumps((args, kwargs), PROTOCOL) if is_small(args) and is_small(kwargs) else None


class BatchingConnection(Connection):
    """Connection on which small messages of one kind may wait for others.

    Attributes:
        ticking: the pump will flush what is posted, within a millisecond.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.ticking = False
        self._posted: list[Any] = []
        self._last_sent = 0.0

    @abstractmethod
    def make_batch(self, entries: list[Any]) -> tuple[int, bytes]:
        """Return the kind and the body of the frame that carries `entries`."""

    @abstractmethod
    def tick(self) -> None:
        """Arrange a call of `flush_posted` soon."""

    def on_tick(self) -> bool:
        """Called by the pump's thread as long as it ticks; returns whether it is to go on."""
        return False

    def post(self, entry: Any) -> None:
        """Send `entry` soon; at once if it comes alone. Raises BrokenPipeError if the other end is gone."""
        with self._send_lock:
            if self.closed:
                raise BrokenPipeError(errno.EPIPE, "the connection is closed")
            self._posted.append(entry)
            count = len(self._posted)
            if count >= MOST or (count == 1 and SYSTEM.monotonic() - self._last_sent > _ALONE_S):
                self.flush_posted()
            elif not self.ticking:
                self.tick()

    def post_together(self, entries: list[Any]) -> None:
        """Send `entries`, `MOST` at most, now and in one frame; raises like `post`."""
        with self._send_lock:
            if self.closed:
                raise BrokenPipeError(errno.EPIPE, "the connection is closed")
            self._posted.extend(entries)
            self.flush_posted()

    def send(self, kind: int, call_id: int, body: Packed) -> None:
        if self._posted:
            with self._send_lock:
                self.flush_posted()
                super().send(kind, call_id, body)
        else:
            super().send(kind, call_id, body)

    def flush_posted(self) -> None:
        """Send what is posted now."""
        with self._send_lock:
            if len(self._posted) > 1:
                # Ctrl-C between two steps of this would lose, or repeat, what others wait for.
                with InterruptGuard():
                    self._send_posted()
            elif self._posted:
                self._send_posted()

    def _send_posted(self) -> None:
        entries, self._posted = self._posted, []
        kind, data = self.make_batch(entries)
        super().send(kind, 0, Packed(data))
        self._last_sent = SYSTEM.monotonic()

    @property
    def has_posted(self) -> bool:
        """Return True if an entry waits to be sent together with others."""
        return bool(self._posted)

    def finish_sending(self) -> None:
        self.flush_if_open()
        super().finish_sending()

    def close_when_sent(self) -> None:
        self.flush_if_open()
        super().close_when_sent()

    def flush_if_open(self) -> None:
        """Send what is posted now, if there is still anybody to send it to."""
        if self._posted and not self.closed:
            with contextlib.suppress(OSError):  # the other end is gone, so there is nobody to tell
                self.flush_posted()
