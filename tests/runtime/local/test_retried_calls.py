"""Calls that an actor's death interrupted, when it is made anew; with real processes and signals."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import trainkit
from tests.conftest import eventually, session_fixture
from tests.runtime.local.restartable import born
from tests.runtime.local.restarting import kill, pid_of, restartable
from trainkit.errors import ActorDiedError

session = session_fixture("function", num_cpus=4)


def test_calls_in_flight_fail_and_say_that_it_is_made_anew() -> None:
    actor = restartable()
    old = pid_of(actor)
    running, queued = actor.sleep.remote(60), actor.echo.remote(1)
    # Who waits sends first; a call that has not left this process would be made by the next one.
    assert trainkit.wait([running, queued], timeout=0.2)[0] == []
    kill(old)
    for ref in (running, queued):
        with pytest.raises(
            ActorDiedError, match=rf"pid {old}\) was killed by SIGKILL.*being restarted"
        ) as caught:
            trainkit.get(ref, timeout=60)
        assert (caught.value.pid, caught.value.exit_code) == (old, -signal.SIGKILL)
    assert pid_of(actor) != old


def test_calls_are_made_again_in_their_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = restartable(log, max_task_retries=2)
    refs = [actor.run.remote("a"), actor.run.remote("b", 2), actor.run.remote("c"), actor.run.remote("d")]
    assert trainkit.get(refs, timeout=60) == ["a", "b", "c", "d"]
    lines = [line for line in log.read_text().splitlines() if not line.startswith("born")]
    assert lines == ["a", "b", "b", "b", "c", "d"]
    assert len(born(log)) == 3


def test_retries_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = restartable(log, max_task_retries=2)
    with pytest.raises(ActorDiedError, match="being restarted"):
        trainkit.get(actor.run.remote("x", 99), timeout=60)
    assert log.read_text().split("\n").count("x") == 3
    assert trainkit.get(actor.run.remote("y"), timeout=60) == "y"


@pytest.mark.parametrize(("count", "cancelled"), [(1, 0), (2, 1)])
def test_a_call_is_not_made_again_whichever_of_its_results_was_cancelled(count: int, cancelled: int) -> None:
    actor = restartable(max_task_retries=-1)
    process = psutil.Process(pid_of(actor))
    process.suspend()  # it does not hear of it
    results = actor.sleep.options(num_returns=count).remote(600)
    refs = results if count > 1 else [results]
    assert trainkit.wait(refs, timeout=0.1)[0] == []
    trainkit.cancel(refs[cancelled])
    process.kill()
    with pytest.raises(ActorDiedError, match="being restarted"):
        trainkit.get(refs, timeout=60)


def test_large_arguments_are_sent_again() -> None:
    actor = restartable(max_task_retries=1)
    old = pid_of(actor)
    small, large = np.arange(100), np.ones(1_000_000)
    actor.sleep.remote(0.3)
    refs = [actor.echo.remote(small), actor.echo.remote(large)]
    small[:] = 0  # what was sent was sent
    kill(old)
    first, second = trainkit.get(refs, timeout=60)
    np.testing.assert_array_equal(first, np.arange(100))
    assert second.sum() == 1_000_000


def test_many_deaths_under_load() -> None:
    actor = restartable(max_task_retries=-1)
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
        for _ in range(8):
            before = list(answered)
            kill(actor)
            assert eventually(lambda seen=before: all(a > b for a, b in zip(answered, seen, strict=True)))
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong, wrong[:3]
