"""File descriptors: what takes none, and what happens where none is left."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually, run_python
from tests.runtime.local.crowded import Crowded, exhaust, limit_for
from tests.runtime.local.victims import Victim
from trainkit.errors import ActorDiedError, ObjectLostError
from trainkit.runtime.session import engine

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


@contextmanager
def crowded_node(node: int | None = None) -> Iterator[None]:
    """The session's node has no descriptor left, as it has visitors."""
    node = node or node_pid()
    limits = resource.prlimit(node, resource.RLIMIT_NOFILE)
    limit = max(int(fd) for fd in os.listdir(f"/proc/{node}/fd")) + 1
    resource.prlimit(node, resource.RLIMIT_NOFILE, (limit, limits[1]))
    visitors = [socket.socket(socket.AF_UNIX) for _ in range(limit - descriptors(node) + 5)]
    try:
        for visitor in visitors:
            visitor.connect(f"{engine().mark}/node.sock")
        assert eventually(lambda: descriptors(node) == limit)
        yield
    finally:
        resource.prlimit(node, resource.RLIMIT_NOFILE, limits)
        for visitor in visitors:
            visitor.close()


def test_a_busy_actor_can_be_looked_up_without_end(tmp_path: Path) -> None:
    actor = trainkit.remote(Crowded).options(name="busy").remote()
    with busy(actor, tmp_path):
        node = node_pid()
        before = descriptors(node), descriptors(os.getpid())
        for _ in range(200):
            found = trainkit.get_actor("busy")
        assert descriptors(node) < before[0] + 50
        assert descriptors(os.getpid()) < before[1] + 50
    assert trainkit.get(found.same.remote(1), timeout=SOON_S) == 1
    assert found == actor
    trainkit.kill(actor)


def test_who_has_no_descriptor_left_for_an_actor_is_told() -> None:
    named = trainkit.remote(Crowded).options(name="named").remote()
    holder = trainkit.remote(Crowded).remote(named)
    trainkit.get(holder.pid.remote(), timeout=SOON_S)
    del named
    gc.collect()
    length = trainkit.remote(len)
    with limited(os.getpid(), 1):
        for ask in (
            trainkit.remote(Crowded).remote,
            lambda: trainkit.get_actor("named"),
            lambda: holder.take.remote([holder]),
            lambda: length.remote([1]),
        ):
            with pytest.raises(ObjectLostError, match="ulimit -n"):
                ask()
    assert trainkit.get(trainkit.get_actor("named").same.remote(1), timeout=SOON_S) == 1
    trainkit.kill(holder)


@pytest.mark.parametrize("what", ["object", "pending"])
def test_an_actor_that_lacks_descriptors_for_an_argument_says_so_and_goes_on(
    what: str, tmp_path: Path
) -> None:
    """What comes later leads to what it should."""
    actor, other = (trainkit.remote(Crowded).remote() for _ in range(2))
    with busy(other, tmp_path):
        given = {
            "object": lambda: [[trainkit.put(bytes(1 << 20)) for _ in range(2)]],
            "pending": lambda: [[other.same.remote(7) for _ in range(2)]],
        }[what]()
        trainkit.get(actor.allow.remote(1), timeout=SOON_S)
        for _ in range(3):
            with pytest.raises(ObjectLostError, match="ulimit -n"):
                trainkit.get(actor.take.remote(*given), timeout=SOON_S)
        assert trainkit.get(actor.same.remote(1), timeout=SOON_S) == 1
        trainkit.get(actor.allow_all.remote(), timeout=SOON_S)
        answer = actor.first.remote([trainkit.put(np.arange(1 << 17))])
        assert trainkit.get(answer, timeout=SOON_S)[-1] == (1 << 17) - 1
        first = actor.first.remote([other.same.remote(number) for number in (8, 9)])
    assert trainkit.get(first, timeout=SOON_S) == 8


