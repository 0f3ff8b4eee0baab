"""Functions and classes that the suites run elsewhere; workers import this module, so it imports little."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import trainkit
from trainkit.runtime.engine import PROMISES

BUILT_IN = ("local", "inline")
"""The engines that need nothing but this package, the one that promises all first."""

SOON_S = 60
"""A bound for what should take milliseconds, however busy the machine."""


def promising(*promises: str) -> list[str]:
    """Return the built-in engines that make all these promises, to parametrize a test with."""
    return [engine for engine in BUILT_IN if set(promises) <= PROMISES[engine]]


def await_file(path: Path) -> None:
    """Return once `path` exists; fails after half a minute."""
    deadline = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} never came")
        time.sleep(0.01)


def note(path: Path) -> int:
    """Add a line to `path`; how many there are now."""
    with path.open("a") as file:
        file.write("x\n")
    return len(path.read_text().splitlines())


def wait_for(path: Path) -> str:
    await_file(path)
    return "waited"


def start_and_wait_for(started: Path, path: Path) -> str:
    started.touch()
    return wait_for(path)


def sleep_and_clean_up(started: Path, cleaned: Path) -> None:
    try:
        started.touch()
        for _ in range(3000):
            time.sleep(0.01)
    finally:
        cleaned.touch()


def start_one_that_sleeps(started: Path, cleaned: Path) -> None:
    trainkit.get(trainkit.remote(sleep_and_clean_up).remote(started, cleaned))


def cancel_first(refs: list[Any], helper: Any = None) -> None:
    """Cancel a reference that came from another process, or have `helper` do it."""
    if helper is None:
        trainkit.cancel(refs[0])
    else:
        trainkit.get(helper.__ray_call__.remote(lambda _, given: cancel_first(given), refs))


def fail_until(path: Path, count: int, error: Exception) -> int:
    runs = note(path)
    if runs < count:
        raise error
    return runs


def numbers(count: int, fail_at: int | None = None) -> Iterator[int]:
    for number in range(count):
        if number == fail_at:
            raise LookupError(f"no number {number}")
        yield number


def numbers_behind(path: Path) -> Iterator[int]:
    await_file(path)
    yield from range(1)


def endless(path: Path) -> Iterator[int]:
    try:
        number = 0
        while True:
            yield number
            number += 1
            time.sleep(0.01)
    finally:
        path.touch()


def surroundings(name: str) -> tuple[str | None, str]:
    return os.environ.get(name), os.getcwd()


def nested_surroundings(name: str) -> tuple[str | None, str]:
    """Return what a task that this one starts sees."""
    found: tuple[str | None, str] = trainkit.get(trainkit.remote(surroundings).remote(name))
    return found


def context() -> dict[str, Any]:
    """What the runtime says of where this runs."""
    where = trainkit.get_runtime_context()
    return {
        "node_id": where.get_node_id(),
        "job_id": where.get_job_id(),
        "worker_id": where.get_worker_id(),
        "actor_id": where.get_actor_id(),
        "actor_name": where.get_actor_name(),
        "task_id": where.get_task_id(),
        "task_name": where.get_task_name(),
        "group_id": where.get_placement_group_id(),
        "captures": where.should_capture_child_tasks_in_placement_group,
        "ids": where.get(),
        "namespace": where.namespace,
        "restarted": where.was_current_actor_reconstructed,
        "resources": where.get_assigned_resources(),
    }


def gpus() -> tuple[list[int | str], str | None]:
    return trainkit.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


def bundles_here() -> list[dict[str, float]] | None:
    group = trainkit.get_current_placement_group()
    return group and group.bundle_specs


def bundles_of_children(apart: Any) -> list[list[dict[str, float]] | None]:
    """Where a task and an actor are that this starts, and a task with the strategy `apart`."""
    task = trainkit.remote(num_cpus=0)(bundles_here)
    child = trainkit.remote(Keeper).remote()
    refs = [task.remote(), child.bundles.remote(), task.options(scheduling_strategy=apart).remote()]
    return trainkit.get(refs)


def bundles_of_grandchild() -> list[dict[str, float]] | None:
    return trainkit.get(trainkit.remote(num_cpus=0)(nested_bundles).remote())


def descend(depth: int, cpus: float) -> Any:
    """Return a reference to a task that does the same one level below, of which one runs at a time."""
    if depth == 0:
        return "bottom"
    return trainkit.remote(descend).options(num_cpus=cpus).remote(depth - 1, cpus)


def started_with(value: Any, go: Path) -> list[Any]:
    """Return a reference to a task that ends with `value` when `go` is there."""
    return [trainkit.remote(num_cpus=0)(late).remote(value, go)]


def late(value: Any, go: Path) -> Any:
    await_file(go)
    return value


def note_late(path: Path, go: Path) -> None:
    """Have `path` noted when `go` is there; nobody has the reference."""
    trainkit.remote(num_cpus=0)(late_note).remote(path, go)


def late_note(path: Path, go: Path) -> int:
    await_file(go)
    return note(path)


def made(value: Any) -> tuple[int, Any]:
    """Return the pid of this process and the handle of an actor of this task's."""
    return os.getpid(), trainkit.remote(Keeper).remote(value)


