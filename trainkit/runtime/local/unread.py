"""Failures of calls that nobody asks for: shown once each, as nobody else would tell of them.

    FAILURE arrives ──▶ Unread ──get, await, passed on──▶ read
                          └──────dropped──▶ UnreadFailures, which shows it a moment later

Only a failed call pays for this: a value carries nothing of it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from trainkit import settings
from trainkit.clock import SYSTEM
from trainkit.errors import ActorDiedError, TaskCancelledError
from trainkit.runtime.failures import unpack_failure
from trainkit.runtime.local.objects import opened
from trainkit.runtime.serialize import Packed

logger = logging.getLogger("trainkit")

_WINDOW_S = 5.0
_MOST = 3
"""So many failures are shown within a window; the rest are counted."""
_MOST_KEPT = 1_000


class Unread(Packed):
    """A packed failure that is told of when it is dropped, unless somebody has read it before.

    Args:
        packed: the failure.
        dropped: takes it when it is dropped unread.
    """

    __slots__ = ("_dropped",)

    def __init__(self, packed: Packed, dropped: Callable[[Packed], None]) -> None:
        super().__init__(packed.payload, packed.buffers, packed.handles, packed.stored, packed.writable)
        self._dropped: Callable[[Packed], None] | None = dropped

    def mark_read(self) -> None:
        """Note that somebody has asked for it, or was sent it."""
        self._dropped = None

    def __del__(self) -> None:
        if self._dropped is not None:
            self._dropped(Packed(self.payload, self.buffers, self.handles, self.stored))


def mark_read(body: Any) -> None:
    """Note that the failure of a call has been asked for; others' bodies are left alone."""
    if isinstance(body, Unread):
        body.mark_read()


class UnreadFailures:
    """Shows the failures of a process's calls that nobody asked for.

    Args:
        run_soon: calls a function in a moment, in a thread in which user code may run.
    """

    def __init__(self, run_soon: Callable[[Callable[[], None]], None]) -> None:
        self._run_soon = run_soon
        self._lock = threading.RLock()  # a collection under it may drop one more
        self._dropped: list[Packed] = []
        self._since = SYSTEM.monotonic()
        self._shown: set[str] = set()
        self._not_shown = 0
        self._is_asked_for = False
        self._is_over = False
        self._pid = os.getpid()

    def dropped(self, failure: Packed) -> None:
        """Take a failure that was dropped unread; called in any `__del__`, so it is shown elsewhere."""
        is_copy = self._pid != os.getpid()  # forked: the failure is its parent's to show
        if self._is_over or is_copy or sys.is_finalizing() or not settings.tells_unhandled_errors():
            return
        with self._lock:
            if len(self._dropped) < _MOST_KEPT:
                self._dropped.append(failure)
            is_asked_for, self._is_asked_for = self._is_asked_for, True
        if not is_asked_for:
            self._run_soon(self.show)

    def show(self) -> None:
        """Show what was dropped, or count it if enough was shown within the last seconds."""
        now = SYSTEM.monotonic()
        if now - self._since >= _WINDOW_S:
            self._show_count()
            self._since, self._shown = now, set()
        with self._lock:
            dropped, self._dropped = self._dropped, []
            self._is_asked_for = False
        for failure in dropped:
            text = _text_of(failure)
            if text is None:
                continue
            if text in self._shown or len(self._shown) >= _MOST:
                self._not_shown += 1
                continue
            self._shown.add(text)
            logger.error("Unhandled error (suppress with %s=1): %s", settings.IGNORE_UNHANDLED_ERRORS, text)

    def finish(self) -> None:
        """Show what is left; nothing is taken any more."""
        self.show()
        self._show_count()
        self._is_over = True

    def _show_count(self) -> None:
        count, self._not_shown = self._not_shown, 0
        if count:
            logger.error(
                "Unhandled errors: at least %d more calls failed, and nobody asked for their results", count
            )


def _text_of(failure: Packed) -> str | None:
    """The traceback of a failure; None if somebody has ended the call, or its actor, on purpose."""
    try:
        error = unpack_failure(opened(failure))
    except Exception as problem:  # what the user's exceptions are rebuilt by may do anything
        return f"a call raised, and its exception cannot be rebuilt here: {problem}"
    if isinstance(error, ActorDiedError) or isinstance(error.cause, (ActorDiedError, TaskCancelledError)):
        return None
    return error.remote_traceback


def is_own(cls: type) -> bool:
    """Return whether a class is one of trainkit's own, whose makers deal with its failures."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]
