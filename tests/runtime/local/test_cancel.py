"""Calls that are stopped: before they begin, while they run, with what they have started."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.runtime.local.performers import Looped, Stepper, Threaded
from tests.suites.parts import await_file
from trainkit.errors import ConfigError, TaskCancelledError

pytestmark = pytest.mark.usefixtures("runtime")


@trainkit.remote
def sleeps(begun: Path, ended: Path | None = None) -> str:
    try:
        begun.touch()
        time.sleep(60)
        return "slept"
    finally:
        if ended is not None:
            ended.touch()


@trainkit.remote
def touches(path: Path, _: Any = None) -> None:
    path.touch()


def assert_cancelled(ref: Any) -> None:
    with pytest.raises(TaskCancelledError):
        trainkit.get(ref, timeout=60)


def test_a_running_task_is_interrupted_and_its_finally_runs(tmp_path: Path) -> None:
    ref = sleeps.remote(tmp_path / "begun", tmp_path / "ended")
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(ref)
    with pytest.raises(TaskCancelledError, match=r"sleeps \(pid \d+\) was cancelled while it ran"):
        trainkit.get(ref, timeout=60)
    assert (tmp_path / "ended").exists()
    trainkit.cancel(ref)  # has no effect any more
    assert trainkit.get(trainkit.remote(lambda: 1).remote(), timeout=60) == 1


@pytest.mark.parametrize("function", [time.sleep, functools.partial(time.sleep)])
def test_a_function_written_in_c_is_interrupted(function: Any) -> None:
    trainkit.get(trainkit.remote(function).remote(0))
    ref = trainkit.remote(function).remote(3600)
    assert eventually(lambda: any(row["state"] == "RUNNING" for row in trainkit.list_tasks()))
    time.sleep(0.1)  # the row says that its process has it, and not that it has begun
    trainkit.cancel(ref)
    with pytest.raises(TaskCancelledError):
        trainkit.get(ref, timeout=60)


def test_a_task_in_the_queue_never_begins(tmp_path: Path) -> None:
    holders = [sleeps.remote(tmp_path / str(i)) for i in range(SESSION_CPUS)]
    assert eventually(lambda: len(list(tmp_path.iterdir())) == SESSION_CPUS)
    queued, other = touches.remote(tmp_path / "queued"), touches.remote(tmp_path / "other")
    trainkit.cancel(queued)
    with pytest.raises(TaskCancelledError, match="before it began"):
        trainkit.get(queued, timeout=0)
    for holder in holders:
        trainkit.cancel(holder)
    trainkit.get(other, timeout=60)
    assert not (tmp_path / "queued").exists()


def test_a_task_that_waits_for_its_arguments_never_begins(tmp_path: Path) -> None:
    first = sleeps.remote(tmp_path / "begun")
    second = touches.remote(tmp_path / "second", first)
    third = touches.remote(tmp_path / "third", second)
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(second)
    assert_cancelled(second)
    assert_cancelled(third)
    trainkit.cancel(first)
    assert_cancelled(first)
    assert not (tmp_path / "second").exists()


def test_a_task_that_waits_in_get_is_interrupted_with_what_it_started(tmp_path: Path) -> None:
    @trainkit.remote
    def parent() -> Any:
        return trainkit.get(sleeps.remote(tmp_path / "begun", tmp_path / "ended"))

    ref = parent.remote()
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(ref)
    assert_cancelled(ref)
    assert eventually((tmp_path / "ended").exists)


def test_without_recursion_what_it_started_goes_on(tmp_path: Path) -> None:
    @trainkit.remote
    def child() -> None:
        (tmp_path / "begun").touch()
        time.sleep(0.3)
        (tmp_path / "ended").touch()

    @trainkit.remote
    def parent() -> Any:
        return trainkit.get(child.remote())

    ref = parent.remote()
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(ref, recursive=False)
    assert_cancelled(ref)
    assert eventually((tmp_path / "ended").exists)


def test_busy_code_that_calls_the_runtime_is_interrupted_cleanly(tmp_path: Path) -> None:
    @trainkit.remote
    def busy(mark: Path) -> None:
        mark.touch()
        while True:
            trainkit.get(trainkit.put(list(range(10))))

    for round_ in range(10):
        mark = tmp_path / str(round_)
        ref = busy.remote(mark)
        assert eventually(mark.exists)
        trainkit.cancel(ref)
        assert_cancelled(ref)
    assert trainkit.get([trainkit.remote(lambda x: x).remote(i) for i in range(20)], timeout=60) == list(
        range(20)
    )


def test_force_ends_the_process_and_no_other_task(tmp_path: Path) -> None:
    @trainkit.remote
    def stubborn() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        (tmp_path / "begun").touch()
        time.sleep(60)

    ref = stubborn.remote()
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(ref)
    assert trainkit.wait([ref], timeout=0.2)[0] == [], "it has its own handler"
    trainkit.cancel(ref, force=True)
    assert_cancelled(ref)
    assert trainkit.get(trainkit.remote(lambda: 1).remote(), timeout=60) == 1


class Unblocks:
    """A value whose pickling, the last code of a call's own, lets the signal through again."""

    def __reduce__(self) -> Any:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return int, (os.getpid(),)


