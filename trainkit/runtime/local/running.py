"""Ways of running calls: in order in the main thread, or in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainkit.errors import ConfigError
from trainkit.runtime.local.callers import CallerConnection, SmallCall, parts_of
from trainkit.runtime.local.calls import Calls
from trainkit.runtime.local.channel import Connection
from trainkit.runtime.local.client import LocalEngine
from trainkit.runtime.local.frames import INIT, Frame
from trainkit.runtime.local.interruption import Interruption
from trainkit.runtime.specs import Concurrency


class Host(Protocol):
    """What a way of running sees of its worker."""

    def end(self, error: BaseException) -> None:
        """End the worker as if `error` had been raised in its main thread; from any thread."""

    def wake(self) -> None:
        """Have the main thread look around."""


class Runner(Protocol):
    """Runs calls.

    Attributes:
        unfinished: how many calls it has begun that run beside the main thread's loop.
    """

    unfinished: int

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        """Run a call, or see to it that it is run; in the main thread, in the order in which calls came."""

    def cancelled(self, call_id: int, recursive: bool) -> None:
        """A call is to be stopped; from any thread."""


def limits(concurrency: Concurrency, default: int) -> dict[str | None, int]:
    """How many calls of each group run at once; None stands for methods in no group."""
    found: dict[str | None, int] = {None: concurrency.max_concurrency or default}
    found.update(concurrency.groups)
    return found


def group_error(group: str | None, known: Mapping[str | None, Any], method: str) -> ConfigError:
    """The error for a call in a group that isn't there."""
    names = sorted(name for name in known if name is not None)
    return ConfigError(f"{method}(): the actor has no concurrency group {group!r}; it has {names}")


class InOrder:
    """One at a time, in the main thread: the fast way, and where signals and CUDA want their code."""

    unfinished = 0

    def __init__(self, calls: Calls, engine: LocalEngine, control: Connection) -> None:
        self._calls = calls
        self._engine = engine
        self._interruption = Interruption(calls, control, can_raise=engine.place.actor_id is None)

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        calls, started = self._calls, self._engine.started
        if started:
            started.clear()
        calls.running = frame.call_id
        if self._interruption.missed:  # looked at behind that, so that nothing falls in between
            self._interruption.look()
        if type(frame) is SmallCall:
            calls.run_small(conn, frame)
        else:
            calls.run(conn, frame)
        calls.running = 0
        if calls.cancelled:
            self._clear(frame.call_id)

    def _clear(self, call_id: int) -> None:
        """Forget that a call was cancelled, which has ended; cancel what it has started if it was stopped."""
        recursive = self._calls.cancelled.pop(call_id, False)
        if recursive and self._calls.interrupted == call_id:
            self._engine.cancel_started()

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)
        self._interruption.cancelled(call_id)


class Threads:
    """In daemon threads, a pool for each group; constructed in the main thread, which serves connections."""

    def __init__(self, host: Host, calls: Calls, concurrency: Concurrency) -> None:
        self._host = host
        self._calls = calls
        self._lock = threading.Lock()
        self._pools = {
            group: _Pool(f"trainkit-{group or 'calls'}", limit, host.end)
            for group, limit in limits(concurrency, 1).items()
        }
        self.unfinished = 0

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        if frame.kind == INIT:
            self._calls.run(conn, frame)
            return
        try:
            parts = parts_of(frame)
            group = parts[5] if len(parts) > 5 else None
            pool = self._pools.get(group)
            if pool is None:
                raise group_error(group, self._pools, parts[1])
        except Exception as error:
            self._calls.refuse(conn, frame, error)
            return

        def work() -> None:
            self._calls.carry_out(conn, frame.kind, frame.call_id, *parts)
            with self._lock:
                self.unfinished -= 1
                idle = self.unfinished == 0
            if idle:  # the last handle may have gone meanwhile
                self._host.wake()

        with self._lock:
            self.unfinished += 1
        pool.add(work)

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)


class _Pool:
    """Up to `limit` threads, started as they are needed, that take work in the order in which it came."""

    def __init__(self, name: str, limit: int, on_exit: Callable[[BaseException], None]) -> None:
        self._name = name
        self._limit = limit
        self._on_exit = on_exit
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._count = 0

    def add(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle or self._count == self._limit:
                self._changed.notify()
                return
            self._count += 1
        threading.Thread(target=self._loop, name=f"{self._name}-{self._count}", daemon=True).start()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._work:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                work = self._work.popleft()
            try:
                work()
            except BaseException as error:  # SystemExit, exit_actor: the actor's end, not the thread's
                self._on_exit(error)
                return
            del work  # and with it the connection and the arguments
