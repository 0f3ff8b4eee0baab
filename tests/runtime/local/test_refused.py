"""Processes that cannot be started or made anew, and calls that cannot be sent: the session goes on whole."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually, every
from tests.runtime.local.restartable import Restartable
from tests.runtime.local.victims import Victim
from tests.suites.parts import wait_for
from trainkit.errors import ActorDiedError, ObjectLostError
from trainkit.runtime.session import engine


@pytest.fixture(autouse=True)
def session(runtime: None) -> None:
    """Every test runs in the module's session."""


def descriptors(pid: int) -> int:
    """Return how many files a process holds open while it waits: a node at work opens some for moments."""
    process = psutil.Process(pid)
    opened, switches = 0, None
    while process.status() != psutil.STATUS_SLEEPING or switches != process.num_ctx_switches():
        switches = process.num_ctx_switches()
        opened = len(os.listdir(f"/proc/{pid}/fd"))
    return opened


def living() -> list[int | None]:
    return [row["pid"] for row in engine().state("actors") if row["state"] != "DEAD"]


@pytest.mark.parametrize("options", [{}, {"name": "one"}, {"name": "one", "lifetime": "detached"}])
def test_a_node_without_descriptors_starts_nothing_and_loses_nothing(options: dict[str, Any]) -> None:
    assert eventually(lambda: not living())  # those of the tests before have ended
    make = trainkit.remote(Victim).options(num_cpus=1, **options)
    bystander = trainkit.remote(Victim).remote()
    bystander_pid = trainkit.get(bystander.pid.remote())
    for _ in range(4):  # so many that all templates that will be needed are there
        trainkit.kill(make.remote())
    node = engine().state("nodes")[0]["pid"]
    limits = resource.prlimit(node, resource.RLIMIT_NOFILE)
    assert eventually(lambda: living() == [bystander_pid])
    held = descriptors(node)
    started = 0
    for spare in range(3, 18, every(4)):
        resource.prlimit(node, resource.RLIMIT_NOFILE, (held + spare, limits[1]))
        actor = make.remote()
        try:
            trainkit.get(actor.pid.remote(), timeout=60)
            started += 1
        except ActorDiedError as error:
            assert "Too many open files" in str(error)
        finally:
            resource.prlimit(node, resource.RLIMIT_NOFILE, limits)
        trainkit.kill(actor)
        # Less, if one that was about to be closed was counted; one left open each time soon exceeds that.
        assert eventually(lambda: descriptors(node) <= held), f"{descriptors(node) - held} left open"
        assert eventually(lambda: living() == [bystander_pid])
        assert trainkit.available_resources()["CPU"] == 4
    assert 0 < started < len(range(3, 18, every(4)))


@pytest.mark.parametrize("lifetime", [None, "detached"])
def test_a_named_actor_that_is_refused_says_so_when_it_is_called(lifetime: str | None) -> None:
    group = trainkit.placement_group([{"CPU": 1}])
    assert group.wait(60)
    trainkit.remove_placement_group(group)
    options: dict[str, Any] = {"name": "late", "lifetime": lifetime, "placement_group": group, "num_cpus": 1}
    for _ in range(2):
        actor = trainkit.remote(Victim).options(**options).remote()
        with pytest.raises(ActorDiedError, match="its placement group was removed"):
            trainkit.get(actor.pid.remote(), timeout=60)


def test_an_actor_whose_node_has_no_descriptors_left_is_made_anew_once_it_has() -> None:
    """What it is made anew with includes a large result that came later, and a handle."""

    def is_noticed(pid: int) -> bool:
        """Return whether the death of that process is noticed."""
        rows = [row for row in engine().state("actors") if row["class_name"] == "Restartable"]
        return any(row["pid"] != pid and row["state"] != "DEAD" for row in rows)

    @trainkit.remote
    def large() -> Any:
        return bytearray(1 << 20)

    node = engine().state("nodes")[0]["pid"]
    bystander = trainkit.remote(Victim).remote()
    limits = resource.prlimit(node, resource.RLIMIT_NOFILE)
    outcomes = set()
    spares = range(0, 22, 2 * every(3))
    for spare in spares:
        result = large.remote()
        actor = trainkit.remote(max_restarts=-1, max_task_retries=-1)(Restartable).remote(
            None, [result], bystander
        )
        pid = trainkit.get(actor.pid.remote())
        trainkit.get(result)
        resource.prlimit(node, resource.RLIMIT_NOFILE, (descriptors(node) + spare, limits[1]))
        try:
            os.kill(pid, signal.SIGKILL)
            assert eventually(functools.partial(is_noticed, pid))
            patience_s = 60 if spare == spares[-1] else 1  # with so many it is made anew
            outcomes.add(trainkit.wait([actor.pid.remote()], timeout=patience_s)[1] == [])
        finally:
            resource.prlimit(node, resource.RLIMIT_NOFILE, limits)
        assert trainkit.get(actor.pid.remote(), timeout=60) != pid
        trainkit.kill(actor)
        assert trainkit.get(bystander.same.remote(spare)) == spare
    assert outcomes == {True, False}


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def counted(values: list[Any], path: Path | None = None) -> int:
    """Return the number of the values, with a path once that is there."""
    if path is not None:
        wait_for(path)
    return len(values)


def test_a_task_that_cannot_be_sent_keeps_no_process(tmp_path: Path) -> None:
    pending = trainkit.remote(num_cpus=0)(wait_for).remote(tmp_path / "go")
    count = trainkit.remote(num_cpus=4)(counted)
    for _ in range(2):
        assert trainkit.get(count.remote([1]), timeout=60) == 1
        with no_descriptor_left(), pytest.raises(ObjectLostError, match="ulimit -n"):
            count.remote([pending])
    behind = [count.remote([1, 2], tmp_path / "first"), count.remote([pending])]
    failed = behind[1].future()
    with no_descriptor_left(), pytest.raises(ObjectLostError, match="ulimit -n"):
        (tmp_path / "first").mkdir()  # a folder is made without a descriptor
        failed.result(60)
    assert trainkit.get(behind[0]) == 2
    assert trainkit.get(count.remote([1]), timeout=60) == 1
    (tmp_path / "go").touch()
    assert trainkit.get(count.remote([pending]), timeout=60) == 1


@pytest.mark.parametrize("options", [{}, {"max_restarts": 1}])
def test_a_retried_call_that_cannot_be_sent_keeps_no_actor(options: dict[str, Any], tmp_path: Path) -> None:
    pending = trainkit.remote(num_cpus=0)(wait_for).remote(tmp_path / "go")
    actor = trainkit.remote(Victim).options(**options).remote()
    pid = trainkit.get(actor.pid.remote(), timeout=60)
    same = actor.same.options(retry_exceptions=True, max_task_retries=1)
    with no_descriptor_left(), pytest.raises(ObjectLostError, match="ulimit -n"):
        same.remote([pending])
    assert trainkit.get(same.remote(1), timeout=60) == 1
    del actor, same
    assert eventually(lambda: pid not in living())
    (tmp_path / "go").touch()
