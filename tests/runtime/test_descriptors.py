"""File descriptors: what takes none, and what happens where none is left."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.crowded import Crowded, limit_for
from trainkit.errors import ObjectLostError
from trainkit.runtime.current import engine

SOON_S = 60


@pytest.fixture(autouse=True)
def session(runtime: None) -> None:
    """Every test runs in the module's session."""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def node_pid() -> int:
    pid: int = engine().state("nodes")[0]["pid"]
    return pid


@contextmanager
def busy(actor: Any, folder: Path) -> Iterator[Any]:
    """`actor` runs a call; gives the reference to that."""
    began, until = folder / "began", folder / "until"
    call = actor.occupy.remote(str(began), str(until))
    assert eventually(began.exists)
    yield call
    until.touch()
    trainkit.get(call, timeout=SOON_S)


@contextmanager
def limited(pid: int, spare: int) -> Iterator[None]:
    """That process may open as many descriptors more as said."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit_for(pid, spare), limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("max_restarts", [0, -1])
def test_a_busy_actor_can_be_looked_up_without_end(tmp_path: Path, max_restarts: int) -> None:
    actor = trainkit.remote(Crowded).options(name="busy", max_restarts=max_restarts).remote()
    with busy(actor, tmp_path):
        node = node_pid()
        before = descriptors(node), descriptors(os.getpid())
        for _ in range(1000):
            found = trainkit.get_actor("busy")
        assert descriptors(node) < before[0] + 50
        assert descriptors(os.getpid()) < before[1] + 50
    assert trainkit.get(found.same.remote(1), timeout=SOON_S) == 1
    assert found == actor
    trainkit.kill(actor)


def test_an_actor_that_looks_itself_up_takes_no_descriptors() -> None:
    actor = trainkit.remote(Crowded).remote()
    assert trainkit.get(actor.look_itself_up.remote(300), timeout=SOON_S) <= 2
    trainkit.kill(actor)


def test_many_threads_make_one_actor_with_few_descriptors() -> None:
    make = trainkit.remote(Crowded).options(name="one", get_if_exists=True)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(make.remote())) for _ in range(100)]
    with limited(os.getpid(), 20):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(trainkit.get([actor.pid.remote() for actor in found], timeout=SOON_S))) == 1
    assert len(found) == 100
    trainkit.kill(found[0])


def test_who_has_no_descriptor_left_for_an_actor_is_told() -> None:
    named = trainkit.remote(Crowded).options(name="named").remote()
    holder = trainkit.remote(Crowded).remote(named)
    trainkit.get(holder.pid.remote(), timeout=SOON_S)
    del named
    gc.collect()
    with limited(os.getpid(), 1):
        for ask in (trainkit.remote(Crowded).remote, lambda: trainkit.get_actor("named")):
            with pytest.raises(ObjectLostError, match="ulimit -n"):
                ask()
    assert trainkit.get(trainkit.get_actor("named").same.remote(1), timeout=SOON_S) == 1
    trainkit.kill(holder)


def test_a_pending_reference_can_be_sent_without_end(tmp_path: Path) -> None:
    late, actor = (trainkit.remote(Crowded).remote() for _ in range(2))
    with busy(late, tmp_path):
        result = late.same.remote(7)
        before = descriptors(os.getpid())
        for _ in range(1500):
            trainkit.get(actor.take.remote([result]), timeout=SOON_S)
        assert descriptors(os.getpid()) < before + 500
        waits = actor.first.remote([result])
    assert trainkit.get(waits, timeout=SOON_S) == trainkit.get(result, timeout=SOON_S) == 7
