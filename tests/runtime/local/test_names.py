"""Named actors of one session: whose a name is, when it is free again, and who finds it."""

from __future__ import annotations

import enum
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainkit
from tests.conftest import eventually
from tests.runtime.local.victims import Victim
from trainkit.errors import ConfigError, TrainkitError, did_you_mean
from trainkit.runtime.local.client.engine import LocalEngine
from trainkit.runtime.session import engine


@given(st.text(min_size=3, max_size=20), st.lists(st.text(min_size=1)))
def test_a_slip_of_the_pen_is_found(name: str, others: list[str]) -> None:
    assert did_you_mean(name, [*others, name]) == f" Did you mean {name!r}?"
    assert did_you_mean(name, []) == ""


@pytest.fixture(autouse=True)
def session(runtime: None) -> None:
    """Every test below runs in the module's session."""


def named(name: str, **options: Any) -> Any:
    return trainkit.remote(Victim).options(name=name, **options)


def test_an_unknown_name_is_told_with_its_nearest() -> None:
    kept = named("evaluator").remote()
    with pytest.raises(ConfigError, match=r"no actor named 'evalutor'.*'default'.*this session.*'evaluator'"):
        trainkit.get_actor("evalutor")
    with pytest.raises(ConfigError, match="no actor named 'evaluator' exists in the namespace 'empty'"):
        trainkit.get_actor("evaluator", "empty")
    assert trainkit.get(kept.same.remote(1)) == 1


def known(name: str) -> bool:
    try:
        trainkit.get_actor(name)
    except ConfigError:
        return False
    return True


def test_one_that_still_waits_for_its_process_is_found() -> None:
    holder = trainkit.remote(Victim).options(num_cpus=4).remote()
    trainkit.get(holder.pid.remote())
    made = named("late", num_cpus=1).remote()
    found = trainkit.get_actor("late")
    with pytest.raises(ConfigError, match="waits to be started"):
        named("late").remote()
    answer = found.same.remote(5)
    assert trainkit.wait([answer], timeout=0.1)[0] == []
    trainkit.kill(holder)
    assert trainkit.get(answer, timeout=60) == 5
    assert trainkit.get(made.same.remote(6)) == 6


def test_a_name_that_waits_is_free_when_it_is_killed() -> None:
    holder = trainkit.remote(Victim).options(num_cpus=4).remote()
    trainkit.get(holder.pid.remote())
    waits = named("never", num_cpus=1).remote()
    trainkit.kill(waits)
    assert not known("never")
    trainkit.kill(holder)


def test_the_name_of_a_killed_actor_is_its_successors_also_once_the_first_has_ended() -> None:
    first = named("heir").remote()
    pid = trainkit.get(first.pid.remote())
    trainkit.kill(first)
    second = named("heir").remote()
    assert trainkit.get(second.pid.remote()) != pid
    assert eventually(lambda: (pid, "DEAD") in [(row["pid"], row["state"]) for row in trainkit.list_actors()])
    assert known("heir")


class Big:
    def __init__(self, payload: bytes) -> None:
        time.sleep(0.05)
        self.size = len(payload)

    def length(self) -> int:
        return self.size


@trainkit.remote
def call_by_name(name: str) -> int:
    length: int = trainkit.get(trainkit.get_actor(name).length.remote())
    return length


def test_who_comes_before_the_constructor_has_run_waits_for_it() -> None:
    """Its frame is larger than a socket's buffer, so it may be half sent when the first visitor comes."""
    size = 250_000
    for number in range(5):
        kept = trainkit.remote(Big).options(name=f"big{number}").remote(bytes(size))
        found = trainkit.get_actor(f"big{number}")
        assert trainkit.get([found.length.remote(), call_by_name.remote(f"big{number}")]) == [size, size]
        del kept, found


class Called(enum.StrEnum):
    """Texts of a class that the node does not have."""

    CHIEF = "chief"


def test_what_the_node_cannot_read_harms_nobody_else() -> None:
    made = named("bystander").remote()
    pid = trainkit.get(made.pid.remote())
    local = engine()
    assert isinstance(local, LocalEngine)
    with pytest.raises(TrainkitError, match="could not serve the request"):
        local.node.demand(Called)
    with pytest.raises(TrainkitError, match="cannot handle"):
        local.node.demand("nothing that it knows")
    assert trainkit.get(trainkit.get_actor("bystander").pid.remote()) == pid
