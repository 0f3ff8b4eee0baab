"""Actors that end themselves."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.performers import Leaver

pytestmark = pytest.mark.usefixtures("runtime")

REASON = r"Leaver \(pid \d+\) was ended: it ended itself by exit_actor\(\)"


def test_the_call_and_those_behind_it_fail_with_the_reason() -> None:
    actor = trainkit.remote(Leaver).remote()
    pid = trainkit.get(actor.pid.remote())
    before = actor.pid.remote()
    refs = [actor.leave.remote(), actor.pid.remote(), actor.pid.remote()]
    assert trainkit.get(before) == pid, "what it had answered arrives"
    for ref in refs:
        with pytest.raises(trainkit.errors.ActorDiedError, match=REASON) as caught:
            trainkit.get(ref, timeout=60)
        assert caught.value.pid == pid
    assert caught.value.exit_code == 0
    assert eventually(lambda: not psutil.pid_exists(pid))
    with pytest.raises(trainkit.errors.ActorDiedError, match=REASON):
        trainkit.get(actor.pid.remote(), timeout=60)


class Parent:
    """Starts many actors just before it ends."""

    def __init__(self, lives: Path) -> None:
        with lives.open("a") as file:
            file.write("x")

    def leave(self, children: int) -> None:
        self.children = [trainkit.remote(num_cpus=0)(Leaver).remote() for _ in range(children)]
        trainkit.exit_actor()


def test_the_node_that_has_not_read_its_last_requests_does_not_make_it_anew(tmp_path: Path) -> None:
    for number in range(4):
        lives = tmp_path / f"{number}"
        actor = trainkit.remote(num_cpus=0, max_restarts=1)(Parent).remote(lives)
        left = actor.leave.remote(20)
        crowd = [
            trainkit.remote(num_cpus=0)(Leaver).remote() for _ in range(10)
        ]  # which the node is busy with
        with pytest.raises(trainkit.errors.ActorDiedError, match="it ended itself by exit_actor"):
            trainkit.get(left, timeout=60)
        trainkit.get([each.pid.remote() for each in crowd], timeout=60)
        assert lives.read_text() == "x"


def test_it_ends_as_a_program_does(tmp_path: Path) -> None:
    actor = trainkit.remote(Leaver).remote()
    actor.leave.remote(tmp_path / "at_exit")
    assert eventually((tmp_path / "at_exit").exists)


def test_it_is_never_made_anew() -> None:
    actor = trainkit.remote(max_restarts=-1)(Leaver).remote()
    actor.leave.remote()
    with pytest.raises(trainkit.errors.ActorDiedError, match=REASON):
        trainkit.get(actor.pid.remote(), timeout=60)


def test_in_the_constructor() -> None:
    with pytest.raises(trainkit.errors.ActorDiedError, match=REASON):
        trainkit.get(trainkit.remote(Leaver).remote(at_once=True).pid.remote(), timeout=60)


def test_outside_an_actor_it_is_refused() -> None:
    with pytest.raises(trainkit.errors.ConfigError, match="outside an actor"):
        trainkit.exit_actor()
    with pytest.raises(trainkit.errors.ConfigError, match="outside an actor"):
        trainkit.get(trainkit.remote(lambda: trainkit.exit_actor()).remote(), timeout=60)
    assert trainkit.get(trainkit.remote(os.getpid).remote()) != os.getpid()