def nested_bundles() -> list[dict[str, float]] | None:
    return trainkit.get(trainkit.remote(num_cpus=0)(bundles_here).remote())


def value_of_named(name: str, namespace: str | None = None) -> Any:
    return trainkit.get(trainkit.get_actor(name, namespace).get.remote())


class Keeper:
    """Keeps a value, and tells what it sees."""

    LIMIT = 7

    @staticmethod
    def doubled(value: int) -> int:
        return 2 * value

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value

    def started(self, go: Path) -> list[Any]:
        return started_with(self.value, go)

    def set(self, value: Any) -> None:
        self.value = value

    def pid(self) -> int:
        return os.getpid()

    def __call__(self, more: Any) -> Any:
        return self.value + more

    @trainkit.method(num_returns=2)
    def twice(self) -> tuple[Any, Any]:
        return self.value, self.value

    def context(self) -> dict[str, Any]:
        return context()

    def itself(self) -> Any:
        return trainkit.get_runtime_context().current_actor

    def fail_once_later(self, path: Path) -> list[Any]:
        self.other = self.itself()
        return [self.other.fail_once.remote(path)]

    def gpus(self) -> tuple[list[int | str], str | None]:
        return gpus()

    def bundles(self) -> Any:
        return bundles_here()

    def nested_bundles(self) -> Any:
        return trainkit.get(trainkit.remote(bundles_here).remote())

    def value_of_named(self, name: str) -> Any:
        return value_of_named(name)

    def make_another(self, value: Any) -> Any:
        self.other = trainkit.remote(Keeper).remote(value)
        return self.other

    def wait_for(self, started: Path, path: Path) -> str:
        return start_and_wait_for(started, path)

    def note(self, path: Path) -> int:
        return note(path)

    def numbers(self, count: int, fail_at: int | None = None) -> Iterator[int]:
        yield from numbers(count, fail_at)

    def fail_until(self, path: Path, count: int, error: Exception) -> int:
        return fail_until(path, count, error)

    @trainkit.method(retry_exceptions=[KeyError])
    def fail_once(self, path: Path) -> int:
        return fail_until(path, 2, KeyError("not yet"))


class Leaver:
    """Ends itself in every way."""

    def same(self, value: Any) -> Any:
        return value

    def leave(self, depth: int = 0) -> None:
        if depth:
            self.leave(depth - 1)
        trainkit.exit_actor()

    def leave_in_spite_of_a_handler(self) -> str:
        try:
            self.leave()
        except Exception as error:
            return f"caught {error}"
        return "came back"

    async def leave_async(self) -> None:
        await asyncio.sleep(0)
        self.leave()

    def exit(self, code: int) -> None:
        raise SystemExit(code)


class Mortal:
    """Dies of SIGKILL as long as a file is not there."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def die_once(self, marker: Path) -> int:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    def exit_once(self, marker: Path) -> int:
        if not marker.exists():
            marker.touch()
            os._exit(0)
        return os.getpid()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def context(self) -> dict[str, Any]:
        return context()


class Meeting:
    """Two threads that must be here at once."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.said = threading.Event()

    def meet(self) -> int:
        self.barrier.wait(60)
        return threading.get_ident()

    def listen(self) -> bool:
        return self.said.wait(60)

    @trainkit.method(concurrency_group="io")
    def say(self) -> str:
        self.said.set()
        return "said"


