"""SIGINT and SIGTERM: held back where a wait or a transfer must not be cut short, and shared by a session.

SIGTERM may come to every process of a job at once, as Slurm and systemd send it. Then the program decides who
ends, and when: its node keeps the signal pending, by which a worker knows that it was not meant alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from trainkit.clock import SYSTEM

EXIT_CODE = 128 + signal.SIGTERM

Handler = Callable[[int, FrameType | None], Any]


class _State:
    asked = False


_masks = threading.local()
"""Signals that a thread blocks, from before it forks till after."""


def is_default() -> bool:
    """Return whether this program leaves SIGTERM to the system, and this thread could take it over."""
    in_main = threading.current_thread() is threading.main_thread() and not _is_over()
    return in_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _on_signal)


def take_over() -> None:
    """End this program in order by SIGTERM, from here to `give_back`; in the main thread."""
    _give_back_at_end()
    _watch_forks()
    _State.asked = False
    signal.signal(signal.SIGTERM, _on_signal)


def give_back() -> None:
    """Leave SIGTERM to the system again; nothing if somebody else has taken it over since."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


node = 0
"""Pid of the session's node; 0 where there is none."""
_JOB_S = 1.0
"""How long the node may have SIGTERM later than another process of its job."""
_LOOK_S = 0.01
KEPT_S = 10.0
"""How long a worker may have it later than the node, as while C code runs in it."""


def keep_pending() -> None:
    """Keep SIGTERM pending in this process, a node or a template: it ends with its program."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))


def take_pending() -> None:
    """Take the SIGTERM that is pending, so that a later one to a worker is known to be meant alone."""
    _signal.sigtimedwait((_signal.SIGTERM,), 0)


def keep_no_longer() -> None:
    """Act on SIGTERM from now on, and on one that is pending."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGTERM,))


def is_of_job(number: int) -> bool:
    """Return whether a signal that has just come is SIGTERM to every process of the job: the node has it."""
    if number != signal.SIGTERM or not node:
        return False
    latest = SYSTEM.monotonic() + _JOB_S
    while not (is_pending := _node_has_it()) and SYSTEM.monotonic() < latest:
        SYSTEM.sleep(_LOOK_S)
    return is_pending


def hand_on(send: Callable[[int], None]) -> None:
    """Hand SIGINT and SIGTERM on by `send`, unless that to which they go has them already."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: None if is_of_job(number) else send(number))


def _node_has_it() -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{node}/status", "rb") as file:
        pending = file.read().partition(b"ShdPnd:")[2].split(maxsplit=1)
        return bool(pending) and bool(int(pending[0], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def serve_program() -> None:
    """End this process, a worker, by a SIGTERM to it alone; the program ends it by one to all of its job."""
    _watch_forks()
    signal.signal(signal.SIGTERM, _on_signal_of_worker)
    keep_no_longer()


def _on_signal_of_worker(number: int, frame: FrameType | None) -> None:
    # Called by a handler of the user's that has replaced it, it leaves the end to that.
    if signal.getsignal(number) is _on_signal_of_worker and not is_of_job(number):
        _end_by(number)


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


@functools.cache
def _give_back_at_end() -> None:
    # Before Python waits for threads: a handler would not run if the signal came while that wait begins.
    threading._register_atexit(give_back)  # type: ignore[attr-defined]


def _before_fork() -> None:
    _masks.before = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))


def _after_fork_in_parent() -> None:
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _masks.before)


def _after_fork_in_child() -> None:
    # A child of the user's code has no session. It ends at once by SIGTERM, as `multiprocessing.Pool` wants
    # of its workers: a handler in Python may never be called there. One that came meanwhile is kept back.
    if _signal.getsignal(_signal.SIGTERM) in (_on_signal, _on_signal_of_worker):
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    _after_fork_in_parent()


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
    """Return whether it belongs to an object that holds signals back."""
    return isinstance(getattr(handler, "__self__", None), InterruptGuard | InterruptHandler)


def _is_over() -> bool:
    """Return whether Python ends this program: it waits for threads, or calls exit functions."""
    return getattr(threading, "_SHUTTING_DOWN", False) or not threading.main_thread().is_alive()


def _on_signal(number: int, frame: FrameType | None) -> None:
    # Of a program that is over nobody catches what is raised, Python prints it; the node ends the session
    # once the program is gone.
    if _is_over():
        _end_by(number)
        return
    _State.asked = True
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and _holds(handler):
        handler(signal.SIGINT, frame)
    else:
        end_if_asked()


_SIGINT = int(signal.SIGINT)
_signal: Any = importlib.import_module("_signal")
"""The functions that `signal` wraps: without its enums a wait is some microseconds shorter."""

_LOOK_MS = 500
"""How often a wait lets Python look for signals: one that came to another thread ends no system call here."""
_LONGEST_MS = 2**31 - 1
_FOLLOWER_S = 0.05
"""How long a wait for another thread may take notice of Ctrl-C late."""


@functools.cache
def wake_fd() -> int:
    """Return the descriptor that ends a wait: one for the process, as only its main thread waits on it."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


