"""Handling of SIGINT, and of signals that announce the end of a job: deferral during waits and transfers,
and coordination of a session's processes.

Slurm and systemd send a signal before the end of a job to every process of the job at once. The program
decides which processes end, and when. The session's node keeps the signal pending, so that a worker can see
that the whole job received the signal. Processes of a `DataLoader` or a pool ignore these signals, and end
with their parent.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import importlib
import math
import multiprocessing.process
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from trainkit.clock import SYSTEM
from trainkit.settings import NUMBERS, SESSION_MARK, PreemptSettings

EXIT_CODE = 128 + signal.SIGTERM

Handler = Callable[[int, FrameType | None], Any]


class _State:
    asked = 0
    """Signal that arrived and was deferred; 0 if no signal arrived."""
    timer: threading.Timer | None = None
    settings: PreemptSettings | None = None
    notice = ""
    """Path of the file that tells this session's processes of a signal; "" without a session."""
    is_polled = False
    """True if the program has called `is_preempted`. The first signal then raises no exception."""
    leads = False
    """True in a program with a session, and in the session's workers.

    Pools and loaders of these processes ignore signals.
    """
    has_stopped = False
    """True once `stop_before_s` has ended the program, which happens at most once."""


_masks = threading.local()
"""Signal mask of a thread before a fork, which is restored after the fork."""


def configure(settings: PreemptSettings) -> None:
    """Store settings for later calls of `take_over`, which override the environment variables."""
    _State.settings = settings


def is_default() -> bool:
    """Return True if SIGTERM has its default effect in this program and this thread may install a handler."""
    if not _may_set_handlers():
        return False
    return signal.getsignal(signal.SIGTERM) is _on_signal or _is_free(signal.SIGTERM)


def _is_free(number: int) -> bool:
    # `getsignal` does not know of handlers in C, such as the handler of `faulthandler.register`.
    return signal.getsignal(number) is signal.SIG_DFL and not _has_signal("self", b"SigCgt:", number)


def _may_set_handlers() -> bool:
    return threading.current_thread() is threading.main_thread() and not _is_over()


def take_over(sigterm: bool = True) -> None:
    """End this program cleanly on signals and before the end of the job, until `give_back` is called.

    This function has no effect outside the main thread.

    Args:
        sigterm: False if SIGTERM had another handler when the session began.
    """
    if not _may_set_handlers():
        return
    settings = _State.settings or PreemptSettings.of()
    _give_back_at_end()
    _watch_forks()
    _lead_children()
    _State.leads = True
    if not _State.is_polled:
        _State.asked = 0
    for number in settings.numbers:
        if sigterm if number == signal.SIGTERM else _is_free(number):
            signal.signal(number, _on_signal)
    if settings.stop_at is not None and _State.timer is None and not _State.has_stopped:
        left_s = min(max(0.0, settings.stop_at - SYSTEM.now()), threading.TIMEOUT_MAX)
        _State.timer = timer = threading.Timer(left_s, _stop)
        timer.daemon = True
        timer.start()


def _stop() -> None:
    _State.has_stopped = True
    os.kill(os.getpid(), signal.SIGTERM)


_NOTICE = "preempted"
"""File in the session's folder that exists once a signal has announced the end of the job."""
_NO_NOTICE = "not_preempted"
"""Name of the file before the signal arrives. Renaming the file needs no descriptor and no disk space."""


def tell_session(folder: Path) -> None:
    """Let `is_preempted` be True in the processes of the session with this folder, once a signal arrives."""
    _State.notice = str(folder / _NOTICE)
    (folder / _NO_NOTICE).touch(0o600)
    (folder / _NOTICE).unlink(missing_ok=True)  # a parked session may have the file of an earlier signal


def announce() -> None:
    """Report a signal to all processes of the session."""
    # The file is missing if a signal was reported before, or if the session has ended. Any other error of the
    # file system is also ignored, as an error in this handler must not replace the program's clean end.
    with contextlib.suppress(OSError):
        if _State.notice:
            os.rename(os.path.join(os.path.dirname(_State.notice), _NO_NOTICE), _State.notice)


