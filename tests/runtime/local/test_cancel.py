"""Calls that are stopped: before they begin, while they run, with what they have started."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.runtime.local.performers import Looped, Stepper, Threaded
from tests.suites.parts import await_file
from trainkit.errors import TaskCancelledError

pytestmark = pytest.mark.usefixtures("runtime")


def cancel_begun(ref: Any, folder: Path, **options: bool) -> None:
    """Cancel a task once it has made the file "begun"."""
    assert eventually((folder / "begun").exists)
    trainkit.cancel(ref, **options)


def assert_cancelled(ref: Any) -> None:
    with pytest.raises(TaskCancelledError):
        trainkit.get(ref, timeout=60)


def test_a_function_written_in_c_is_interrupted() -> None:
    trainkit.get(trainkit.remote(time.sleep).remote(0))
    ref = trainkit.remote(time.sleep).remote(3600)
    assert eventually(lambda: any(row["state"] == "RUNNING" for row in trainkit.list_tasks()))
    time.sleep(0.1)  # the row says that its process has it, and not that it has begun
    trainkit.cancel(ref)
    assert_cancelled(ref)


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
    cancel_begun(ref, tmp_path, recursive=False)
    assert_cancelled(ref)
    assert eventually((tmp_path / "ended").exists)


def test_busy_code_that_calls_the_runtime_is_interrupted_cleanly(tmp_path: Path) -> None:
    @trainkit.remote
    def busy(mark: Path) -> None:
        mark.touch()
        while True:
            trainkit.get(trainkit.put(list(range(10))))

    for round_ in range(3):
        mark = tmp_path / str(round_)
        ref = busy.remote(mark)
        assert eventually(mark.exists)
        trainkit.cancel(ref)
        assert_cancelled(ref)
    refs = [trainkit.remote(lambda x: x).remote(i) for i in range(20)]
    assert trainkit.get(refs, timeout=60) == list(range(20))


def test_force_ends_the_process_and_no_other_task(tmp_path: Path) -> None:
    @trainkit.remote
    def stubborn() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        (tmp_path / "begun").touch()
        time.sleep(60)

    ref = stubborn.remote()
    cancel_begun(ref, tmp_path)
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
    cancel_begun(ref, tmp_path)
    assert trainkit.get(ref, timeout=60) == "cleaned up"


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
    cancel_begun(ref, tmp_path)
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


def test_many_cancelled_in_a_row_leave_the_pool_working() -> None:
    work = trainkit.remote(lambda seconds: time.sleep(seconds))
    for round_ in range(5):
        refs = [work.remote(30) for _ in range(12)]
        time.sleep(0.01 * round_)
        for ref in refs:
            trainkit.cancel(ref)
        for ref in refs:
            assert_cancelled(ref)
    refs = [trainkit.remote(lambda x: x).remote(i) for i in range(50)]
    assert trainkit.get(refs, timeout=60) == list(range(50))
    assert eventually(lambda: trainkit.available_resources() == trainkit.cluster_resources())
