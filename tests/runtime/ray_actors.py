"""What workers of Ray's run in tests; in a module of its own, so that they import little."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import trainkit


class Many:
    """One method for each thing that a test asks of an actor."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def note(self, value: Any) -> list[Any]:
        self.notes.append(value)
        return self.notes

    def where(self) -> dict[str, Any]:
        context = trainkit.get_runtime_context()
        return {
            "actor": context.get_actor_id(),
            "task": context.get_task_id(),
            "restarted": context.was_current_actor_reconstructed,
            "resources": context.get_assigned_resources(),
            "namespace": context.namespace,
        }

    def die(self) -> None:
        os._exit(3)

    def die_once(self, mark: str) -> int:
        if not Path(mark).exists():
            Path(mark).touch()
            os._exit(3)
        return os.getpid()

    def leave(self) -> None:
        trainkit.exit_actor()

    def count(self, number: int) -> Iterator[int]:
        for index in range(number):
            if index == 3:
                raise LookupError("no more than three")
            yield index

    @trainkit.method(num_returns=2)
    def pair(self) -> tuple[int, int]:
        return 1, 2

    def folder(self) -> str:
        return os.getcwd()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def meet(self, number: int, folder: str) -> None:
        """Return once `number` calls are in here."""
        Path(folder, f"{threading.get_ident()}-{time.monotonic_ns()}").touch()
        while len(list(Path(folder).iterdir())) < number:
            time.sleep(0.01)


class Grouped:
    """Two methods that need each other at the same time, in a group of two threads."""

    @trainkit.method(concurrency_group="pair")
    def meet(self, number: int, folder: str) -> None:
        Many().meet(number, folder)

    def alone(self) -> str:
        return "main"


class Loop:
    """An actor on an event loop."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def passed(self) -> str:
        await self.opened.wait()
        return "passed"

    async def open(self) -> None:
        self.opened.set()

    async def fail(self) -> None:
        raise LookupError("in a coroutine")

    async def count(self, number: int) -> AsyncIterator[int]:
        for index in range(number):
            await asyncio.sleep(0)
            yield index

    async def double(self, refs: list[Any]) -> int:
        return 2 * int(await refs[0])

    def plain(self) -> int:
        return 7

    async def leave(self) -> str:
        try:
            trainkit.exit_actor()
        except Exception as error:
            return f"kept by {error}"


class Given:
    """Keeps what its constructor was given."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def value(self) -> Any:
        return self.given


class Unstable(Exception):
    """What a task is tried again for."""


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


def numbers(count: int) -> Iterator[int]:
    for index in range(count):
        if index == 3:
            raise LookupError("no more than three")
        yield index


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


def ask_by_name(name: str) -> list[Any]:
    return list(trainkit.get(trainkit.get_actor(name).note.remote("from a task")))


def hold_group() -> list[dict[str, float]] | None:
    group = trainkit.get_current_placement_group()
    return None if group is None else group.bundle_specs