def is_preempted() -> bool:
    """Return True if a signal has announced the end of the job to this program or to the session's program.

    After the first call of this function, the first signal no longer ends this process.
    """
    session = os.environ.get(SESSION_MARK)
    if not _State.is_polled and _may_set_handlers():
        _State.is_polled = True
        if session is None:
            take_over(is_default())
        for number in NUMBERS if session is not None else ():
            if _is_free(number):
                signal.signal(number, _ignore)
    return bool(_State.asked) or (session is not None and os.path.exists(os.path.join(session, _NOTICE)))


def give_back() -> None:
    """Restore the default effect of signals, unless another handler has been installed since.

    A program that calls `is_preempted` keeps its handlers.
    """
    if not _State.is_polled:
        _give_back()


def _give_back() -> None:
    _State.leads = False
    timer, _State.timer = _State.timer, None
    if timer is not None:
        timer.cancel()
    if threading.current_thread() is threading.main_thread():
        for number in NUMBERS:
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, signal.SIG_DFL)


node = 0
"""Pid of the session's node; 0 if there is no node."""
_JOB_S = 1.0
"""Seconds by which the node may receive SIGTERM later than other processes of its job."""
_LOOK_S = 0.01
KEPT_S = 10.0
"""Seconds by which a worker may handle SIGTERM later than the node, for example while C code runs."""


def keep_pending() -> None:
    """Keep signals pending in this process, a node or template process, which ends with its program."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, NUMBERS)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Keep signals pending in this thread, and in processes that it starts, while the block runs."""
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, NUMBERS)
    try:
        yield
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def take_pending(numbers: Collection[int]) -> None:
    """Clear pending signals, so that a later SIGTERM to a worker is known to be for that worker only."""
    while _signal.sigtimedwait(numbers, 0):
        pass


def keep_no_longer() -> None:
    """Stop blocking SIGTERM, so that a pending SIGTERM takes effect."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGTERM,))


def is_of_job(number: int) -> bool:
    """Return True if every process of the job received the signal, so that the node received it too."""
    if number not in NUMBERS or not node:
        return False
    latest = SYSTEM.monotonic() + _JOB_S
    while not (is_pending := _has_signal(node, b"ShdPnd:", number)) and SYSTEM.monotonic() < latest:
        SYSTEM.sleep(_LOOK_S)
    return is_pending


def hand_on(send: Callable[[int], None]) -> None:
    """Forward signals with `send`, except a signal that the whole job received."""
    for number in (signal.SIGINT, *NUMBERS):
        signal.signal(number, lambda number, _: None if is_of_job(number) else send(number))


def _has_signal(pid: int | str, key: bytes, number: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        found = file.read().partition(key)[2].split(maxsplit=1)
        return bool(found) and bool(int(found[0], 16) >> (number - 1) & 1)
    return False


def serve_program() -> None:
    """End this worker at a SIGTERM that only this worker received.

    The program decides about all other signals, and about a SIGTERM that the whole job received.
    """
    _watch_forks()
    _lead_children()
    _State.leads = True
    signal.signal(signal.SIGTERM, _on_signal_of_worker)
    for number in NUMBERS[1:]:
        signal.signal(number, _ignore)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, NUMBERS)


def restore_defaults() -> None:
    """Restore the default handlers, so that signals act on this worker as on an independent program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing at a signal.

    Unlike SIG_IGN, a handler is not inherited by programs that this process starts.
    """


def _on_signal_of_worker(number: int, frame: FrameType | None) -> None:
    # If a handler of the user has replaced this handler and calls it, the user's handler decides.
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
    # `give_back` must run before Python waits for threads, as a signal at the start of
    # the wait would be lost.
    threading._register_atexit(_give_back)  # type: ignore[attr-defined]


def _before_fork() -> None:
    _masks.before = _signal.pthread_sigmask(_signal.SIG_BLOCK, NUMBERS)


def _after_fork_in_parent() -> None:
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _masks.before)


def _after_fork_in_child() -> None:
    # Garbage of the parent may need threads that a fork does not copy, such as a process group's. Collecting
    # this garbage would crash the child, for example a loader's process that is forked after a failed step.
    gc.freeze()
    # A child that user code forks has no session. Signals must end the child at once, because a Python
    # handler may never run in the child. Signals are blocked until the default handlers are set.
    for number in filter(_is_ours, NUMBERS):
        _signal.signal(number, _signal.SIG_DFL)
    _State.asked, _State.timer, _State.is_polled = 0, None, False
    _after_fork_in_parent()


def _is_ours(number: int) -> bool:
    return _signal.getsignal(number) in (_on_signal, _on_signal_of_worker, _ignore)


_LED = frozenset(
    {
        "concurrent.futures.process",
        "multiprocessing.pool",
        "torch.utils.data._utils.worker",
        "torchdata.stateful_dataloader.worker",
    }
)
"""Modules whose processes end only when their parent ends them, or when they notice its death."""

_END_LED = getattr(signal, "SIGRTMAX", signal.SIGTERM) - 2
"""Signal that follows the SIGTERM of `Process.terminate`, so that it differs from a SIGTERM to the job."""
_PARENT_S = 1.0
"""Seconds between two checks of a process that its parent is alive."""


class _LedTarget:
    """Function that a process of `multiprocessing` runs, with the signals of a job ignored.

    Args:
        target: function of one of the modules in `_LED`.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_END_LED,))
        # A pipe would not show the parent's end, because forked processes keep each other's pipes to the
        # parent open.
        threading.Thread(target=_watch_parent, name="trainkit-parent", daemon=True).start()
        # torch's processes first call a function that sets torch's own handler for SIGTERM.
        torch: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
        if torch is None or "torch" not in self._target.__module__:
            _ignore_all()
        else:
            torch._set_worker_signal_handlers = functools.partial(
                _ignore_all, torch._set_worker_signal_handlers
            )
        return self._target(*args, **kwargs)


