"""Actors that are made anew, with real processes and real signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import trainkit
from tests.conftest import eventually, session_processes
from tests.runtime.phoenix import Borrower, Doomed, Phoenix, Raising, born
from trainkit.errors import ActorDiedError, NodeDiedError, TaskError


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    before = set(session_processes())
    trainkit.init(num_cpus=4)
    yield
    trainkit.shutdown()
    assert eventually(lambda: not set(session_processes()) - before, 5)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def phoenix(*args: Any, max_restarts: int = -1, **options: Any) -> Any:
    return trainkit.remote(max_restarts=max_restarts, **options)(Phoenix).remote(*args)


def pid_of(actor: Any) -> int:
    return int(trainkit.get(actor.pid.remote(), timeout=20))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stable_pid_after(actor: Any, old: int) -> int:
    """The pid of the process that was made in place of `old`, which may not be dead yet."""
    while True:
        try:
            pid = pid_of(actor)
        except ActorDiedError as error:
            assert "being made anew" in str(error)
            continue
        if pid != old:
            return pid


def test_it_is_made_anew_with_the_same_arguments_and_fresh_state() -> None:
    @trainkit.remote
    def slow() -> str:
        time.sleep(0.3)
        return "came later"

    other = trainkit.remote(Phoenix).remote()
    array = np.arange(1_000_000)
    actor = phoenix(None, array, np.arange(10), trainkit.put("kept"), slow.remote(), [trainkit.put(5)], other)
    assert trainkit.get([actor.add.remote(1), actor.add.remote(1)], timeout=20) == [1, 2]
    for _ in range(2):
        old = pid_of(actor)
        kill(old)
        assert stable_pid_after(actor, old) != old
        assert trainkit.get(actor.add.remote(1), timeout=20) == 1
        given = trainkit.get(actor.what_was_given.remote(), timeout=20)
        np.testing.assert_array_equal(given[0], array)
        np.testing.assert_array_equal(given[1], np.arange(10))
        assert given[2:4] == ("kept", "came later")
        assert trainkit.get(given[4][0]) == 5
        assert pid_of(given[5]) == pid_of(other)


def test_what_a_constructor_waits_for_may_come_after_a_restart(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @trainkit.remote
    def value() -> np.ndarray[Any, Any]:
        while not gate.exists():
            time.sleep(0.01)
        return np.ones(1_000_000)

    actor = phoenix(None, [value.remote()])
    old = pid_of(actor)  # a reference in a list is not waited for
    kill(old)
    stable_pid_after(actor, old)
    waiting = phoenix(None, value.remote())
    answer = waiting.what_was_given.remote()
    gate.touch()
    assert trainkit.get(trainkit.get(actor.what_was_given.remote(), timeout=20)[0][0]).sum() == 1_000_000
    assert trainkit.get(answer, timeout=20)[0].sum() == 1_000_000
    old = pid_of(waiting)
    kill(old)
    stable_pid_after(waiting, old)
    assert trainkit.get(waiting.what_was_given.remote(), timeout=20)[0].sum() == 1_000_000


def test_calls_in_flight_fail_and_say_that_it_is_made_anew() -> None:
    actor = phoenix()
    old = pid_of(actor)
    running, queued = actor.sleep.remote(60), actor.echo.remote(1)
    kill(old)
    for ref in (running, queued):
        with pytest.raises(ActorDiedError, match=rf"pid {old}\) was killed by SIGKILL.*being made anew") as caught:
            trainkit.get(ref, timeout=10)
        assert (caught.value.pid, caught.value.exit_code) == (old, -signal.SIGKILL)
    assert pid_of(actor) != old


def test_after_the_last_restart_it_stays_dead() -> None:
    actor = phoenix(max_restarts=2)
    for left in (1, 0):
        old = pid_of(actor)
        kill(old)
        assert stable_pid_after(actor, old) != old, left
    last = pid_of(actor)
    waiting = actor.sleep.remote(60)
    kill(last)
    for ref in (waiting, actor.pid.remote()):
        with pytest.raises(ActorDiedError, match=rf"Phoenix \(pid {last}\) was killed by SIGKILL$"):
            trainkit.get(ref, timeout=10)
    with pytest.raises(ActorDiedError, match="SIGKILL"):
        pid_of(actor)


def test_calls_are_made_again_in_their_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log, max_task_retries=2)
    refs = [actor.run.remote("a"), actor.run.remote("b", 2), actor.run.remote("c"), actor.run.remote("d")]
    assert trainkit.get(refs, timeout=20) == ["a", "b", "c", "d"]
    lines = [line for line in log.read_text().splitlines() if not line.startswith("born")]
    assert lines == ["a", "b", "b", "b", "c", "d"]
    assert len(born(log)) == 3


def test_retries_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log, max_task_retries=2)
    with pytest.raises(ActorDiedError, match="being made anew"):
        trainkit.get(actor.run.remote("x", 99), timeout=20)
    assert log.read_text().split("\n").count("x") == 3
    assert trainkit.get(actor.run.remote("y"), timeout=20) == "y"


def test_a_method_may_ask_for_other_retries(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log, max_task_retries=1)
    never = actor.run.options(max_task_retries=0)
    always = actor.run.options(max_task_retries=-1)
    with pytest.raises(ActorDiedError, match="being made anew"):
        trainkit.get(never.remote("never", 1), timeout=20)
    assert trainkit.get(always.remote("always", 4), timeout=20) == "always"
    counts = [log.read_text().split("\n").count(name) for name in ("never", "always")]
    assert counts == [1, 5]


def test_a_call_that_nobody_waits_for_is_made_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log, max_task_retries=-1)
    actor.run.remote("forgotten", 2)
    assert eventually(lambda: log.exists() and log.read_text().split("\n").count("forgotten") == 3)
    assert trainkit.get(actor.run.remote("after"), timeout=20) == "after"


def test_calls_whose_handle_is_gone_are_made_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log, max_task_retries=1)
    ref = actor.run.remote("last", 1)
    del actor
    assert trainkit.get(ref, timeout=20) == "last"
    assert eventually(lambda: not any(map(alive, born(log))))


def test_large_arguments_are_sent_again() -> None:
    actor = phoenix(max_task_retries=1)
    old = pid_of(actor)
    small, large = np.arange(100), np.ones(1_000_000)
    actor.sleep.remote(0.3)
    refs = [actor.echo.remote(small), actor.echo.remote(large)]
    small[:] = 0  # what was sent was sent
    kill(old)
    first, second = trainkit.get(refs, timeout=20)
    np.testing.assert_array_equal(first, np.arange(100))
    assert second.sum() == 1_000_000


def test_a_borrower_survives_a_restart() -> None:
    actor = phoenix(max_task_retries=-1)
    old = pid_of(actor)
    borrower = trainkit.remote(Borrower).remote(actor)
    assert trainkit.get(borrower.ask.remote(1), timeout=20) == 1
    kill(old)
    assert trainkit.get(borrower.ask.remote(2), timeout=20) == 2
    new = trainkit.get(borrower.ask_pid.remote(), timeout=20)
    assert new == pid_of(actor) != old


def test_a_borrower_keeps_it_when_its_owner_lets_go(tmp_path: Path) -> None:
    actor = phoenix(tmp_path / "log")
    borrower = trainkit.remote(Borrower).remote(actor)
    old = trainkit.get(borrower.ask_pid.remote(), timeout=20)
    del actor
    kill(old)
    assert eventually(lambda: len(born(tmp_path / "log")) == 2)
    time.sleep(2.5)  # longer than those who were connected are waited for
    assert trainkit.get(borrower.ask_pid.remote(), timeout=20) == born(tmp_path / "log")[1]
    trainkit.get(borrower.drop.remote(), timeout=20)
    assert eventually(lambda: not alive(born(tmp_path / "log")[1]))


def test_a_handle_sent_while_it_is_made_anew_works(tmp_path: Path) -> None:
    actor = phoenix(max_task_retries=-1)
    old = pid_of(actor)
    borrower = trainkit.remote(Borrower).remote()
    trainkit.get(borrower.drop.remote(), timeout=20)
    kill(old)
    trainkit.get(borrower.take.remote(actor), timeout=20)
    assert trainkit.get(borrower.ask.remote("x"), timeout=20) == "x"


def test_kill_ends_it_for_good_unless_told_otherwise() -> None:
    actor = phoenix(max_task_retries=-1)
    old = pid_of(actor)
    trainkit.kill(actor, no_restart=False)
    assert not alive(old)
    new = pid_of(actor)
    assert new != old
    waiting = actor.sleep.remote(60)
    trainkit.kill(actor)
    with pytest.raises(ActorDiedError, match=r"killed by trainkit.kill\(\)$"):
        trainkit.get(waiting, timeout=10)
    with pytest.raises(ActorDiedError, match=r"killed by trainkit.kill\(\)$"):
        pid_of(actor)


def test_kill_counts_as_a_restart() -> None:
    actor = phoenix(max_restarts=1)
    pid_of(actor)
    trainkit.kill(actor, no_restart=False)
    pid_of(actor)
    trainkit.kill(actor, no_restart=False)
    with pytest.raises(ActorDiedError, match=r"killed by trainkit.kill\(\)$"):
        pid_of(actor)
    plain = trainkit.remote(Phoenix).remote()
    pid_of(plain)
    trainkit.kill(plain, no_restart=False)
    with pytest.raises(ActorDiedError, match=r"killed by trainkit.kill\(\)$"):
        pid_of(plain)


def test_kill_while_it_is_made_anew(tmp_path: Path) -> None:
    actor = phoenix(tmp_path / "log")
    kill(pid_of(actor))
    trainkit.kill(actor)
    with pytest.raises(ActorDiedError):
        pid_of(actor)
    assert eventually(lambda: not any(map(alive, born(tmp_path / "log"))))


def test_one_that_dies_in_its_constructor_ends_after_its_restarts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = trainkit.remote(max_restarts=3, max_task_retries=-1)(Doomed).remote(log, 0)
    with pytest.raises(ActorDiedError, match="exit code 9"):
        pid_of(actor)
    assert len(log.read_text().split()) == 4
    later = tmp_path / "later"
    actor = trainkit.remote(max_restarts=1)(Doomed).remote(later, 1)
    kill(pid_of(actor))
    with pytest.raises(ActorDiedError, match="exit code 9|SIGKILL"):
        pid_of(actor)
    assert eventually(lambda: len(later.read_text().split()) == 2)


def test_a_constructor_that_raises_when_it_is_made_anew(tmp_path: Path) -> None:
    actor = trainkit.remote(max_restarts=1, max_task_retries=1)(Raising).remote(tmp_path / "log")
    old = pid_of(actor)
    kill(old)
    with pytest.raises(KeyError, match="only once") as caught:
        pid_of(actor)
    assert isinstance(caught.value, TaskError)


def test_an_exit_with_code_0_is_not_a_death(tmp_path: Path) -> None:
    actor = trainkit.remote(max_restarts=-1)(Phoenix).remote(tmp_path / "log")
    pid = pid_of(actor)
    del actor
    assert eventually(lambda: not alive(pid))
    assert born(tmp_path / "log") == [pid]


def test_dropping_all_handles_after_a_restart_ends_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log)
    old = pid_of(actor)
    kill(old)
    new = stable_pid_after(actor, old)
    del actor
    assert eventually(lambda: not alive(new))
    assert born(log) == [old, new]


def test_dropping_all_handles_during_a_restart_ends_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log)
    kill(pid_of(actor))
    del actor
    assert eventually(lambda: not any(map(alive, born(log))))
    assert len(born(log)) <= 2
    assert eventually(lambda: trainkit.available_resources()["CPU"] == 4)


def test_the_owners_death_ends_it_for_good(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = trainkit.remote(Borrower).remote()
    owned = trainkit.get(owner.start.remote(log), timeout=20)
    owner_pid = next(process.ppid() for process in [psutil.Process(owned)])
    assert owner_pid
    kill(owned)
    trainkit.kill(owner)
    assert eventually(lambda: not any(map(alive, born(log))))
    time.sleep(0.3)
    assert not any(map(alive, born(log)))


def test_it_holds_its_resources_while_it_is_made_anew() -> None:
    actor = phoenix(num_cpus=3)
    for _ in range(3):
        old = pid_of(actor)
        kill(old)
        stable_pid_after(actor, old)
        assert trainkit.available_resources()["CPU"] == 1
    del actor
    assert eventually(lambda: trainkit.available_resources()["CPU"] == 4)


def test_it_dies_with_its_placement_group() -> None:
    group = trainkit.placement_group([{"CPU": 1}])
    actor = phoenix(num_cpus=1, placement_group=group)
    old = pid_of(actor)
    kill(old)
    stable_pid_after(actor, old)
    trainkit.remove_placement_group(group)
    with pytest.raises(ActorDiedError, match="placement group was removed"):
        pid_of(actor)


def test_an_idle_owner_notices(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = phoenix(log)
    kill(pid_of(actor))
    assert eventually(lambda: len(born(log)) == 2)
    time.sleep(2.5)
    assert alive(born(log)[1])
    assert pid_of(actor) == born(log)[1]


def test_the_nodes_death_is_told() -> None:
    actor = phoenix(max_task_retries=-1)
    pid_of(actor)
    waiting = actor.sleep.remote(60)
    kill(next(child.pid for child in psutil.Process().children() if child.name() == "trainkit-node"))
    with pytest.raises(NodeDiedError):
        trainkit.get(waiting, timeout=10)
    with pytest.raises(NodeDiedError):
        pid_of(actor)


def test_shutdown_while_others_wait() -> None:
    actor = phoenix(max_task_retries=-1)
    old = pid_of(actor)
    raised: list[BaseException] = []

    def wait(ref: Any) -> None:
        try:
            trainkit.get(ref)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=wait, args=(actor.sleep.remote(60),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    kill(old)
    trainkit.shutdown()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert len(raised) == 2
    trainkit.init(num_cpus=4)


def test_many_deaths_under_load() -> None:
    actor = phoenix(max_task_retries=-1)
    pid_of(actor)
    stop = threading.Event()
    wrong: list[Any] = []
    answered = [0, 0, 0]

    def work(which: int) -> None:
        number = 0
        try:
            while not stop.is_set():
                sent = [(which, number + i) for i in range(20)]
                number += 20
                got = trainkit.get([actor.echo.remote(value) for value in sent], timeout=60)
                if got != sent:
                    wrong.append((sent, got))
                answered[which] += len(got)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            before = list(answered)
            kill(pid_of(actor))
            assert eventually(lambda seen=before: all(a > b for a, b in zip(answered, seen, strict=True)), 30)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong, wrong[:3]
