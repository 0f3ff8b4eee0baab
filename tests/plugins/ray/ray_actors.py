"""What workers of Ray's run in tests; in a module of its own, so that they import little."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trainkit


class Many:
    """One method for each thing that a test asks of an actor."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def note(self, value: Any) -> list[Any]:
        self.notes.append(value)
        return self.notes

    def count(self, number: int) -> Iterator[int]:
        yield from range(number)

    def folder(self) -> str:
        return os.getcwd()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class Loop:
    """An actor on an event loop."""

    async def double(self, refs: list[Any]) -> int:
        return 2 * int(await refs[0])


def fail_until(mark: str, count: int, error: type[Exception]) -> int:
    """Raise `error` in all but the `count`th call with this mark."""
    with open(mark, "a+") as file:
        file.write(".")
        file.seek(0)
        calls = len(file.read())
    if calls < count:
        raise error(f"call {calls}")
    return calls


def die_until(mark: str, count: int) -> int:
    """End the process in all but the `count`th call with this mark."""
    try:
        return fail_until(mark, count, LookupError)
    except LookupError:
        os._exit(1)


def sleep_long(mark: str) -> None:
    Path(mark).touch()
    while True:  # Ray's interrupt waits for a call into C, such as one long sleep, to return
        time.sleep(0.02)


def pid() -> int:
    return os.getpid()


def nested(depth: int) -> int:
    """Tasks that start tasks, and a value that is put by the innermost."""
    if depth == 0:
        return int(trainkit.get(trainkit.put(1)))
    trainkit.init()  # in a worker without effect
    return 1 + int(trainkit.get(trainkit.remote(nested).options(num_cpus=0).remote(depth - 1)))