def _watch_parent() -> None:
    """End this process with its parent, and at `terminate` if the user has set no handler for SIGTERM."""
    parent: Any = multiprocessing.process.parent_process()
    try:
        fd = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(1)
    while not select.select([fd], [], [], 0)[0]:
        is_told = _signal.sigtimedwait((_END_LED,), _PARENT_S)
        if is_told and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _ignore):
            break
    os._exit(1)


def _ignore_all(set_others: Callable[[], None] = lambda: None) -> None:
    """Ignore signals for which the user has set no handler, in addition to the handlers of `set_others`."""
    set_others()
    for number in NUMBERS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ignore)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, NUMBERS)


@functools.cache
def _lead_children() -> None:
    """Let processes that modules of `_LED` start ignore the signals of a job.

    `multiprocessing` has no hook for this, so `Process.start` and `Process.terminate` are replaced. The
    replacements work only on Linux.
    """
    if sys.platform != "linux":
        return
    process: Any = multiprocessing.process.BaseProcess
    start, terminate = process.start, process.terminate

    def start_led(self: Any) -> None:
        # After a session, a signal to the job ends this process, and so must end its children.
        if getattr(self._target, "__module__", None) not in _LED or not _State.leads:
            start(self)
            return
        self._target = _LedTarget(self._target)
        # The child inherits the mask, so that no signal ends it before its handlers are set. A fork server
        # would keep the mask for all later children.
        how = type(self)._start_method or multiprocessing.get_start_method()
        with held() if how != "forkserver" else contextlib.nullcontext():
            start(self)
        self._is_led = True

    def terminate_led(self: Any) -> None:
        terminate(self)
        if getattr(self, "_is_led", False) and self._popen.returncode is None:
            os.kill(self.pid, _END_LED)

    process.start, process.terminate = start_led, terminate_led


def is_asked() -> bool:
    """Return True if a signal arrived and was deferred."""
    return bool(_State.asked)


def end_if_asked() -> None:
    """Raise SystemExit if a signal arrived and was deferred."""
    if _State.asked:
        raise SystemExit(128 + _State.asked)


def act(handler: Handler) -> None:
    """Act on a deferred signal. `handler` is the previous SIGINT handler."""
    if not _holds(handler):
        end_if_asked()
    handler(signal.SIGINT, None)


def _holds(handler: Any) -> bool:
    """Return True if the handler belongs to an object that defers signals."""
    return isinstance(getattr(handler, "__self__", None), InterruptGuard | InterruptHandler)


def _is_over() -> bool:
    """Return True if Python is ending this program, and so waits for threads or calls exit functions."""
    return getattr(threading, "_SHUTTING_DOWN", False) or not threading.main_thread().is_alive()


_AGAIN_S = 0.01
_WEAKREF = weakref.finalize.__call__.__code__.co_filename


def _is_in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == _WEAKREF:
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    SYSTEM.sleep(_AGAIN_S)
    os.kill(os.getpid(), number)


