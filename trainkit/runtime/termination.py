"""SIGTERM in a program with a session: it ends as by Ctrl-C, in order, and with exit code 143.

Where Ctrl-C is held back, as in a wait or in `Tuner.fit`, so is this; elsewhere it raises SystemExit, so that
`finally` blocks and exit handlers run. A program that handles SIGTERM by itself is let be.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_CODE = 128 + signal.SIGTERM

Handler = Callable[[int, FrameType | None], Any]


class _State:
    asked = False
    pid = 0


def is_default() -> bool:
    """Return whether this program leaves SIGTERM to the system, and this thread could take it over."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _on_signal)


def take_over() -> None:
    """End this program in order by SIGTERM, from here to `give_back`; in the main thread."""
    _State.asked, _State.pid = False, os.getpid()
    signal.signal(signal.SIGTERM, _on_signal)


def give_back() -> None:
    """Leave SIGTERM to the system again; nothing if somebody else has taken it over since."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_asked() -> bool:
    """Return whether SIGTERM came and was held back."""
    return _State.asked


def end_if_asked() -> None:
    """Raise SystemExit if SIGTERM came and was held back."""
    if _State.asked:
        raise SystemExit(EXIT_CODE)


def act(handler: Handler) -> None:
    """Do what a signal asks for that was held back: `handler` is that of SIGINT as it was before."""
    if not _holds(handler):
        end_if_asked()
    handler(signal.SIGINT, None)


def _holds(handler: Any) -> bool:
    """Return whether it belongs to an object that holds signals back, as its `holds_signals` says."""
    return getattr(getattr(handler, "__self__", None), "holds_signals", False)


def _on_signal(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _State.pid:  # a child that was forked by the user's code, and has no session
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _State.asked = True
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and _holds(handler):
        handler(signal.SIGINT, frame)
    else:
        end_if_asked()
