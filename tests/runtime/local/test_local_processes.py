"""What only separate processes can show: surroundings, shared memory, placement, lifetimes."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import trainkit
from tests.conftest import eventually, shared_memory
from tests.suites.parts import wait_for
from trainkit.runtime.local.system import process
from trainkit.settings import SESSION_MARK

pytestmark = pytest.mark.usefixtures("runtime")


class Answered:
    """Becomes what a task that needs all CPUs says, where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fetch_seven, ()


def fetch_seven() -> Any:
    return trainkit.get(trainkit.remote(num_cpus=4)(abs).remote(-7), timeout=60)


class Probe:
    """Tells of its process, and holds what it is given."""

    def __init__(self) -> None:
        self.kept: Any = None

    def pid(self) -> int:
        return os.getpid()

    def keep(self, value: Any) -> None:
        self.kept = value

    def kept_sum(self) -> float:
        return float(self.kept.sum())

    def call(self, other: Any, amount: int) -> Any:
        return trainkit.get(other.add.remote(amount))

    def look(self, function: Any, *args: Any) -> Any:
        return function(*args)

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def unshared_kb(self) -> int:
        memory = psutil.Process().memory_full_info()
        return int(memory.uss) // 1024


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count


def probe(**options: Any) -> Any:
    return trainkit.remote(**options)(Probe).remote() if options else trainkit.remote(Probe).remote()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def test_a_worker_sees_the_drivers_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Promise 1.23 of docs/promises.md."""
    monkeypatch.setenv("SOME_SETTING", "driver")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    actor = probe(env={"OWN": "worker"})
    assert trainkit.get(actor.look.remote(environment, "SOME_SETTING")) == "driver"
    assert trainkit.get(actor.look.remote(environment, "OWN")) == "worker"
    assert trainkit.get(actor.look.remote(os.getcwd)) == str(tmp_path)
    assert trainkit.get(actor.look.remote(lambda: sys.path)) == sys.path
    assert trainkit.get(actor.look.remote(lambda: sys.argv)) == sys.argv
    assert trainkit.get(actor.look.remote(lambda: sys.stdin.read())) == ""


def test_a_workers_own_variables_do_not_move_it_to_another_session() -> None:
    elsewhere = {"env_vars": {SESSION_MARK: "/another/session"}}
    there = probe(runtime_env=elsewhere).look.remote(environment, SESSION_MARK)
    assert trainkit.get(there) == trainkit.get(probe().look.remote(environment, SESSION_MARK))


def heap_takes_huge_pages() -> bool:
    """Return whether the kernel was told so of this process's heap."""
    heap = Path("/proc/self/smaps").read_text().partition("[heap]")[2]
    return "hg" in heap.partition("VmFlags:")[2].partition("\n")[0].split()


def test_heaps_have_huge_pages() -> None:
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not mode.exists() or "[madvise]" not in mode.read_text():
        pytest.skip("this kernel gives huge pages to all or none")
    assert trainkit.get(probe().look.remote(heap_takes_huge_pages))


def test_how_the_heap_is_set_up_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert trainkit.get(probe().look.remote(environment, "GLIBC_TUNABLES")) is None
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=7")
    assert trainkit.get(probe().look.remote(environment, "GLIBC_TUNABLES")) == "glibc.malloc.tcache_count=7"


def test_siblings_draw_different_numbers() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), float(np.random.random())

    drawn = trainkit.get([probe().look.remote(draw) for _ in range(3)])
    assert len(set(drawn)) == 3
    assert len({second for _, second in drawn}) == 3


def test_a_large_array_is_mapped_by_every_reader_and_copied_by_none() -> None:
    """Promise 1.25 of docs/promises.md."""
    array = np.ones(8_000_000)  # 64 MB
    ref = trainkit.put(array)
    actors = [probe() for _ in range(2)]
    before = trainkit.get([actor.unshared_kb.remote() for actor in actors])
    trainkit.get([actor.keep.remote(ref) for actor in actors])
    assert trainkit.get([actor.kept_sum.remote() for actor in actors]) == [8e6, 8e6]
    after = trainkit.get([actor.unshared_kb.remote() for actor in actors])
    assert all(now - then < 8_000 for now, then in zip(after, before, strict=True))


def test_a_segment_is_used_again_only_when_nobody_reads_it() -> None:
    first = trainkit.put(np.full(1_000_000, 1.0))
    actor = probe()
    trainkit.get(actor.keep.remote(first))
    del first  # the actor's array still lies in it
    second = trainkit.put(np.full(1_000_000, 2.0))
    assert trainkit.get(actor.kept_sum.remote()) == 1e6
    assert trainkit.get(second).sum() == 2e6
    held = shared_memory()
    del second  # nobody has it now: its memory is kept warm, and taken by the next
    third = trainkit.put(np.full(1_000_000, 3.0))
    assert shared_memory() == held
    assert trainkit.get(third).sum() == 3e6
    assert trainkit.get(actor.kept_sum.remote()) == 1e6


def test_a_promise_of_a_dead_owner_says_so() -> None:
    def promise() -> list[Any]:
        return [trainkit.remote(Probe).remote().sleep.remote(60)]

    owner = probe()
    (pending,) = trainkit.get(owner.look.remote(promise))
    trainkit.kill(owner)
    with pytest.raises((trainkit.errors.OwnerDiedError, trainkit.errors.ActorDiedError)):
        trainkit.get(pending, timeout=60)