class Plain:
    """No method in any group, so that a call can be put in one."""

    def __init__(self) -> None:
        self.said = threading.Event()

    def listen(self) -> bool:
        return self.said.wait(60)

    def say(self) -> None:
        self.said.set()


class Begun:
    """It is made on its event loop, which `begin` waits for, and runs until it is told to stop."""

    async def __init__(self, path: Path | None = None) -> None:
        if path is None:
            raise LookupError("nothing to wait for")
        self.begun = "no"
        while not path.exists():
            await asyncio.sleep(0.01)
        self.begun = "yes"

    def has_begun(self) -> str:
        return self.begun


class Patient:
    """It looks whether what runs was cancelled."""

    def run(self, started: Path) -> str:
        context = trainkit.get_runtime_context()
        started.touch()
        while not context.is_canceled():
            time.sleep(0.01)
        return "ended early"

    def is_canceled(self) -> bool:
        return trainkit.get_runtime_context().is_canceled()


class Courier:
    """Its methods share primitives of asyncio."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.queue: asyncio.Queue[int] = asyncio.Queue()
        self.lock = asyncio.Lock()

    async def listen(self) -> str:
        await asyncio.wait_for(self.event.wait(), 60)
        return "heard"

    async def say(self) -> None:
        self.event.set()

    async def post(self, number: int) -> int:
        async with self.lock:
            await self.queue.put(number)
            await asyncio.sleep(0.001)
        return self.queue.qsize()

    async def take(self) -> int:
        return await self.queue.get()

    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise LookupError("nothing here")

    async def sleep(self, started: Path) -> None:
        started.touch()
        await asyncio.sleep(30)

    async def note(self, path: Path) -> int:
        return note(path)

    async def fail_until(self, path: Path, count: int, error: Exception) -> int:
        return fail_until(path, count, error)

    async def numbers(self, count: int, fail_at: int | None = None) -> AsyncIterator[int]:
        for number in numbers(count, fail_at):
            await asyncio.sleep(0)
            yield number

    def plain(self) -> str:
        return "plain"


class Collector:
    """Keeps what it is given, in order."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> list[Any]:
        self.values.append(value)
        return list(self.values)

    def add_both(self, one: Any, other: Any) -> list[Any]:
        self.values += [one, other]
        return list(self.values)

    def everything(self) -> list[Any]:
        return self.values

    def repeat(self, value: Any, count: int) -> Iterator[Any]:
        yield from [value] * count

    def wait_for(self, _: Any, started: Path) -> None:
        started.touch()
        time.sleep(30)

    def context(self) -> dict[str, Any]:
        return context()


class Gate:
    """Keeps what it is given, on an event loop."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    async def add(self, value: Any) -> list[Any]:
        self.values.append(value)
        return list(self.values)

    async def everything(self) -> list[Any]:
        return self.values


class ParameterServer:
    """One number, to which others add."""

    def __init__(self) -> None:
        self.weight = 0

    def weights(self) -> int:
        return self.weight

    def apply(self, *gradients: int) -> int:
        self.weight += sum(gradients)
        return self.weight


class Pushing:
    """Makes gradients of a parameter server's weights."""

    def gradient(self, server: Any) -> int:
        return int(trainkit.get(server.weights.remote())) + 1


class Talker:
    """A method that blocks each of its concurrency groups, and methods that are to run all the same."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    @trainkit.method(concurrency_group="io")
    async def block(self, started: Path, path: Path) -> str:
        return start_and_wait_for(started, path)

    @trainkit.method(concurrency_group="io")
    async def listen(self) -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    @trainkit.method(concurrency_group="compute")
    async def compute(self) -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def block_plainly(self, started: Path, path: Path) -> str:
        return start_and_wait_for(started, path)

    async def plain(self) -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def leave(self) -> None:
        raise SystemExit(3)

    async def cancel_all(self) -> int:
        """Cancel the tasks of this loop but the one that this runs in."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        return len(others)
