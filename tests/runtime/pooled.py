"""Actors for pools and queues; in a module of their own, so that their workers import little."""

from __future__ import annotations

import os
from typing import Any

from trainkit.runtime.api import method
from trainkit.util.queue import Full, Queue


class Doubler:
    @method
    def double(self, value: int) -> int:
        return value * 2

    @method
    def refuse(self, value: int) -> int:
        if value == 1:
            raise LookupError(f"not {value}")
        return value

    @method
    def after(self, gate: Any, value: int) -> int:
        """`value`, once `gate` (a reference as an argument) has its own."""
        return value


class Gate:
    """Its call ends when a file appears: what waits for it, waits for the test."""

    @method
    def open_when(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY)  # of a named pipe: blocks until the test opens the other end
        os.close(fd)


def put_all(queue: Queue, values: list[int]) -> int:
    for value in values:
        queue.put(value)
    return len(values)


def take(queue: Queue, count: int) -> list[int]:
    return [queue.get(timeout=60) for _ in range(count)]


def is_full(queue: Queue) -> bool:
    """What `except Full` sees in a worker."""
    try:
        queue.put_nowait(0)
    except Full:
        return True
    return False