os.register_at_fork(after_in_child=wake_fd.cache_clear)  # Ctrl-C reaches both, and each notes its own


class InterruptGuard:
    """Holds SIGINT back for the length of a `with` block, and acts on it then, also in place of an error.

    It is without effect outside the main thread.

    Args:
        acts: False if the caller calls `act` itself.

    Attributes:
        noted: Ctrl-C came, or SIGTERM.
    """

    def __init__(self, acts: bool = True) -> None:
        self.noted = False
        self._acts = acts
        self._handler: Handler | None = None
        self._wake_fd = -1
        if threading.current_thread() is threading.main_thread():
            handler = _signal.getsignal(_SIGINT)
            self._handler = handler if callable(handler) else None

    def __enter__(self) -> InterruptGuard:
        if self._handler is not None:
            self._wake_fd = wake_fd()
            _signal.signal(_SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = True
        os.eventfd_write(self._wake_fd, 1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            _signal.signal(_SIGINT, self._handler)
            if self.noted:
                os.eventfd_read(self._wake_fd)
                if self._acts and (kind is None or issubclass(kind, Exception)):
                    self.act()

    def act(self) -> None:
        """Call the handler that Ctrl-C was held back from, if it came; it usually raises."""
        if self.noted and self._handler is not None:
            act(self._handler)

    def poll(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        """Those of `fds` that can be read, once there is one, or nothing after `timeout_s` or Ctrl-C."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self._wake_fd >= 0:
            poll.register(self._wake_fd, select.POLLIN)
        left_ms = math.inf if timeout_s is None else max(0.0, timeout_s) * 1000
        look_ms = _LOOK_MS if self._wake_fd >= 0 else _LONGEST_MS
        while not (found := poll.poll(min(left_ms, look_ms))) and left_ms > look_ms:
            left_ms -= look_ms
        ready = [fd for fd, _ in found]
        if self._wake_fd in ready:
            ready.remove(self._wake_fd)
            if not self.noted:  # a second Ctrl-C came while the guard before this one was taken down
                os.eventfd_read(self._wake_fd)
        return ready

    def patience(self, timeout_s: float | None) -> float | None:
        """How long to wait for another thread before looking at `noted` again."""
        if self._handler is None:
            return timeout_s if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        return _FOLLOWER_S if timeout_s is None else min(timeout_s, _FOLLOWER_S)


class InterruptHandler:
    """Takes SIGINT over for the time of a `with`, and gives it back.

    The first Ctrl-C is only noted, so that no step of the loop is cut in half; it ends a wait, since
    nothing is lost there. The second raises KeyboardInterrupt wherever the program is; those after it
    wait until what it ended is cleaned up: see `held`. SIGTERM counts as one, in a program with a session.
    """

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

    @contextlib.contextmanager
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
                end_if_asked()
            raise KeyboardInterrupt