def _on_signal(number: int, frame: FrameType | None) -> None:
    # Python ignores exceptions in finalizers, so the signal must act after them. `threading` takes locks,
    # which the finalizer may have interrupted.
    if _is_in_finalizer(frame):
        _thread.start_new_thread(_send_again, (number,))
        return
    # In an ending program, an exception would not be caught, and Python would print it. The node ends the
    # session after the program.
    if _is_over():
        _end_by(number)
        return
    is_first = not _State.asked
    _State.asked = _State.asked or number
    announce()
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and _holds(handler):
        handler(signal.SIGINT, frame)
    elif not (is_first and _State.is_polled):
        end_if_asked()


_SIGINT = int(signal.SIGINT)
_signal: Any = importlib.import_module("_signal")
"""Functions that `signal` wraps. The wrappers make enums, which costs some microseconds in each wait."""

_LOOK_MS = 500
"""Interval at which a wait lets Python check for signals, as signals to other threads don't end a wait."""
_LONGEST_MS = 2**31 - 1
_FOLLOWER_S = 0.05
"""Longest delay in seconds until a wait for another thread notices Ctrl-C."""


@functools.cache
def wake_fd() -> int:
    """Return the descriptor that ends a wait when data arrives on it.

    One descriptor for each process is enough, because only the main thread uses it.
    """
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


# A forked child must not share its parent's descriptor, as Ctrl-C reaches both processes.
os.register_at_fork(after_in_child=wake_fd.cache_clear)


class InterruptGuard:
    """Context manager that defers SIGINT until its block ends. The manager then acts on SIGINT even if the
    block raised an Exception.

    The guard has no effect outside the main thread.

    Args:
        acts: False if the caller will call `act` itself.

    Attributes:
        noted: True if Ctrl-C or a signal of the job arrived.
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
        """Call the original handler if Ctrl-C arrived. The handler usually raises."""
        if self.noted and self._handler is not None:
            act(self._handler)

    def poll(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        """Wait until some of `fds` are readable, and return the readable descriptors.

        Return [] after `timeout_s` or Ctrl-C.
        """
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
            if not self.noted:  # a second Ctrl-C arrived while the previous guard ended
                os.eventfd_read(self._wake_fd)
        return ready

    def patience(self, timeout_s: float | None) -> float | None:
        """Return the seconds to wait for another thread before `noted` must be checked again."""
        if self._handler is None:
            return timeout_s if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        return _FOLLOWER_S if timeout_s is None else min(timeout_s, _FOLLOWER_S)


class InterruptHandler:
    """Context manager that handles SIGINT, and restores the previous handler at the end of its block.

    The first Ctrl-C is only counted, so that steps of the program's loop are not interrupted. However, the
    first Ctrl-C ends a wait in `end_wait`, because no data can be lost there. The second Ctrl-C raises
    KeyboardInterrupt anywhere in the program. A further Ctrl-C is deferred until the cleanup is done; see
    `held`. In a program with a session, SIGTERM counts as a Ctrl-C.
    """

    def __init__(self) -> None:
        self.count = 0
        self._told = 0
        self._waiting = False
        self._held = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread receives signals
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Restore the previous handler of SIGINT, when the cleanup is done."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def act(self) -> None:
        """Act on Ctrl-C that was only counted, after the end of the block."""
        handler = signal.getsignal(signal.SIGINT)
        if self.count and callable(handler):
            act(handler)

    def news(self) -> bool:
        """Return True if Ctrl-C arrived since the last call."""
        is_new, self._told = self.count > self._told, self.count
        return is_new

    def end_wait(self, wait: Callable[[], None]) -> None:
        """Call the function `wait`, which must do nothing but wait. The first Ctrl-C ends the wait."""
        try:
            self._waiting = True
            if self.count == self._told:  # if Ctrl-C has just arrived, the wait would hide it
                wait()
            self._waiting = False
        except KeyboardInterrupt:
            self._waiting = False
            if self.count != 1:
                raise

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Count Ctrl-C without raising an exception while the `with` block runs."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self._held and (self.count > 1 or self._waiting):
            # A third Ctrl-C must not interrupt the cleanup that follows the second Ctrl-C.
            self._held = self.count > 1
            if self._held:
                end_if_asked()
            raise KeyboardInterrupt
