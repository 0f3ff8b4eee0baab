"""Threads that answer requests: which requests wait for which, and which share an answer."""

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
"""Requests at once that read one experiment, of the 40 threads that there are for all."""
MAX_BESIDE = 8
"""Traces at once, and commands at once, beside the questions that are asked in turn."""
NICE = 10
"""Priority of threads that stand back for the programs that run, as `nice` has it."""

T = TypeVar("T")


class BusyError(Exception):
    """Request that this server carries out later, as too many like it are under way."""


class Threads:
    """Threads of one server. Each kind of work has its own, so that none of them holds up another.

    A session is asked one question at a time: the next one waits, without a thread, until the one before is
    answered. Traces and commands may take long, and run beside these, up to MAX_BESIDE of each.
    """

    def __init__(self) -> None:
        self._waiting = ThreadPoolExecutor(3 * MAX_BESIDE, "trainkit-dashboard-waits")
        self._looking = ThreadPoolExecutor(4, "trainkit-dashboard-looks", stand_back)
        self._beside = Counter[str]()
        self._limits = WeakValueDictionary[str, asyncio.Semaphore]()
        self._answers = WeakValueDictionary[Hashable, _SharedAnswer]()

    async def share(self, asked: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what `make` returns, or raise its error: called here, or by another who asks for the same.

        All pages hear of a change at once, and ask for the same then. Who asks while an answer is being made
        gets the next one, since that one may lack the newest: this takes as long as two at most.
        """
        shared = self._answers.setdefault(asked, _SharedAnswer())
        begun = shared.begun
        try:
            async with shared.lock:
                if shared.begun == begun:
                    await asyncio.sleep(0)  # those who ask at this very moment have come by then
                    shared.begun += 1
                    shared.made = asyncio.ensure_future(make())
                    shared.made.add_done_callback(_take_note)
                # It is made for the others too, where this one goes away.
                made: T = await asyncio.shield(shared.made)
                return made
        finally:
            del shared  # the traceback of an error would keep it

    async def read(self, function: Callable[[], T], experiment: str | None) -> T:
        """Run a function that reads an experiment, or none, in a thread."""
        if experiment is None:
            return await run_in_threadpool(function)
        async with self._limit(f"read {experiment}", MAX_READERS):
            return await run_in_threadpool(function)

    async def look(self, function: Callable[[], T], watched: str) -> T:
        """Run a function that looks for changes of something, one at a time, in a thread that stands back."""
        async with self._limit(f"look at {watched}", 1):
            return await asyncio.get_running_loop().run_in_executor(self._looking, function)

    async def ask(self, function: Callable[[], T], session: str) -> T:
        """Run a function that asks a session, after the questions before it."""
        async with self._limit(f"ask {session}", 1):
            return await asyncio.get_running_loop().run_in_executor(self._waiting, function)

    async def wait(self, function: Callable[[], T], kind: str) -> T:
        """Run a function that waits for another process, beside others of its kind.

        Args:
            function: to run.
            kind: "traces" or "commands".

        Raises:
            BusyError: MAX_BESIDE of this kind run already.
        """
        if self._beside[kind] == MAX_BESIDE:
            raise BusyError(f"{MAX_BESIDE} {kind} are under way already: ask again when one of them is there")
        self._beside[kind] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._waiting, function)
        finally:
            self._beside[kind] -= 1

    def close(self) -> None:
        """Wait for what runs; nothing else begins."""
        self._waiting.shutdown(cancel_futures=True)
        self._looking.shutdown(cancel_futures=True)

    def _limit(self, work: str, at_once: int) -> asyncio.Semaphore:
        """Return the semaphore of some work, which lets so many requests do it at once."""
        return self._limits.setdefault(work, asyncio.Semaphore(at_once))


class _SharedAnswer:
    """Answer for all who ask for the same at a time.

    Attributes:
        lock: held by who makes the answer, or takes it.
        begun: how many answers were begun.
        made: the last of them.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.begun = 0
        self.made: asyncio.Future[Any]


def _take_note(made: asyncio.Future[Any]) -> None:
    """Look at the error of an answer that nobody waits for any more, so that asyncio does not print it."""
    if not made.cancelled():
        made.exception()


def stand_back() -> None:
    """Let this thread, and those that it starts from now on, stand back for the programs that run."""
    if sys.platform == "linux":  # elsewhere it is the whole process that has a priority
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
