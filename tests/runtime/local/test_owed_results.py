"""Processes that stay for what they owe, and end when that is taken; and how many nested tasks need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually, session_fixture
from tests.suites.parts import await_file

one_cpu = session_fixture(num_cpus=1)


@trainkit.remote(num_cpus=0)
def wait_for(path: Path) -> str:
    await_file(path)
    return "there"


@trainkit.remote(max_calls=1)
def owe(path: Path) -> tuple[int, Any]:
    return os.getpid(), [wait_for.remote(path)]


@trainkit.remote(num_cpus=0)
class Keeper:
    def __init__(self, refs: Any = ()) -> None:
        self._refs = refs

    def keep(self, refs: Any) -> None:
        self._refs = refs

    def give(self) -> Any:
        return self._refs

    def give_to(self, other: Any) -> None:
        trainkit.get(other.keep.remote(self._refs))

    def value(self) -> Any:
        return trainkit.get(self._refs[0])


@trainkit.remote(max_calls=1)
def hand_on(refs: Any) -> tuple[int, Any]:
    return os.getpid(), refs


@trainkit.remote(max_calls=1)
def owe_nothing() -> int:
    return os.getpid()


@trainkit.remote
class Owner:
    def owe(self, path: Path) -> tuple[int, Any]:
        return os.getpid(), [wait_for.remote(path)]

    def leave(self) -> None:
        trainkit.exit_actor()


def lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def stays(pid: int) -> bool:
    """Return whether a process lives when another one has run since."""
    return trainkit.get(owe_nothing.remote()) != pid and lives(pid)


def test_a_process_ends_when_what_it_owes_is_taken(tmp_path: Path) -> None:
    """Promise 1.45 of docs/promises.md."""
    pid, (ref,) = trainkit.get(owe.remote(tmp_path / "go"))
    assert trainkit.wait([ref], timeout=0.3)[0] == []
    assert stays(pid)
    (tmp_path / "go").touch()
    assert trainkit.get(ref, timeout=60) == "there"
    assert eventually(lambda: not lives(pid))


def test_a_process_ends_when_nobody_wants_what_it_owes(tmp_path: Path) -> None:
    pid, refs = trainkit.get(owe.remote(tmp_path / "go"))
    del refs
    assert stays(pid), "its own task runs on"
    (tmp_path / "go").touch()
    assert eventually(lambda: not lives(pid))


def test_who_hands_a_reference_on_owes_nothing(tmp_path: Path) -> None:
    ref = wait_for.remote(tmp_path / "go")
    pid, (back,) = trainkit.get(hand_on.remote([ref]))
    assert eventually(lambda: not lives(pid))
    (tmp_path / "go").touch()
    assert trainkit.get([back, ref], timeout=60) == ["there"] * 2
    assert back == ref


@pytest.mark.parametrize("restarts", [0, 1])
def test_who_hands_a_reference_on_may_be_killed(restarts: int, tmp_path: Path) -> None:
    ref = wait_for.remote(tmp_path / "go")
    relay = Keeper.options(max_restarts=restarts, max_task_retries=-1).remote([ref])
    keeper = Keeper.remote()
    if restarts:
        trainkit.get(relay.give.remote())
        trainkit.kill(relay, no_restart=False)
    trainkit.get(relay.give_to.remote(keeper), timeout=60)
    (back,) = trainkit.get(relay.give.remote(), timeout=60)
    trainkit.kill(relay)
    values = [keeper.value.remote(), back]
    assert trainkit.wait(values, timeout=0.3)[0] == []
    (tmp_path / "go").touch()
    assert trainkit.get(values, timeout=60) == ["there"] * 2


def test_what_an_actor_held_is_free_while_its_process_stays(tmp_path: Path) -> None:
    owner = Owner.options(num_cpus=1, name="owner").remote()
    pid, (ref,) = trainkit.get(owner.owe.remote(tmp_path / "go"))
    del owner
    assert eventually(lambda: trainkit.available_resources().get("CPU") == 1)
    assert lives(pid)
    assert eventually(
        lambda: [row["state"] for row in trainkit.list_actors() if row["pid"] == pid] == ["DEAD"]
    )
    with pytest.raises(ValueError, match="owner"):
        trainkit.get_actor("owner")
    (tmp_path / "go").touch()
    assert trainkit.get(ref, timeout=60) == "there"
    assert eventually(lambda: not lives(pid))


def test_nested_tasks_take_turns_in_a_few_processes() -> None:
    @trainkit.remote
    def innermost() -> list[int]:
        return [os.getpid()]

    @trainkit.remote
    def inner() -> list[int]:
        return [os.getpid(), *trainkit.get(innermost.remote())]

    @trainkit.remote
    def outer() -> list[int]:
        return [os.getpid(), *trainkit.get(inner.remote())]

    pids = trainkit.get([outer.remote() for _ in range(40)], timeout=60)
    assert all(len(set(chain)) == 3 for chain in pids), "one that waits does nothing else"
    assert len({pid for chain in pids for pid in chain}) < 40


def test_processes_beyond_the_cpus_end_soon_when_they_are_not_needed() -> None:
    @trainkit.remote
    def deep(levels: int) -> list[int]:
        return [os.getpid(), *(trainkit.get(deep.remote(levels - 1)) if levels else [])]

    pids = trainkit.get(deep.remote(8), timeout=60)
    assert len(set(pids)) == 9
    assert trainkit.get(deep.remote(0)) != []
    trainkit.available_resources()  # the leases are given back
    assert eventually(lambda: sum(lives(pid) for pid in pids) <= 2)


def test_what_others_keep_without_need_is_free_in_the_eyes_of_a_task() -> None:
    free = trainkit.remote(num_cpus=0)(trainkit.available_resources)
    trainkit.get(trainkit.remote(os.getpid).remote())  # its lease is kept for the next
    assert trainkit.get(free.remote())["CPU"] == 1