def is_cancelled_as_it_returns(begun: Path) -> list[Any]:
    main = threading.get_ident()

    def interrupt() -> None:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            signal.pthread_kill(main, signal.SIGINT)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    begun.touch()
    while signal.SIGINT not in signal.sigpending():
        time.sleep(0.001)
    threading.Thread(target=interrupt).start()
    return [Unblocks()] * 300


def test_a_task_that_is_cancelled_while_its_answer_is_sent_keeps_its_process(tmp_path: Path) -> None:
    alone = {"num_cpus": SESSION_CPUS}
    pid = trainkit.get(trainkit.remote(os.getpid).options(**alone).remote())
    for number in range(3):
        begun = tmp_path / str(number)
        refs = trainkit.remote(is_cancelled_as_it_returns).options(num_returns=300, **alone).remote(begun)
        assert eventually(begun.exists)
        trainkit.cancel(refs[0])
        try:
            assert trainkit.get(refs, timeout=60) == [pid] * 300
        except TaskCancelledError as error:
            assert "its process ended" not in str(error)
        assert trainkit.get(trainkit.remote(os.getpid).options(**alone).remote(), timeout=60) == pid


def test_a_task_that_swallows_the_interrupt_keeps_its_result(tmp_path: Path) -> None:
    @trainkit.remote
    def swallows() -> str:
        try:
            (tmp_path / "begun").touch()
            time.sleep(60)
        except KeyboardInterrupt:
            return "cleaned up"
        return "slept"

    ref = swallows.remote()
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(ref)
    assert trainkit.get(ref, timeout=60) == "cleaned up"


