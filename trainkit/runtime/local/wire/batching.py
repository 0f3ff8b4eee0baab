"""Connections that batch several calls, or several answers, into one frame.

    post() post() post() ──one frame──▶ the other end
              └─ no thread waits? ─▶ the background thread flushes within a millisecond

A single call is sent at once. Calls in a burst are collected until the batch is full, until a thread waits
for an answer, or until the next tick of the background thread. Only immutable values are collected unpickled,
so a later change of an argument never affects the batch.
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
"""Maximum number of entries in a frame: many amortize its cost, but too many delay the receiver's start."""

_ALONE_S = 30e-6
"""Time after the last frame from which a post no longer belongs to a burst."""


def lasting(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return small arguments in a form for batching: a tuple of immutable values, or a pickle; else None."""
    for value in args:
        if type(value) not in NUMBERS and not (type(value) is str and len(value) <= SHORT):
            break
    else:
        if not kwargs:
            return args
    return pickle.dumps((args, kwargs), PROTOCOL) if is_small(args) and is_small(kwargs) else None


class BatchingConnection(Connection):
    """Connection on which small messages of one kind are batched.

    Attributes:
        ticking: the background thread flushes posted entries within a millisecond.
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
        """Have `flush_posted` called soon."""

    def on_tick(self) -> bool:
        """Do periodic work in the background thread while ticking; return True to keep ticking."""
        return False

    def post(self, entry: Any) -> None:
        """Send `entry` at once if it comes alone, else in a batch soon.

        Raises:
            BrokenPipeError: the connection is closed.
        """
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
        """Send `entries`, at most `MOST`, now and in one frame; raise like `post`."""
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
        """Send the posted entries now."""
        with self._send_lock:
            if len(self._posted) > 1:
                # Ctrl-C between two steps would lose or repeat entries that other threads wait for.
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
        """True if an entry waits to be sent in a batch."""
        return bool(self._posted)

    def finish_sending(self) -> None:
        self.flush_if_open()
        super().finish_sending()

    def close_when_sent(self) -> None:
        self.flush_if_open()
        super().close_when_sent()

    def flush_if_open(self) -> None:
        """Send the posted entries now, unless the connection is closed."""
        if self._posted and not self.closed:
            with contextlib.suppress(OSError):  # the other end has ended and needs no entries
                self.flush_posted()
