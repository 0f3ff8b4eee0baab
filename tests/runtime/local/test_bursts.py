"""Calls sent together: what is sent is what was given, in order, and nobody waits behind a long one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.runtime.local.victims import Victim
from trainkit.errors import WorkerDiedError
from trainkit.runtime.local.system import process
from trainkit.runtime.serialize import lasting

pytestmark = pytest.mark.usefixtures("runtime")

small = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def short(kind: int) -> int:
    """Ends the process for 1, raises for 2, and else returns what it is given."""
    if kind == 1:
        os._exit(3)
    if kind == 2:
        raise LookupError("two")
    return kind


def wait_for(kind: int, flag: str) -> int:
    """Waits for the file `flag` for 1, makes it for 2, and else returns at once."""
    if kind == 1:
        while not os.path.exists(flag):
            time.sleep(0.001)
    if kind == 2:
        Path(flag).touch()
    return kind


@given(st.lists(small, max_size=3).map(tuple), st.dictionaries(st.text(max_size=5), small, max_size=2))
def test_small_arguments_last(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    kept = lasting(args, kwargs)
    back = (kept, {}) if isinstance(kept, tuple) else pickle.loads(kept)
    assert back == (args, kwargs)


@pytest.mark.parametrize("large", ["x" * 5000, [b"x" * 5000], list(range(100)), object(), {1: 2}])
def test_others_go_by_themselves(large: Any) -> None:
    assert lasting((large,), {}) is None


def test_small_and_large_calls_keep_their_order() -> None:
    class Log:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def add(self, index: int, load: bytes = b"") -> int:
            self.seen.append(index)
            return len(load)

        def all(self) -> list[int]:
            return self.seen

    log = trainkit.remote(Log).remote()
    sizes = [0 if index % 7 else 300_000 * (index % 2) + 2000 for index in range(200)]
    refs = [
        log.add.remote(index, b"x" * size) if size else log.add.remote(index)
        for index, size in enumerate(sizes)
    ]
    assert trainkit.get(refs) == sizes
    assert trainkit.get(log.all.remote()) == list(range(200))


def test_a_burst_nobody_waits_for_is_carried_out(tmp_path: Path) -> None:
    class Writer:
        def append(self, path: str, index: int) -> None:
            with open(path, "a") as file:
                file.write(f"{index}\n")

    writer = trainkit.remote(Writer).remote()
    path = tmp_path / "log"
    for index in range(100):
        writer.append.remote(str(path), index)
    assert eventually(lambda: path.exists() and len(path.read_text().splitlines()) == 100)
    assert path.read_text().split() == [str(index) for index in range(100)]


def test_answers_before_a_long_call_do_not_wait_for_it() -> None:
    actor = trainkit.remote(Victim).remote()
    early = [actor.same.remote(index) for index in range(100)]
    late = actor.sleep.remote(3600)
    assert trainkit.get(early, timeout=60) == list(range(100))
    trainkit.kill(actor)
    with pytest.raises(trainkit.errors.ActorDiedError):
        trainkit.get(late)


def test_a_look_takes_what_another_thread_reads_meanwhile() -> None:
    actor = trainkit.remote(Victim).remote()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(15):
            refs = [actor.same.remote(index) for index in range(50)]
            reader = threading.Thread(target=trainkit.get, args=[refs[-1]])
            reader.start()
            while reader.is_alive():
                trainkit.wait(refs, num_returns=len(refs), timeout=0)
            reader.join()
            assert trainkit.get(refs) == list(range(50))
    finally:
        sys.setswitchinterval(before)


def test_one_that_raises_does_not_touch_its_neighbours() -> None:
    task = trainkit.remote(short)
    refs = [task.remote(2 if index % 10 == 5 else 0) for index in range(300)]
    for index, ref in enumerate(refs):
        if index % 10 == 5:
            with pytest.raises(LookupError):
                trainkit.get(ref)
        else:
            assert trainkit.get(ref) == 0


def test_tasks_given_ahead_do_not_wait_behind_one_that_waits_for_them(tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    task = trainkit.remote(wait_for)
    trainkit.get([task.remote(0, flag) for _ in range(500)])  # short, as far as is known now
    refs = [task.remote(kind, flag) for kind in [0] * 50 + [1] * 3 + [0] * 100 + [2] + [0] * 5]
    assert sum(trainkit.get(refs, timeout=60)) == 5


def test_one_that_ends_its_process_fails_alone() -> None:
    task = trainkit.remote(short)
    trainkit.get([task.remote(0) for _ in range(500)])
    refs = [task.remote(kind) for kind in [0] * 50 + [1] + [0] * 100]
    for index, ref in enumerate(refs):
        if index == 50:
            with pytest.raises(WorkerDiedError):
                trainkit.get(ref, timeout=60)
        else:
            assert trainkit.get(ref, timeout=60) == 0


def test_nothing_is_given_to_a_process_that_waits() -> None:
    class Gate:
        def __init__(self) -> None:
            self.is_open = asyncio.Event()

        async def open(self) -> None:
            self.is_open.set()

        async def passed(self) -> None:
            await self.is_open.wait()

    @trainkit.remote(num_cpus=SESSION_CPUS)
    def parent(delay_s: float) -> None:
        gate = trainkit.get_actor("gate")
        time.sleep(delay_s)
        trainkit.get(gate.passed.remote())

    gate = trainkit.remote(Gate).options(name="gate").remote()
    same = trainkit.remote(num_cpus=SESSION_CPUS)(short)
    trainkit.get([same.remote(0) for _ in range(500)])  # short, as far as is known now
    waiting = parent.remote(0.2)
    assert trainkit.get([same.remote(3) for _ in range(5)], timeout=60) == [3] * 5
    trainkit.get(gate.open.remote())
    trainkit.get(waiting, timeout=60)


def test_tasks_do_not_wait_behind_one_of_a_new_function(tmp_path: Path) -> None:
    known = trainkit.remote(num_cpus=SESSION_CPUS / 2)(wait_for)
    go, flag = str(tmp_path / "go"), str(tmp_path / "flag")
    trainkit.get([known.remote(0, flag) for _ in range(500)])
    holders = [known.remote(1, go) for _ in range(2)]

    @trainkit.remote(num_cpus=SESSION_CPUS / 2)
    def new() -> None:
        while not os.path.exists(flag):
            time.sleep(0.001)

    before, late = known.remote(0, flag), new.remote()
    after = [known.remote(kind, flag) for kind in [0] * 4 + [2]]
    Path(go).touch()
    trainkit.get([*holders, before, late, *after], timeout=60)


def test_the_end_of_an_idle_process_fails_no_task() -> None:
    pid = trainkit.remote(max_retries=0)(os.getpid)
    for _ in range(2 * SESSION_CPUS):
        idle = trainkit.get(pid.remote())
        os.kill(idle, signal.SIGKILL)
        assert eventually(lambda idle=idle: not process.exists(idle))