class Forwarder(Stepper):
    """Forwards names that it has not, as proxies do."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("cls", [Stepper, Forwarder])
def test_queued_calls_of_an_actor_never_begin_and_running_ones_go_on(
    tmp_path: Path, cls: type[Stepper]
) -> None:
    actor = trainkit.remote(cls).remote()
    running = actor.wait_for.remote(tmp_path / "begun", tmp_path / "go")
    assert eventually((tmp_path / "begun").exists)
    queued, pair = (
        actor.mark.remote(tmp_path / "one"),
        actor.mark.options(num_returns=2).remote(tmp_path / "two"),
    )
    last = actor.mark.remote(tmp_path / "last")
    for ref in (running, queued, pair[1]):
        trainkit.cancel(ref)
    trainkit.available_resources()  # asked of the node, which has told the worker by then
    (tmp_path / "go").touch()
    for ref in (queued, *pair):
        with pytest.raises(TaskCancelledError, match=rf"{cls.__name__}.mark \(pid \d+\) was cancelled"):
            trainkit.get(ref, timeout=60)
    assert trainkit.get(running) is None
    trainkit.get(last, timeout=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "go", "last"]


def test_a_call_of_an_actor_that_waits_for_its_arguments_never_begins(tmp_path: Path) -> None:
    actor, slow = (trainkit.remote(Stepper).remote() for _ in range(2))
    cancelled = actor.mark.remote(tmp_path / "one", slow.sleep.remote(60, tmp_path / "begun"))
    other = actor.mark.remote(tmp_path / "two")
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(cancelled)
    assert_cancelled(cancelled)
    trainkit.get(other, timeout=60)
    assert not (tmp_path / "one").exists()


def test_calls_of_an_actor_that_has_not_started(tmp_path: Path) -> None:
    holder = trainkit.remote(num_cpus=SESSION_CPUS)(Stepper).remote()
    trainkit.get(holder.sleep.remote(0), timeout=60)
    waiting = trainkit.remote(num_cpus=1)(Stepper).remote()
    cancelled, other = waiting.mark.remote(tmp_path / "one"), waiting.mark.remote(tmp_path / "two")
    trainkit.cancel(cancelled)
    del holder
    assert_cancelled(cancelled)
    trainkit.get(other, timeout=60)
    assert not (tmp_path / "one").exists()


def test_a_coroutine_is_cancelled_as_asyncio_does_it() -> None:
    actor = trainkit.remote(Looped).remote()
    one, two = actor.sleep.remote("one"), actor.sleep.remote("two")
    trainkit.get(actor.orders.remote())
    trainkit.cancel(one)
    assert_cancelled(one)
    assert trainkit.get(actor.what_ended.remote()) == ["one"]
    stream = actor.numbers.remote(1_000_000)
    trainkit.get(next(stream))
    trainkit.cancel(stream)
    *_, last = stream
    assert_cancelled(last)
    trainkit.cancel(two)
    assert_cancelled(two)
    assert trainkit.get(actor.what_ended.remote()) == ["one", "numbers", "two"]


def test_calls_queued_for_threads_and_coroutines_never_begin() -> None:
    single = trainkit.remote(Looped).options(max_concurrency=1).remote()
    blocking, queued = single.sleep.remote("blocking"), single.count.remote(1)
    trainkit.cancel(queued)
    trainkit.cancel(blocking)
    assert_cancelled(blocking)
    assert_cancelled(queued)
    assert trainkit.get(single.orders.remote()) == []

    actor = trainkit.remote(Threaded).options(concurrency_groups={"io": 1}, max_concurrency=2).remote()
    waiting = [actor.wait_for_event.remote() for _ in range(2)]
    queued = actor.count.remote(1)
    trainkit.cancel(queued)
    trainkit.available_resources()  # asked of the node, which has told the worker by then
    moved = actor.set_event.options(concurrency_group="io").remote()
    trainkit.get([*waiting, moved], timeout=60)
    assert_cancelled(queued)
    assert trainkit.get(actor.orders.remote()) == []


def test_a_cancelled_stream_closes_the_generator() -> None:
    actor = trainkit.remote(Stepper).remote()
    stream = actor.endless.remote("stream")
    trainkit.get(next(stream))
    trainkit.cancel(stream)
    *_, last = stream
    assert_cancelled(last)
    assert trainkit.get(actor.what_closed.remote(), timeout=60) == ["stream"]


def test_a_cancelled_streaming_task(tmp_path: Path) -> None:
    @trainkit.remote
    def halting() -> Iterator[int]:
        try:
            yield 1
            time.sleep(60)
        finally:
            (tmp_path / "closed").touch()

    stream = halting.remote()
    trainkit.get(next(stream), timeout=60)
    time.sleep(0.05)
    trainkit.cancel(stream)
    assert_cancelled(next(stream))
    assert (tmp_path / "closed").exists()


def test_a_wait_in_another_thread_ends() -> None:
    actor = trainkit.remote(Stepper).remote()
    task = trainkit.remote(lambda: time.sleep(60)).remote()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            trainkit.get(task)
        except TaskCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    trainkit.get(actor.sleep.remote(0.1))
    trainkit.cancel(task)
    thread.join(60)
    assert len(errors) == 1


def test_what_can_not_be_cancelled(tmp_path: Path) -> None:
    actor = trainkit.remote(Stepper).remote()
    running = actor.wait_for.remote(tmp_path / "begun", tmp_path / "go")
    with pytest.raises(ConfigError, match=r"force=True.* is for tasks"):
        trainkit.cancel(running, force=True)
    with pytest.raises(ConfigError, match="takes a reference"):
        trainkit.cancel(3)
    trainkit.cancel(trainkit.put(1))  # done: no effect

    @trainkit.remote
    def cancels(refs: list[Any]) -> None:
        trainkit.cancel(refs[0], force=True)

    with pytest.raises(ConfigError, match=r"force=True.* is for tasks"):
        trainkit.get(cancels.remote([running]), timeout=60)
    (tmp_path / "go").touch()
    assert trainkit.get(running) is None


def test_what_a_task_does_in_its_finally_is_not_interrupted(tmp_path: Path) -> None:
    """By a cancellation that comes again, or a signal that comes late."""

    @trainkit.remote
    def cleans_up() -> None:
        try:
            (tmp_path / "begun").touch()
            time.sleep(60)
        finally:
            (tmp_path / "pid").write_text(str(os.getpid()))
            (tmp_path / "cleaning").touch()
            await_file(tmp_path / "go")
            (tmp_path / "cleaned").touch()

    ref = cleans_up.remote()
    assert eventually((tmp_path / "begun").exists)
    trainkit.cancel(ref)
    assert eventually((tmp_path / "cleaning").exists)
    trainkit.cancel(ref)
    trainkit.available_resources()  # asked of the node, which has sent the signal by then
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
    (tmp_path / "go").touch()
    assert_cancelled(ref)
    assert (tmp_path / "cleaned").exists()


def test_a_signal_that_nobody_asked_for_has_no_effect(tmp_path: Path) -> None:
    @trainkit.remote
    def tells_its_pid() -> str:
        (tmp_path / "pid").write_text(str(os.getpid()))
        (tmp_path / "begun").touch()
        time.sleep(0.3)
        return "slept"

    ref = tells_its_pid.remote()
    assert eventually((tmp_path / "begun").exists)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
    assert trainkit.get(ref, timeout=60) == "slept"


def test_many_cancelled_in_a_row_leave_the_pool_working(tmp_path: Path) -> None:
    work = trainkit.remote(lambda seconds: time.sleep(seconds))
    for round_ in range(5):
        refs = [work.remote(30) for _ in range(12)]
        time.sleep(0.01 * round_)
        for ref in refs:
            trainkit.cancel(ref)
        for ref in refs:
            assert_cancelled(ref)
    assert trainkit.get([trainkit.remote(lambda x: x).remote(i) for i in range(50)], timeout=60) == list(
        range(50)
    )
    assert eventually(lambda: trainkit.available_resources() == trainkit.cluster_resources())
