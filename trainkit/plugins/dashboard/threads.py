"""Threads that answer requests, with limits for the number of concurrent requests.

Equal requests share an answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

MAX_READERS = 8
"""Maximum number of concurrent requests that read the same experiment; all such requests share 40 threads."""
MAX_BESIDE = 8
"""Maximum number of concurrent traces, and of concurrent commands; requests to sessions are limited
separately."""
NICE = 10
"""Nice value of the threads that check for changes, so that other programs have a higher priority."""

T = TypeVar("T")


class BusyError(Exception):
    """Too many requests of this kind are running; the client can retry later."""


class Threads:
    """Threads of one server. Different kinds of work use different threads, so that no kind blocks another
    kind.

    Each session receives only one request at a time. A request that waits for the answer to the previous
    request does not occupy a thread. Traces and commands may take long, so up to MAX_BESIDE traces and up to
    MAX_BESIDE commands run concurrently.
    """

    def __init__(self) -> None:
        self._waiting = ThreadPoolExecutor(3 * MAX_BESIDE, "trainkit-dashboard-waits")
        self._looking = ThreadPoolExecutor(4, "trainkit-dashboard-looks", stand_back)
        self._beside = Counter[str]()
        self._limits = WeakValueDictionary[str, asyncio.Semaphore]()
        self._answers = WeakValueDictionary[Hashable, _SharedAnswer]()

    async def share(self, asked: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `make()`, or raise its error. Concurrent equal requests share one call of
        `make`.

        All pages notice a change at the same time, and then send equal requests. A request that arrives
        during a call receives the result of the next call, because the running call may miss the newest
        change. Therefore, a request waits for at most two calls.
        """
        shared = self._answers.setdefault(asked, _SharedAnswer())
        begun = shared.begun
        try:
            async with shared.lock:
                if shared.begun == begun:
                    # During this pause, equal requests of the same moment can join before the call begins.
                    await asyncio.sleep(0)
                    shared.begun += 1
                    shared.made = asyncio.ensure_future(make())
                    shared.made.add_done_callback(_take_note)
                # If this request is cancelled, the call continues, because other requests may wait for its
                # result.
                made: T = await asyncio.shield(shared.made)
                return made
        finally:
            del shared  # Without this line, the traceback of an error would keep the object in memory.

    async def read(self, function: Callable[[], T], experiment: str | None) -> T:
        """Run a function in a thread; `experiment` names the experiment that it reads, or is None."""
        if experiment is None:
            return await run_in_threadpool(function)
        async with self._limit(f"read {experiment}", MAX_READERS):
            return await run_in_threadpool(function)

    async def look(self, function: Callable[[], T], watched: str) -> T:
        """Run a check for changes in a background thread, at most one check at a time for each `watched`."""
        async with self._limit(f"look at {watched}", 1):
            return await asyncio.get_running_loop().run_in_executor(self._looking, function)

    async def ask(self, function: Callable[[], T], session: str) -> T:
        """Run a function that sends a request to a session, after all earlier requests to this session."""
        async with self._limit(f"ask {session}", 1):
            return await asyncio.get_running_loop().run_in_executor(self._waiting, function)

    async def wait(self, function: Callable[[], T], kind: str) -> T:
        """Run a function that waits for another process; other functions may run at the same time.

        Args:
            function: function to run.
            kind: "traces" or "commands".

        Raises:
            BusyError: MAX_BESIDE functions of this kind are already running.
        """
        if self._beside[kind] == MAX_BESIDE:
            raise BusyError(f"{MAX_BESIDE} {kind} are already running: try again when one has finished")
        self._beside[kind] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._waiting, function)
        finally:
            self._beside[kind] -= 1

    def close(self) -> None:
        """Wait until running functions have ended, and cancel functions that have not begun."""
        self._waiting.shutdown(cancel_futures=True)
        self._looking.shutdown(cancel_futures=True)

    def _limit(self, work: str, at_once: int) -> asyncio.Semaphore:
        return self._limits.setdefault(work, asyncio.Semaphore(at_once))


class _SharedAnswer:
    """Answer that concurrent equal requests share.

    Attributes:
        lock: held while the answer is computed or awaited.
        begun: number of calls that have begun.
        made: future of the latest call's result.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.begun = 0
        self.made: asyncio.Future[Any]


def _take_note(made: asyncio.Future[Any]) -> None:
    """Retrieve the error of a result that no request waits for; otherwise, asyncio would print the error."""
    if not made.cancelled():
        made.exception()


def stand_back() -> None:
    """Lower the priority of this thread, and of threads that it will start, below other programs."""
    if sys.platform == "linux":  # Only Linux has a separate priority for each thread.
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