@pytest.mark.parametrize("what", ["handle", "object"])
def test_a_program_that_lacks_descriptors_for_a_result_is_told(what: str) -> None:
    actor = trainkit.remote(Crowded).remote()
    trainkit.get(actor.pid.remote(), timeout=SOON_S)
    with limited(os.getpid(), 1):
        result = actor.give.remote(what)
        with pytest.raises(ObjectLostError, match="ulimit -n"):
            trainkit.get(result, timeout=SOON_S)
        assert trainkit.get(actor.same.remote(1), timeout=SOON_S) == 1
    assert len(trainkit.get(actor.give.remote(what), timeout=SOON_S)) == 2


def test_a_caller_that_an_actor_has_no_descriptor_for_is_told() -> None:
    actor = trainkit.remote(Crowded).options(name="full").remote()
    caller, later = (trainkit.remote(Crowded).remote() for _ in range(2))
    trainkit.get([caller.pid.remote(), later.pid.remote(), actor.allow.remote(0)], timeout=SOON_S)
    with pytest.raises(ObjectLostError, match=r"full .*runs, but .*ulimit -n"):
        trainkit.get(caller.call.remote([actor]), timeout=SOON_S)
    assert trainkit.get(actor.same.remote(1), timeout=SOON_S) == 1
    trainkit.get(actor.allow_all.remote(), timeout=SOON_S)
    assert trainkit.get(later.call.remote([actor]), timeout=SOON_S) == 1
    trainkit.kill(actor)


def test_a_node_without_descriptors_says_so_and_goes_on() -> None:
    named = trainkit.remote(Crowded).options(name="named").remote()
    caller, later = (trainkit.remote(Crowded).remote() for _ in range(2))
    trainkit.get([actor.pid.remote() for actor in (named, caller, later)], timeout=SOON_S)
    with crowded_node():
        with pytest.raises(ObjectLostError, match=r"node .*ulimit -n"):
            trainkit.get(caller.ask.remote("named"), timeout=SOON_S)
        with pytest.raises(ObjectLostError, match=r"node .*ulimit -n"):
            trainkit.remote(Crowded).options(name="another").remote()
        with pytest.raises(ActorDiedError, match=r"node .*ulimit -n"):
            trainkit.get(trainkit.remote(Crowded).remote().pid.remote(), timeout=SOON_S)
        with pytest.raises(ObjectLostError, match=r"node .*ulimit -n"):
            trainkit.get(trainkit.remote(num_cpus=0.5)(os.getpid).remote(), timeout=SOON_S)
        assert trainkit.get(named.same.remote(1), timeout=SOON_S) == 1
    assert trainkit.get(later.ask.remote("named"), timeout=SOON_S) == 1
    assert trainkit.get(trainkit.remote(num_cpus=0.5)(os.getpid).remote(), timeout=SOON_S)
    assert trainkit.get(trainkit.remote(Crowded).options(name="another").remote().same.remote(1)) == 1
    trainkit.kill(named)


def test_a_node_without_a_descriptor_looks_after_what_an_ended_worker_leaves() -> None:
    ended, lives = (trainkit.remote(num_cpus=0)(Victim).remote() for _ in range(2))
    pids = trainkit.get([ended.pid.remote(), lives.pid.remote()], timeout=60)
    with crowded_node():
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.5)  # it looks after a twentieth of a second
    assert trainkit.get(lives.pid.remote(), timeout=60) == pids[1]


def test_a_task_given_to_a_process_without_descriptors_runs_in_another() -> None:
    actor = trainkit.remote(Crowded).remote()
    trainkit.get(actor.pid.remote(), timeout=SOON_S)
    full = trainkit.get(trainkit.remote(num_cpus=SESSION_CPUS)(exhaust).remote(), timeout=SOON_S)
    assert trainkit.get(actor.run_task.remote(SESSION_CPUS), timeout=SOON_S) != full
    assert trainkit.get(trainkit.remote(num_cpus=SESSION_CPUS)(os.getpid).remote(), timeout=SOON_S) != full


@pytest.mark.external
def test_a_session_that_has_ended_keeps_none() -> None:
    script = (
        "import gc, os, trainkit; gc.disable()\n"
        "def session():\n"
        "    trainkit.init(num_cpus=1); trainkit.shutdown(); return len(os.listdir('/proc/self/fd'))\n"
        "print(session() == session())"
    )
    done = run_python("-c", script, timeout=SOON_S)
    assert (done.stdout, done.stderr) == ("True\n", "")
