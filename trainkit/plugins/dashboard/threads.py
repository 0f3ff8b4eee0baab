"""Threads that answer requests: limits for concurrent requests, and shared answers to equal requests."""

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
"""Maximum number of concurrent requests that read one experiment; all requests share 40 threads."""
MAX_BESIDE = 8
"""Maximum number of concurrent traces, and of concurrent commands; requests to sessions are separate."""
NICE = 10
"""Nice value of background threads, so that running programs take precedence."""

T = TypeVar("T")


class BusyError(Exception):
    """Too many requests of this kind are running; the client can retry later."""


class Threads:
    """Threads of one server. Each kind of work has its own threads, so that no kind blocks another.

    A session receives one request at a time. The next request waits for the previous answer, without
    occupying a thread. Traces and commands may take long, so up to MAX_BESIDE of each run concurrently.
    """

    def __init__(self) -> None:
        self._waiting = ThreadPoolExecutor(3 * MAX_BESIDE, "trainkit-dashboard-waits")
        self._looking = ThreadPoolExecutor(4, "trainkit-dashboard-looks", stand_back)
        self._beside = Counter[str]()
        self._limits = WeakValueDictionary[str, asyncio.Semaphore]()
        self._answers = WeakValueDictionary[Hashable, _SharedAnswer]()

    async def share(self, asked: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `make`, or raise its error. Concurrent equal requests share one call.

        All pages notice a change at the same time, and then send equal requests. A request that arrives
        during a call gets the result of the next call, because the running call may miss the newest change.
        So a request waits for at most two calls.
        """
        shared = self._answers.setdefault(asked, _SharedAnswer())
        begun = shared.begun
        try:
            async with shared.lock:
                if shared.begun == begun:
                    await asyncio.sleep(0)  # the pause lets requests of the same moment arrive
                    shared.begun += 1
                    shared.made = asyncio.ensure_future(make())
                    shared.made.add_done_callback(_take_note)
                # The call continues for the other requests if this request is cancelled.
                made: T = await asyncio.shield(shared.made)
                return made
        finally:
            del shared  # otherwise, the traceback of an error would keep the answer alive

    async def read(self, function: Callable[[], T], experiment: str | None) -> T:
        """Run a function in a thread; `experiment` is the experiment that it reads, or None."""
        if experiment is None:
            return await run_in_threadpool(function)
        async with self._limit(f"read {experiment}", MAX_READERS):
            return await run_in_threadpool(function)

    async def look(self, function: Callable[[], T], watched: str) -> T:
        """Check for changes in a background thread, with one check at a time for each `watched`."""
        async with self._limit(f"look at {watched}", 1):
            return await asyncio.get_running_loop().run_in_executor(self._looking, function)

    async def ask(self, function: Callable[[], T], session: str) -> T:
        """Run a function that sends a request to a session, after all earlier requests to the session."""
        async with self._limit(f"ask {session}", 1):
            return await asyncio.get_running_loop().run_in_executor(self._waiting, function)

    async def wait(self, function: Callable[[], T], kind: str) -> T:
        """Run a function that waits for another process, concurrently with others of its kind.

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
        """Wait for running functions; start no more."""
        self._waiting.shutdown(cancel_futures=True)
        self._looking.shutdown(cancel_futures=True)

    def _limit(self, work: str, at_once: int) -> asyncio.Semaphore:
        """Return the semaphore that lets `at_once` requests do this work concurrently."""
        return self._limits.setdefault(work, asyncio.Semaphore(at_once))


class _SharedAnswer:
    """Answer that is computed once for identical concurrent requests.

    Attributes:
        lock: lock for making or reading the answer.
        begun: number of calls that were begun.
        made: answer of the latest call.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.begun = 0
        self.made: asyncio.Future[Any]


def _take_note(made: asyncio.Future[Any]) -> None:
    """Read the error of an answer that no request waits for, so that asyncio does not print it."""
    if not made.cancelled():
        made.exception()


def stand_back() -> None:
    """Lower the priority of this thread, and of threads that it starts, below that of running programs."""
    if sys.platform == "linux":  # other systems have priorities only for whole processes
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
