"""File descriptors: what takes none, and what happens where none is left."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.runtime.local.crowded import Crowded, exhaust, limit_for, occupy
from tests.runtime.local.victims import Victim
from trainkit.errors import ActorDiedError, ObjectLostError
from trainkit.runtime.local.wire import sessions
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


class Switch:
    """Waits in one coroutine for another, and looks itself up."""

    def __init__(self) -> None:
        self.on = asyncio.Semaphore(0)

    def look(self) -> Any:
        return trainkit.get_runtime_context().current_actor

    async def look_once(self) -> None:
        self.look()
        await asyncio.sleep(0.2)  # until the connection of that handle is found closed

    async def set(self) -> None:
        self.on.release()

    async def wait(self, count: int, waits: str) -> None:
        Path(waits).touch()
        time.sleep(0.5)  # so that the calls have come and nobody has read them
        itself = self.look()
        for _ in range(count):
            await self.on.acquire()
        del itself


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


@pytest.mark.parametrize("which", range(4))  # of them has the number that the actor's own connection had
def test_an_async_actor_that_looks_itself_up_goes_on_with_a_call_that_came_meanwhile(
    which: int, tmp_path: Path
) -> None:
    switch, waits = trainkit.remote(Switch).remote(), tmp_path / "waits"
    trainkit.get(switch.look_once.remote(), timeout=SOON_S)
    callers = [trainkit.remote(Crowded).remote() for _ in range(4)]
    for caller in callers:
        trainkit.get(caller.set.remote(switch), timeout=SOON_S)
    waiting = switch.wait.remote(5, str(waits))
    assert eventually(waits.exists)
    callers[which].set.remote()
    trainkit.get(waiting, timeout=SOON_S)


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


@pytest.mark.parametrize("what", ["handle", "object", "argument", "pending"])
def test_an_actor_that_lacks_descriptors_for_an_argument_says_so_and_goes_on(
    what: str, tmp_path: Path
) -> None:
    """What comes later leads to what it should."""
    actor, other, third = (trainkit.remote(Crowded).remote() for _ in range(3))
    with busy(other, tmp_path):
        given = {
            "handle": lambda: [[other, third]],
            "object": lambda: [[trainkit.put(bytes(1 << 20)) for _ in range(2)]],
            "argument": lambda: [np.ones(1 << 17)],
            "pending": lambda: [[other.same.remote(7) for _ in range(2)]],
        }[what]()
        trainkit.get(actor.allow.remote(what != "argument"), timeout=SOON_S)
        for _ in range(3):
            with pytest.raises(ObjectLostError, match="ulimit -n"):
                trainkit.get(actor.take.remote(*given), timeout=SOON_S)
        assert trainkit.get(actor.same.remote(1), timeout=SOON_S) == 1
        trainkit.get(actor.allow_all.remote(), timeout=SOON_S)
        answer = actor.first.remote([trainkit.put(np.arange(1 << 17))])
        assert trainkit.get(answer, timeout=SOON_S)[-1] == (1 << 17) - 1
        first = actor.first.remote([other.same.remote(number) for number in (8, 9)])
    assert trainkit.get(first, timeout=SOON_S) == 8


@pytest.mark.parametrize("spare", [3, 100, 260])
def test_lost_descriptors_are_told_from_those_that_came(tmp_path: Path, spare: int) -> None:
    """More than one message of the kernel takes go with a call."""
    actor, other = (trainkit.remote(Crowded).remote() for _ in range(2))
    with busy(other, tmp_path):
        pending = [other.same.remote(number) for number in range(300)]
        trainkit.get(actor.allow.remote(spare), timeout=SOON_S)
        lost = actor.take.remote(pending)
        whole = actor.first.remote(pending[7:9])
        with pytest.raises(ObjectLostError, match="ulimit -n"):
            trainkit.get(lost, timeout=SOON_S)
    assert trainkit.get(whole, timeout=SOON_S) == 7


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


@pytest.mark.parametrize("max_restarts", [0, -1])
@pytest.mark.parametrize("way", ["name", "argument"])
def test_a_caller_that_an_actor_has_no_descriptor_for_is_told(max_restarts: int, way: str) -> None:
    actor = trainkit.remote(Crowded).options(name="full", max_restarts=max_restarts).remote()
    caller, later = (trainkit.remote(Crowded).remote() for _ in range(2))
    trainkit.get([caller.pid.remote(), later.pid.remote(), actor.allow.remote(0)], timeout=SOON_S)
    with pytest.raises(ObjectLostError, match=r"full .*lives.*ulimit -n"):
        asked = caller.ask.remote("full") if way == "name" else caller.call.remote([actor])
        trainkit.get(asked, timeout=SOON_S)
    assert trainkit.get(actor.same.remote(1), timeout=SOON_S) == 1
    trainkit.get(actor.allow_all.remote(), timeout=SOON_S)
    asked = later.ask.remote("full") if way == "name" else later.call.remote([actor])
    assert trainkit.get(asked, timeout=SOON_S) == 1
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


def test_who_has_no_descriptor_left_to_reach_a_session_is_not_told_that_it_has_ended() -> None:
    with limited(os.getpid(), 0), pytest.raises(ObjectLostError, match="ulimit -n"):
        sessions.connect(Path(engine().mark))
    with limited(os.getpid(), 1), pytest.raises(ObjectLostError, match="ulimit -n"):
        sessions.connect(Path(engine().mark))
    sessions.connect(Path(engine().mark)).close()


@pytest.mark.external
def test_a_session_whose_node_has_no_descriptors_ends_in_order() -> None:
    script = (
        "import os, resource, trainkit; from tests.runtime.local.crowded import Crowded, exhaust, limit_for; "
        "trainkit.init(num_cpus=1); actor = trainkit.remote(Crowded).remote(); "
        "pids = [trainkit.get(actor.pid.remote()), trainkit.util.state.list_nodes()[0]['pid']]; "
        "resource.prlimit(pids[1], resource.RLIMIT_NOFILE, (limit_for(pids[1], 0),) * 2); "
        "trainkit.shutdown(); print(*[os.path.exists(f'/proc/{pid}') for pid in pids])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON_S)
    assert (done.stdout.split(), done.stderr) == (["False", "False"], "")


@pytest.mark.external
def test_a_session_that_has_ended_keeps_none() -> None:
    script = (
        "import gc, os, trainkit; gc.disable()\n"
        "def session():\n"
        "    trainkit.init(num_cpus=1); trainkit.shutdown(); return len(os.listdir('/proc/self/fd'))\n"
        "print(session() == session())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON_S)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_all_tasks_fail_that_a_program_has_no_descriptor_to_send(tmp_path: Path) -> None:
    began, until = tmp_path / "began", tmp_path / "until"
    actor = trainkit.remote(Crowded).remote()
    whole = trainkit.remote(num_cpus=SESSION_CPUS)
    running, length = whole(occupy).remote(str(began), str(until)), whole(len)
    assert eventually(began.exists)
    futures = [length.remote([actor]).future() for _ in range(1000)]
    with limited(os.getpid(), 0):
        os.mknod(until)  # takes no descriptor
        for future in futures:
            assert isinstance(future.exception(SOON_S), ObjectLostError)
    assert trainkit.get([running, length.remote([actor])], timeout=SOON_S) == [None, 1]


@pytest.mark.parametrize("why", ["its process died", "its argument came"])
def test_a_task_fails_that_a_program_has_no_descriptor_to_run_later(tmp_path: Path, why: str) -> None:
    began, until = str(tmp_path / "began"), str(tmp_path / "until")
    if why == "its process died":
        task = trainkit.remote(num_cpus=0.25, max_retries=1)(occupy).remote(began, until, True)
    else:
        argument = trainkit.remote(Crowded).remote().occupy.remote(began, until)
        task = trainkit.remote(num_cpus=0.25)(id).remote(argument)
    assert eventually(Path(began).exists)
    future = task.future()
    with limited(os.getpid(), 0):
        os.mknod(until)  # takes no descriptor
        with pytest.raises(ObjectLostError, match="ulimit -n"):
            future.result(SOON_S)
    assert trainkit.get(trainkit.remote(num_cpus=0.25)(len).remote([1]), timeout=SOON_S) == 1


def test_tasks_that_a_node_has_no_descriptor_for_run_in_the_processes_there_are(tmp_path: Path) -> None:
    began, until = tmp_path / "began", tmp_path / "until"
    task, node = trainkit.remote(num_cpus=1.5)(occupy), node_pid()  # a listing has free processes go back
    running = task.remote(str(began), str(until))
    assert eventually(began.exists)
    with crowded_node(node):
        queued = [task.remote(str(began), str(until)) for _ in range(5)]
        assert trainkit.wait(queued, timeout=0.5)[0] == []
        until.touch()
        assert trainkit.get([running, *queued], timeout=SOON_S) == [None] * 6


def test_a_task_given_to_a_process_without_descriptors_runs_in_another() -> None:
    actor = trainkit.remote(Crowded).remote()
    trainkit.get(actor.pid.remote(), timeout=SOON_S)
    full = trainkit.get(trainkit.remote(num_cpus=SESSION_CPUS)(exhaust).remote(), timeout=SOON_S)
    assert trainkit.get(actor.run_task.remote(SESSION_CPUS), timeout=SOON_S) != full
    assert trainkit.get(trainkit.remote(num_cpus=SESSION_CPUS)(os.getpid).remote(), timeout=SOON_S) != full


def test_a_wait_for_tasks_that_there_is_no_descriptor_for_is_told(tmp_path: Path) -> None:
    began, until = tmp_path / "began", tmp_path / "until"
    whole = trainkit.remote(num_cpus=SESSION_CPUS)
    refs = [whole(occupy).remote(str(began), str(until)), whole(len).remote([1])]
    assert eventually(began.exists)
    with limited(os.getpid(), 0), pytest.raises(ObjectLostError, match="ulimit -n"):
        trainkit.wait(refs, num_returns=2, timeout=SOON_S)
    until.touch()
    assert trainkit.get(refs, timeout=SOON_S) == [None, 1]


def test_a_node_without_a_descriptor_looks_after_what_an_ended_worker_leaves() -> None:
    ended, lives = (trainkit.remote(num_cpus=0)(Victim).remote() for _ in range(2))
    pids = trainkit.get([ended.pid.remote(), lives.pid.remote()], timeout=60)
    with crowded_node():
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.5)  # it looks after a twentieth of a second
    assert trainkit.get(lives.pid.remote(), timeout=60) == pids[1]
