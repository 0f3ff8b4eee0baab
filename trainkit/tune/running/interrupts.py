"""Ctrl-C and SIGTERM while an experiment runs: once asks for an orderly end, twice ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from trainkit.runtime import termination


class Interrupts:
    """Takes SIGINT over for the time of a `with`, and gives it back.

    The first Ctrl-C is only noted, so that no step of the loop is cut in half; it ends a wait, since
    nothing is lost there. The second raises KeyboardInterrupt wherever the program is; those after it
    wait until what it ended is cleaned up: see `held`. SIGTERM counts as one, in a program with a session.
    """

    holds_signals = True

    def __init__(self) -> None:
        self.count = 0
        self._told = 0
        self._waiting = False
        self._held = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others can't take signals
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give SIGINT back to whom it was taken from; nothing is left to end in order."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def news(self) -> bool:
        """True once after a first Ctrl-C."""
        is_new, self._told = self.count > self._told, self.count
        return is_new

    def end_wait(self, wait: Callable[[], None]) -> None:
        """Call `wait`, which must do nothing but wait; a first Ctrl-C ends it."""
        try:
            self._waiting = True
            if self.count == self._told:  # else it came just before, and waiting would hide it
                wait()
            self._waiting = False
        except KeyboardInterrupt:
            self._waiting = False
            if self.count != 1:
                raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Note every Ctrl-C, and raise for none, while the `with` lasts."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self._held and (self.count > 1 or self._waiting):
            # A third must not come between the second and the clean-up that it leads to.
            self._held = self.count > 1
            if self._held:
                termination.end_if_asked()
            raise KeyboardInterrupt
