"""memory= is a limit: who exceeds it is ended and told so, and nobody else is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually, session_fixture
from tests.runtime.local.memory_holders import MIB, Eater, block
from trainkit.runtime.local.node.memory_monitor import MemorySample, excess, needs_a_look

LIMIT = 200 * MIB


machine = session_fixture(num_cpus=8, memory=4 << 30, object_store_memory=1 << 30)


def eater(**options: Any) -> Any:
    return trainkit.remote(Eater).options(memory=LIMIT, **options).remote()


def test_who_exceeds_it_is_ended_and_its_neighbours_finish() -> None:
    """Promises 1.21 and 2.15 of docs/promises.md."""
    greedy, neighbours = eater(), [eater() for _ in range(3)]
    pid = trainkit.get(greedy.pid.remote())
    modest = [neighbour.eat.remote(100) for neighbour in neighbours]
    eaten = greedy.eat_and_keep.remote(400)
    with pytest.raises(
        trainkit.errors.ActorDiedError, match=r"memory limit exceeded: it used .* MiB of the"
    ) as raised:
        trainkit.get(eaten, timeout=60)
    assert f"(pid {pid})" in str(raised.value)
    assert "of the 200 MiB that memory=... allows" in str(raised.value)
    assert "memory=" in str(raised.value)
    with pytest.raises(trainkit.errors.ActorDiedError, match="memory limit exceeded"):
        trainkit.get(greedy.pid.remote(), timeout=60)
    assert trainkit.get(modest, timeout=60) == [10, 10, 10]
    assert trainkit.get([neighbour.eat.remote(20) for neighbour in neighbours], timeout=60) == [12, 12, 12]


def test_a_task_is_ended_and_not_run_again(tmp_path: Any) -> None:
    runs = tmp_path / "runs"

    def eat() -> None:
        with open(runs, "a") as file:
            file.write("once\n")
        Eater().eat_and_keep(400)

    with pytest.raises(trainkit.errors.WorkerDiedError, match="memory limit exceeded"):
        trainkit.get(trainkit.remote(eat).options(memory=LIMIT, max_retries=3).remote(), timeout=60)
    assert runs.read_text() == "once\n"


def test_its_children_count_and_go_with_it(tmp_path: Path) -> None:
    parent = eater()
    pid = trainkit.get(parent.pid.remote())
    fed = parent.feed_a_child.remote(300, tmp_path / "go")
    assert eventually(lambda: psutil.Process(pid).children() != [])
    children = psutil.Process(pid).children()
    (tmp_path / "go").touch()
    with pytest.raises(trainkit.errors.ActorDiedError, match="memory limit exceeded"):
        trainkit.get(fed, timeout=60)
    assert eventually(lambda: not any(child.is_running() for child in children))


def test_shared_objects_are_nobodys_own() -> None:
    refs = [trainkit.put(block(100, fill)) for fill in (1, 2, 3)]
    readers = [eater() for _ in range(2)]
    sums = trainkit.get([reader.read.remote(trainkit.get(refs)) for reader in readers], timeout=60)
    assert sums == [600 * MIB] * 2
    for reader in readers:  # several times the limit, read and kept by reference
        assert trainkit.get(reader.eat.remote(50), timeout=60) == 5


def test_a_close_look_is_taken_where_it_may_matter() -> None:
    assert not needs_a_look(100, 100, None, 0.0)
    assert needs_a_look(100, 101, None, 0.0)
    found = MemorySample(at=0.0, gross_bytes=150, net_bytes=60)
    assert not needs_a_look(100, 150, found, 0.5)
    assert not needs_a_look(100, 170, found, 0.5)
    assert needs_a_look(100, 171, found, 0.5)
    assert needs_a_look(100, 150, found, 1.0)


def test_the_limit_itself_is_allowed() -> None:
    assert excess(512 * MIB, 512 * MIB) is None
    assert excess(512 * MIB, int(1.1 * (1 << 30))) == (
        "memory limit exceeded: it used 1.1 GiB of the 512 MiB that memory=... allows; raise "
        "memory=..., or use less"
    )


def test_nothing_is_looked_at_without_limits() -> None:
    actor = trainkit.remote(Eater).remote()
    assert trainkit.get(actor.eat.remote(300), timeout=60) == 30
    assert trainkit.get(actor.pid.remote()) != os.getpid()


@pytest.mark.slow
def test_what_was_imported_beforehand_is_not_its_own() -> None:
    trainkit.shutdown()
    trainkit.init(num_cpus=4, preload=["torch"])
    lone = trainkit.remote(Eater).options(memory=120 * MIB).remote()
    assert trainkit.get(lone.pages_bytes.remote(), timeout=300) > 120 * MIB
    assert trainkit.get(lone.eat.remote(80, 0.1), timeout=60) == 8
    with pytest.raises(trainkit.errors.ActorDiedError, match="memory limit exceeded"):
        trainkit.get(lone.eat_and_keep.remote(100, 0.1), timeout=60)