def test_tasks_run_at_once_but_no_more_than_fit(tmp_path: Path) -> None:
    @trainkit.remote(num_cpus=2)
    def busy(name: str) -> int:
        (tmp_path / name).touch()
        together = 0
        while together < 2 and name in "01":  # the first two have the CPUs to themselves
            together = len(list(tmp_path.iterdir()))
        for _ in range(40):
            together = max(together, len(list(tmp_path.iterdir())))
            time.sleep(0.005)
        (tmp_path / name).unlink()
        return together

    assert max(trainkit.get([busy.remote(str(i)) for i in range(6)])) == 2


def test_an_idle_task_worker_gives_way() -> None:
    trainkit.get([trainkit.remote(lambda: time.sleep(0.01)).remote() for _ in range(8)])
    actor = probe(num_cpus=4)  # needs all that the idle workers were leased with
    assert trainkit.get(actor.pid.remote(), timeout=60)


def test_what_has_not_ended_in_time_is_named() -> None:
    task = trainkit.remote(time.sleep).options(name="nap").remote(600)
    with pytest.raises(trainkit.errors.GetTimeoutError, match=r"get\(timeout=0.01\): nap has not ended yet"):
        trainkit.get(task, timeout=0.01)
    actor = probe()
    for given in (600, task):
        with pytest.raises(trainkit.errors.GetTimeoutError, match=r"Probe\.sleep has not ended yet"):
            trainkit.get(actor.sleep.remote(given), timeout=0.01)
    trainkit.kill(actor)
    trainkit.cancel(task)


def test_calls_to_a_busy_actor_return_at_once(tmp_path: Path) -> None:
    actor = probe()
    trainkit.get(actor.pid.remote())
    slow = actor.look.remote(wait_for, tmp_path / "go")
    payload = b"x" * 100_000
    refs = [actor.look.remote(len, payload) for _ in range(100)]  # far more than a socket's buffer
    assert trainkit.wait([slow], timeout=0)[0] == []
    (tmp_path / "go").touch()
    assert trainkit.get(refs) == [100_000] * 100


def test_init_in_a_worker_has_no_effect() -> None:
    here = trainkit.get(probe().look.remote(lambda: trainkit.init(num_cpus=99)["node_id"]))
    assert here == trainkit.nodes()[0]["node_id"]
    assert trainkit.get(probe().look.remote(trainkit.cluster_resources))["CPU"] == 4


@pytest.mark.parametrize("who", ["task", "actor"])
def test_what_is_unpickled_in_a_process_may_wait_for_a_task(who: str) -> None:
    answered = Answered()

    class Holder:
        held = answered

        def answer(self) -> Any:
            return self.held

    whole = trainkit.remote(num_cpus=4)
    ref = whole(Holder).remote().answer.remote() if who == "actor" else whole(lambda: answered).remote()
    assert trainkit.get(ref, timeout=60) == 7


def test_a_look_without_waiting_lends_nothing() -> None:
    @trainkit.remote(num_cpus=4)
    def polls() -> bool:
        other = trainkit.remote(num_cpus=4)(lambda: 1).remote()
        return any(trainkit.wait([other], timeout=0)[0] for _ in range(200))

    assert trainkit.get(polls.remote(), timeout=60) is False


@pytest.mark.parametrize("who", ["task", "actor"])
def test_what_the_main_thread_lends_stays_lent_while_other_threads_wait(who: str, tmp_path: Path) -> None:
    names = ("early", "late", "started", "seen")
    paths = early, late, started, seen = [tmp_path / name for name in names]

    def waits(others: Any) -> str:
        first, second = (others.look.remote(wait_for, path) for path in (early, late))

        def wait_too() -> None:
            trainkit.get(first)
            seen.touch()

        thread = threading.Thread(target=wait_too)
        thread.start()
        started.touch()
        trainkit.get(second)
        thread.join()
        return "done"

    others = probe(num_cpus=0, max_concurrency=2)
    if who == "task":
        ref = trainkit.remote(num_cpus=4)(waits).remote(others)
    else:
        actor = probe(num_cpus=4)
        trainkit.get(actor.pid.remote())
        ref = actor.look.remote(waits, others)
    try:
        assert eventually(started.exists)
        assert eventually(lambda: trainkit.available_resources().get("CPU") == 4)
        early.touch()
        assert eventually(seen.exists)
        assert trainkit.get(trainkit.remote(num_cpus=4)(lambda: 1).remote(), timeout=60) == 1
    finally:
        for path in paths:
            path.touch()
    assert trainkit.get(ref, timeout=60) == "done"


def test_processes_that_end_one_after_the_other_are_waited_for() -> None:
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(5)]
    looks = itertools.count()

    def left() -> list[int]:
        if next(looks):  # one at a time ends, however long that takes
            children.pop().wait(timeout=60)
        return [child.pid for child in children]

    assert process.end(left, patience_s=0) == []
    assert not children
    with subprocess.Popen(["sleep", "600"]) as stuck:  # it stays a zombie, as nobody asks for its exit code
        assert process.end(lambda: [stuck.pid], patience_s=0) == [stuck.pid]
