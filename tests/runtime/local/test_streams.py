"""Results that come one by one: read as they come, failing, ending early, awaited."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.performers import Looped, Stepper, Threaded
from tests.suites.parts import await_file
from trainkit.errors import WorkerDiedError

pytestmark = pytest.mark.usefixtures("runtime")


@trainkit.remote
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def values(stream: Any) -> list[Any]:
    return [trainkit.get(ref) for ref in stream]


def test_values_come_before_the_generator_ends(tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"

    @trainkit.remote
    def halting() -> Iterator[str]:
        yield "first"
        while not go_on.exists():
            time.sleep(0.005)
        yield "second"

    stream = halting.remote()
    assert trainkit.get(next(stream)) == "first"
    completed = stream.completed()
    assert trainkit.wait([completed], timeout=0.05)[0] == []
    go_on.touch()
    assert values(stream) == ["second"]
    assert trainkit.get(completed, timeout=60) is None
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize(("cls", "options"), [(Stepper, {}), (Threaded, {"concurrency_groups": {"io": 1}})])
def test_an_actors_generator_in_the_order_of_its_calls(cls: type, options: dict[str, Any]) -> None:
    actor = trainkit.remote(cls).options(**options).remote()
    first, second = actor.numbers.remote(3), actor.numbers.remote(2)
    assert values(second) == [0, 1]
    assert values(first) == [0, 1, 2]


def test_asynchronous_generators_run_at_once() -> None:
    actor = trainkit.remote(Looped).remote()
    one, two = actor.numbers.remote(50), actor.numbers.remote(50)
    for pair in zip(one, two, strict=True):
        assert trainkit.get(pair[0]) == trainkit.get(pair[1])
    assert values(actor.plain_numbers.remote(3)) == [0, 1, 2]


def test_a_task_may_be_an_asynchronous_generator() -> None:
    @trainkit.remote
    async def ticks(count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0.001)
            yield number

    assert values(ticks.remote(4)) == [0, 1, 2, 3]


def test_a_dead_actor_ends_its_streams_with_one_failure() -> None:
    actor = trainkit.remote(Stepper).remote()
    *first, last = list(actor.die_after.remote(3))
    assert trainkit.get(first) == [0, 1, 2]
    with pytest.raises(trainkit.errors.ActorDiedError, match="exit code 7"):
        trainkit.get(last)


def fail_once(folder: Path, before: int, how: str) -> Iterator[int]:
    yield from range(before)
    if not (folder / "tried").exists():
        await_file(folder / "go")
        (folder / "tried").touch()
        if how == "die":
            os._exit(9)
        raise LookupError("no more")
    yield 100


class FailsOnce:
    @trainkit.method(max_task_retries=1, retry_exceptions=True)
    def fail_once(self, folder: Path, before: int, how: str) -> Iterator[int]:
        yield from fail_once(folder, before, how)


@pytest.mark.parametrize("of", ["task", "actor"])
@pytest.mark.parametrize("how", ["die", "raise"])
def test_a_call_that_is_made_again_repeats_no_value(tmp_path: Path, of: str, how: str) -> None:
    if of == "task":
        call = trainkit.remote(max_retries=1, retry_exceptions=True)(fail_once)
    else:
        actor = trainkit.remote(max_restarts=1)(FailsOnce).remote()
        call = actor.fail_once
    stream = call.remote(tmp_path, 2, how)
    assert [trainkit.get(next(stream), timeout=60) for _ in range(2)] == [0, 1]
    (tmp_path / "go").touch()
    assert values(stream) == [100]
    assert trainkit.get(stream.completed(), timeout=60) is None


@pytest.mark.parametrize(("how", "error"), [("die", WorkerDiedError), ("raise", LookupError)])
def test_a_call_without_a_retry_left_fails_behind_what_had_come(
    tmp_path: Path, how: str, error: type[Exception]
) -> None:
    (tmp_path / "go").touch()
    call = trainkit.remote(max_retries=0, retry_exceptions=True)(fail_once)
    *first, last = list(call.remote(tmp_path, 2, how))
    assert trainkit.get(first) == [0, 1]
    with pytest.raises(error):
        trainkit.get(last)


def test_a_stream_that_nobody_reads_any_more_is_not_made_again() -> None:
    actor = trainkit.remote(max_restarts=1, max_task_retries=-1)(Stepper).remote()
    pid = trainkit.get(actor.pid.remote())
    stream = actor.endless.remote("dropped")
    assert trainkit.get(next(stream), timeout=60) == 0
    os.kill(pid, signal.SIGSTOP)  # it does not hear that nobody reads it
    del stream
    gc.collect()
    os.kill(pid, signal.SIGKILL)
    assert trainkit.get(actor.what_closed.remote(), timeout=60) == []


def test_a_generator_that_nobody_has_is_stopped() -> None:
    actor = trainkit.remote(Stepper).remote()
    stream = actor.endless.remote("dropped")
    assert trainkit.get(next(stream)) == 0
    del stream
    gc.collect()
    assert trainkit.get(actor.what_closed.remote(), timeout=60) == ["dropped"]


def test_a_dropped_task_is_stopped_too(tmp_path: Path) -> None:
    @trainkit.remote(num_cpus=4)
    def endless(mark: Path) -> Iterator[int]:
        try:
            while True:
                yield 0
                time.sleep(0.001)
        finally:
            mark.touch()

    next(endless.remote(tmp_path / "closed"))
    assert eventually((tmp_path / "closed").exists)
    assert values(numbers.remote(2)) == [0, 1]


def test_ctrl_c_while_waiting_for_the_next_value_loses_nothing(tmp_path: Path) -> None:
    @trainkit.remote
    def slow() -> Iterator[int]:
        while not (tmp_path / "go on").exists():
            time.sleep(0.005)
        yield from range(3)

    stream = slow.remote()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(stream)
    (tmp_path / "go on").touch()
    assert values(stream) == [0, 1, 2]


def test_a_generator_of_references_stays_in_its_process() -> None:
    with pytest.raises(trainkit.errors.SerializationError, match="sent to other processes"):
        trainkit.remote(lambda stream: None).remote(numbers.remote(1))
