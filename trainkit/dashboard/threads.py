"""Threads that answer requests: which requests wait for which, and which share an answer."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

MAX_READERS = 8
"""Requests at once that read one experiment, of the 40 threads that there are for all."""
MAX_BESIDE = 8
"""Requests at once that wait for another process beside those that are asked in turn."""
NICE = 10
"""How far looks stand back for the programs that they look at, as `nice` has it."""

T = TypeVar("T")


class BusyError(Exception):
    """Request that this server carries out later, as too many like it are under way."""


class Threads:
    """Threads of one server, for each kind of work its own, so that none of them holds up another.

    Of what is asked one question at a time, such as a session, the next question waits for the answer to the
    one before, and takes no thread by then. Those beside them, such as traces, may take minutes each: half of
    the threads that wait are kept from them.
    """

    def __init__(self) -> None:
        self._waiting = ThreadPoolExecutor(2 * MAX_BESIDE, "trainkit-dashboard-waits")
        self._looking = ThreadPoolExecutor(4, "trainkit-dashboard-looks", _stand_back)
        self._beside = 0
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()
        self._lines = WeakValueDictionary[Hashable, _Line]()

    async def share(self, asked: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what `make` returns, or raise its error: called here, or by another who asks for the same.

        Pages hear of a change at once, and ask for the same then. No answer was begun before it was asked
        for, so it is as new as one's own.
        """
        line = self._lines.setdefault(asked, _Line())
        begun = line.begun
        try:
            async with line.turn:
                if line.begun == begun:
                    await asyncio.sleep(0)  # those who ask at this very moment have come by then
                    line.begun += 1
                    line.made = asyncio.ensure_future(make())
                # It is made for the others too, where this one goes away.
                made: T = await asyncio.shield(line.made)
                return made
        finally:
            del line  # the traceback of an error would keep it

    async def read(self, function: Callable[[], T], experiment: str | None) -> T:
        """Run a function that reads an experiment, or none, in a thread."""
        if experiment is None:
            return await run_in_threadpool(function)
        async with self._turn(f"read {experiment}", MAX_READERS):
            return await run_in_threadpool(function)

    async def look(self, function: Callable[[], T], watched: str) -> T:
        """Run a function that looks for changes in a thread that stands back, after the looks before."""
        async with self._turn(f"look at {watched}"):
            return await asyncio.get_running_loop().run_in_executor(self._looking, function)

    async def wait(self, function: Callable[[], T], asked: str) -> T:
        """Run a function that waits for another process; for `asked`, unless it is '', after those before.

        Raises:
            BusyError: as many as may be run beside others already.
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._waiting, function)
        if asked:
            async with self._turn(f"ask {asked}"):
                return await run()
        if self._beside == MAX_BESIDE:
            raise BusyError(
                f"{MAX_BESIDE} traces or commands are under way already: ask again when one of them is there"
            )
        self._beside += 1
        try:
            return await run()
        finally:
            self._beside -= 1

    def close(self) -> None:
        """Wait for what runs; nothing else begins."""
        self._waiting.shutdown(cancel_futures=True)
        self._looking.shutdown(cancel_futures=True)

    def _turn(self, asked: str, at_once: int = 1) -> asyncio.Semaphore:
        """Return what lets so many at once do something; those behind them wait in no thread."""
        return self._turns.setdefault(asked, asyncio.Semaphore(at_once))


class _Line:
    """Those who ask for one thing at a time.

    Attributes:
        turn: of who makes the answer, or takes it.
        begun: how many answers were begun.
        made: the last of them.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.begun = 0
        self.made: asyncio.Future[Any]


def _stand_back() -> None:
    if sys.platform == "linux":  # elsewhere it is the whole process that has a priority
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, os.nice(0) + NICE))
