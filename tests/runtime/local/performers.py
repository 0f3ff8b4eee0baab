"""Actors that run several calls at once, yield, end themselves; in a module of their own, so that their
workers import little.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import trainkit


class Threaded:
    """Methods that can only end if they run at once, and some that tell where they run."""

    def __init__(self) -> None:
        self.constructed_in = threading.current_thread() is threading.main_thread()
        self.event = threading.Event()
        self.running = 0
        self.most = 0
        self.order: list[int] = []

    def wait_for_event(self) -> bool:
        return self.event.wait(60)

    def set_event(self) -> None:
        self.event.set()

    def where(self) -> tuple[bool, bool]:
        return self.constructed_in, threading.current_thread() is threading.main_thread()

    def count(self, number: int, at_once: int = 1) -> int:
        """Return how many have run at once; the first ones wait until so many do."""
        self.order.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        while self.most < at_once:
            time.sleep(0.001)
        time.sleep(0.02)
        self.running -= 1
        return self.most

    def orders(self) -> list[int]:
        return self.order

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    def leave(self, how: str) -> None:
        if how == "exit_actor":
            trainkit.exit_actor()
        raise SystemExit(5)

    def touch(self, path: Path) -> None:
        time.sleep(0.2)
        path.touch()


class Looped:
    """Coroutine methods, generators and plain methods on an event loop."""

    def __init__(self) -> None:
        self.loop_at_start = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.running = 0
        self.most = 0
        self.order: list[int] = []
        self.ended: list[str] = []

    async def wait_for_event(self) -> bool:
        await self.event.wait()
        return True

    async def set_event(self) -> bool:
        self.event.set()
        return asyncio.get_running_loop() is self.loop_at_start

    async def count(self, number: int, at_once: int = 1) -> int:
        """Return how many have run at once; the first ones wait until so many do."""
        self.order.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        while self.most < at_once:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        self.running -= 1
        return self.most

    def orders(self) -> list[int]:
        return self.order

    async def sleep(self, name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.append(name)

    async def numbers(self, count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
                await asyncio.sleep(0.001)
        finally:
            self.ended.append("numbers")

    def plain_numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    async def where(self) -> tuple[str | None, str | None]:
        await asyncio.sleep(0.01)
        context = trainkit.get_runtime_context()
        return context.get_actor_id(), context.get_task_id()

    async def leave(self, how: str) -> None:
        if how == "exit_actor":
            trainkit.exit_actor()
        raise SystemExit(5)


class Leaver:
    """Ends itself."""

    def __init__(self, at_once: bool = False) -> None:
        if at_once:
            trainkit.exit_actor()

    def pid(self) -> int:
        return os.getpid()

    def leave(self, at_exit: Path | None = None) -> None:
        if at_exit is not None:
            atexit.register(at_exit.touch)
        try:
            trainkit.exit_actor()
        except Exception:
            sys.stderr.write("caught what no handler should catch\n")


class Stepper:
    """Plain generators, in order."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def pid(self) -> int:
        return os.getpid()

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    def endless(self, name: str) -> Iterator[int]:
        number = 0
        try:
            while True:
                yield number
                number += 1
                time.sleep(0.001)
        finally:
            self.closed.append(name)

    def what_closed(self) -> list[str]:
        return self.closed

    def sleep(self, seconds: float, begun: Path | None = None) -> float:
        if begun is not None:
            begun.touch()
        time.sleep(seconds)
        return seconds

    def wait_for(self, begun: Path, until: Path) -> None:
        begun.touch()
        while not until.exists():
            time.sleep(0.005)

    def mark(self, path: Path, _: Any = None) -> None:
        path.touch()

    def die_after(self, count: int) -> Iterator[int]:
        yield from range(count)
        time.sleep(0.1)
        os._exit(7)
