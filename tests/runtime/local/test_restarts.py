"""Actors that are made anew: who they are then, and who still reaches them; with real signals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually, session_fixture
from tests.runtime.local.restartable import Borrower, Raising, Restartable, born
from tests.runtime.local.restarting import assert_born_again, kill, pid_of, restartable, stable_pid_after
from trainkit.errors import ActorDiedError, TaskError
from trainkit.runtime.local.system import process

session = session_fixture("function", num_cpus=4)


def test_it_is_made_anew_with_the_same_arguments_and_fresh_state() -> None:
    @trainkit.remote
    def slow() -> str:
        time.sleep(0.3)
        return "came later"

    other = trainkit.remote(Restartable).remote()
    array = np.arange(1_000_000)
    actor = restartable(
        None, array, np.arange(10), trainkit.put("kept"), slow.remote(), [trainkit.put(5)], other
    )
    assert trainkit.get([actor.add.remote(1), actor.add.remote(1)], timeout=60) == [1, 2]
    for _ in range(2):
        assert_born_again(actor)
        assert trainkit.get(actor.add.remote(1), timeout=60) == 1
        given = trainkit.get(actor.what_was_given.remote(), timeout=60)
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

    actor = restartable(None, [value.remote()])
    assert_born_again(actor)  # a reference in a list is not waited for
    waiting = restartable(None, value.remote())
    answer = waiting.what_was_given.remote()
    gate.touch()
    assert trainkit.get(trainkit.get(actor.what_was_given.remote(), timeout=60)[0][0]).sum() == 1_000_000
    assert trainkit.get(answer, timeout=60)[0].sum() == 1_000_000
    assert_born_again(waiting)
    assert trainkit.get(waiting.what_was_given.remote(), timeout=60)[0].sum() == 1_000_000


def test_a_borrower_survives_a_restart() -> None:
    actor = restartable(max_task_retries=-1)
    old = pid_of(actor)
    borrower = trainkit.remote(Borrower).remote(actor)
    assert trainkit.get(borrower.ask.remote(1), timeout=60) == 1
    kill(old)
    assert trainkit.get(borrower.ask.remote(2), timeout=60) == 2
    new = trainkit.get(borrower.ask_pid.remote(), timeout=60)
    assert new == pid_of(actor) != old


def test_a_borrower_keeps_it_when_its_owner_lets_go(tmp_path: Path) -> None:
    actor = restartable(tmp_path / "log")
    borrower = trainkit.remote(Borrower).remote(actor)
    old = trainkit.get(borrower.ask_pid.remote(), timeout=60)
    del actor
    kill(old)
    assert eventually(lambda: len(born(tmp_path / "log")) == 2)
    time.sleep(2.5)  # longer than those who were connected are waited for
    assert trainkit.get(borrower.ask_pid.remote(), timeout=60) == born(tmp_path / "log")[1]
    trainkit.get(borrower.drop.remote(), timeout=60)
    assert eventually(lambda: not process.exists(born(tmp_path / "log")[1]))


def test_a_handle_sent_while_it_is_made_anew_works() -> None:
    actor = restartable(max_task_retries=-1)
    old = pid_of(actor)
    borrower = trainkit.remote(Borrower).remote()
    trainkit.get(borrower.drop.remote(), timeout=60)
    kill(old)
    trainkit.get(borrower.take.remote(actor), timeout=60)
    assert trainkit.get(borrower.ask.remote("x"), timeout=60) == "x"


def test_a_constructor_that_raises_when_it_is_made_anew(tmp_path: Path) -> None:
    actor = trainkit.remote(max_restarts=1, max_task_retries=1)(Raising).remote(tmp_path / "log")
    kill(actor)
    with pytest.raises(KeyError, match="only once") as caught:
        pid_of(actor)
    assert isinstance(caught.value, TaskError)


def test_what_it_lent_while_it_waited_is_held_again() -> None:
    slow = trainkit.remote(Restartable).remote()
    actor = trainkit.remote(max_restarts=1, num_cpus=1)(Borrower).remote(slow)
    old = pid_of(actor)
    # Its own call, and no other one's: what two callers send to an actor comes there in any order.
    asking = actor.wait_for_it.remote(600)
    assert eventually(lambda: trainkit.available_resources().get("CPU") == 4)
    kill(old)
    with pytest.raises(ActorDiedError, match="being restarted"):
        trainkit.get(asking, timeout=60)
    assert trainkit.available_resources()["CPU"] == 3
    assert stable_pid_after(actor, old) != old
    trainkit.kill(actor)
    assert trainkit.available_resources()["CPU"] == 4
