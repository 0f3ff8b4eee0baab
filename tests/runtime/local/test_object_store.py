"""The object store's limit: what is counted, what a full store says, and that nothing is lost by it."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainkit
from tests.conftest import eventually, examples, shared_memory
from tests.runtime.local.memory_holders import MIB, AsyncMemoryHolder, MemoryHolder, block
from trainkit.errors import ObjectStoreFullError
from trainkit.runtime.local.memory import locks, usage
from trainkit.runtime.local.memory.budget import StoreBudget

LIMIT_MIB = 64


@pytest.fixture
def small_store() -> Iterator[None]:
    trainkit.init(num_cpus=4, object_store_memory=float(LIMIT_MIB * MIB), object_spilling_directory=False)
    yield
    trainkit.shutdown()
    gc.collect()  # a caught error holds the frames that it passed, and they the references
    assert eventually(lambda: not shared_memory()), f"left in shared memory: {shared_memory()}"


def memory_holder() -> Any:
    return trainkit.remote(MemoryHolder).remote()


def objects(*actors: Any) -> list[dict[str, Any]]:
    pids = [os.getpid(), *trainkit.get([actor.pid.remote() for actor in actors])]
    return usage.objects({pid: str(pid) for pid in pids})


def test_a_full_store_says_who_holds_it_and_loses_nothing(small_store: None) -> None:
    keeper = memory_holder()
    pid = trainkit.get(keeper.pid.remote())
    theirs = trainkit.put(block(20, 9))
    trainkit.get(keeper.keep.remote(theirs))
    del theirs
    mine = [trainkit.put(block(10, fill)) for fill in range(4)]
    with pytest.raises(ObjectStoreFullError) as raised:
        trainkit.put(block(10))
    text = str(raised.value)
    assert "60 MiB of 64 MiB used, 10 MiB requested" in text
    assert f"driver (pid {os.getpid()}) 40 MiB in 4 objects" in text
    assert f"MemoryHolder (pid {pid}) 20 MiB in 1 object" in text
    assert "object_store_memory" in text
    assert [int(trainkit.get(ref)[0]) for ref in mine] == [0, 1, 2, 3]
    assert trainkit.get(keeper.sums.remote()) == [20 * MIB * 9]
    del mine[0]
    assert trainkit.get(trainkit.put(block(10, 7)))[0] == 7
    trainkit.get(keeper.forget.remote())
    assert eventually(lambda: trainkit.get(trainkit.put(block(30, 8)))[0] == 8)


def test_the_call_that_needs_the_room_gets_the_error(small_store: None) -> None:
    keeper = memory_holder()
    full = trainkit.put(block(50))
    with pytest.raises(ObjectStoreFullError):
        keeper.keep.remote(block(20))
    with pytest.raises(ObjectStoreFullError):
        trainkit.remote(MemoryHolder).options(name="never").remote(block(20))
    with pytest.raises(ObjectStoreFullError, match=r"held by: driver \(pid \d+\) 50 MiB in 1 object"):
        trainkit.get(keeper.make.remote(20))
    assert trainkit.get(keeper.pid.remote()), "the actor lives on"
    del full
    assert trainkit.get(keeper.make.remote(20, 3))[0] == 3


def test_unread_calls_count(small_store: None) -> None:
    """What is on its way in a socket, where no process has it, is held all the same."""
    keeper = memory_holder()
    busy = keeper.sleep.remote(1.5)
    with pytest.raises(ObjectStoreFullError, match="the object store is full"):
        for _ in range(20):
            keeper.keep.remote(block(5))
    trainkit.get(busy)
    trainkit.get(keeper.forget.remote())
    assert trainkit.get(trainkit.put(block(40, 2)))[0] == 2


def test_space_comes_back_from_a_killed_holder(small_store: None) -> None:
    keeper = memory_holder()
    held = trainkit.get(keeper.put.remote(10, 5))
    assert len(objects(keeper)) == 5
    with pytest.raises(ObjectStoreFullError):
        trainkit.put(block(30))
    del held
    os.kill(trainkit.get(keeper.pid.remote()), signal.SIGKILL)
    assert eventually(lambda: trainkit.nodes()[0]["object_store"]["used_bytes"] == 0)
    assert trainkit.get(trainkit.put(block(60, 6)))[0] == 6


def test_a_value_handed_on_outlives_its_maker(small_store: None) -> None:
    maker, keeper = memory_holder(), memory_holder()
    (ref,) = trainkit.get(maker.put.remote(10, 1))
    trainkit.get(keeper.keep.remote(ref))
    trainkit.kill(maker)
    del ref
    assert trainkit.get(keeper.sums.remote()) == [10 * MIB]
    (found,) = objects(keeper)
    assert found["size_bytes"] >= 10 * MIB
    assert found["pids"] == [trainkit.get(keeper.pid.remote())]


def test_a_value_is_held_until_the_last_of_its_holders_lets_go(small_store: None) -> None:
    keepers = [memory_holder() for _ in range(2)]
    refs = [trainkit.put(block(50, 3))]
    trainkit.get([keeper.keep.remote(refs[0]) for keeper in keepers])
    for let_go in (
        lambda: trainkit.get(keepers[1].forget.remote()),
        refs.clear,
        lambda: trainkit.kill(keepers[0]),
    ):
        with pytest.raises(ObjectStoreFullError):
            trainkit.put(block(50))
        let_go()
    assert eventually(lambda: not objects(keepers[1]))
    assert trainkit.get(trainkit.put(block(50, 4)))[0] == 4


def test_no_objects_are_listed_once_references_are_gone(small_store: None) -> None:
    refs = [trainkit.put(block(1)) for _ in range(20)]
    listed = objects()
    assert len({entry["object_id"] for entry in listed}) == 20
    assert all(entry["pids"] == [os.getpid()] for entry in listed)
    values = trainkit.get(refs)
    del refs
    assert len(objects()) == 20, "the arrays still lie in it"
    del values
    assert objects() == []


def test_many_large_puts_leave_nothing_behind(small_store: None) -> None:
    value = block(0.5)
    for _ in range(20):
        trainkit.put(value)
    files, rss = len(os.listdir("/proc/self/fd")), psutil.Process().memory_info().rss
    for _ in range(3_000):
        trainkit.put(value)
    assert len(os.listdir("/proc/self/fd")) == files
    assert psutil.Process().memory_info().rss - rss < 10 * MIB


def test_no_descriptor_left(small_store: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = trainkit.put(block(1, 5))
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
    try:
        with pytest.raises(ObjectStoreFullError, match="file descriptor"):
            refs = [trainkit.put(block(0.5)) for _ in range(60)]
        refs = []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refs == []
    assert trainkit.get(kept)[0] == 5
    assert trainkit.get(trainkit.put(block(1, 6)))[0] == 6


def test_what_a_call_was_given_is_freed_though_nobody_asks_for_its_answer(small_store: None) -> None:
    look = trainkit.remote(len)
    assert trainkit.get(look.remote([])) == 0, "a process waits for the next task"
    look.remote([trainkit.put(block(1))])
    assert eventually(lambda: trainkit.list_objects() == [])
    assert eventually(lambda: trainkit.list_tasks() == [])


def test_an_argument_that_came_later_goes_with_its_actor(small_store: None) -> None:
    made = trainkit.remote(block).remote(1)
    keeper = trainkit.remote(MemoryHolder).options(max_restarts=1).remote(made)
    assert trainkit.get(keeper.sums.remote()) == [MIB]
    del keeper, made
    assert eventually(lambda: trainkit.list_objects() == [])


STEP = st.tuples(st.sampled_from(["make", "warm", "close", "share", "unshare"]), st.integers(1, 8))


@given(st.lists(STEP, max_size=40))
@settings(max_examples=examples(50), deadline=None)
def test_the_account_never_counts_too_little(steps: list[tuple[str, int]]) -> None:
    """Whatever two holders of the same segments do, in whatever order."""
    page = os.sysconf("SC_PAGE_SIZE")
    account = StoreBudget.create(24 * page)
    used: list[tuple[int, int]] = []
    warm: list[tuple[int, int]] = []
    shared: list[int] = []
    for step, number in steps:
        if step == "make":
            fd = account.make(number * page)
            if fd is None:
                fd = account.make_after_counting(number * page)
                warm = [(kept, 0) for kept, _ in warm]  # taken back
            if fd is not None:
                used.append((fd, number * page))
        elif step == "warm" and used:
            fd, size = used.pop(number % len(used))
            if locks.claim(fd, account.span(size)):
                locks.release(fd, account.span(size))
                warm.append((fd, size))
            else:
                os.close(fd)
        elif step == "close" and warm:
            account.close_segment(warm.pop(number % len(warm))[0])
        elif step == "share" and used:
            fd, size = used[number % len(used)]
            shared.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
            locks.share(shared[-1], account.span(size))
        elif step == "unshare" and shared:
            os.close(shared.pop(number % len(shared)))
        in_use = {os.fstat(fd).st_ino: os.fstat(fd).st_size for fd in [*(fd for fd, _ in used), *shared]}
        assert locks.sizes_in_use(account.session) == in_use
        assert sum(in_use.values()) + sum(size for _, size in warm) <= account.used_bytes
        assert account.used_bytes <= account.limit_bytes
    for fd in [*(fd for fd, _ in [*used, *warm]), *shared]:
        os.close(fd)
    account.close()


def test_what_is_in_use_is_counted_though_others_let_go_meanwhile() -> None:
    """The kernel passes over a lock when one before it goes between two pages of its table."""
    account = StoreBudget.create(1 << 30)
    size = mmap.PAGESIZE
    for _ in range(examples(10)):
        kept = [account.make(size) for _ in range(200)]
        there = {os.fstat(fd).st_ino for fd in kept if fd is not None}
        assert len(there) == 200
        going = [account.make(size) for _ in range(400)]
        thread = threading.Thread(target=lambda fds: [os.close(fd) for fd in fds], args=(going,))
        thread.start()
        while thread.is_alive():
            assert there <= locks.sizes_in_use(account.session).keys()
        thread.join()
        for fd in kept:
            account.close_segment(fd or -1)
    account.close()


def test_a_count_never_empties_another_file_that_got_the_number_of_a_segment(tmp_path: Path) -> None:
    account = StoreBudget.create(1 << 30)
    warm = account.make(mmap.PAGESIZE) or -1
    locks.release(warm, account.span(mmap.PAGESIZE))
    own = (tmp_path / "own.txt").open("w+b", buffering=0)
    own.write(b"x" * 100)
    number, done = os.dup(warm), threading.Event()

    def alternate() -> None:
        while not done.is_set():
            os.dup2(own.fileno(), number)
            os.ftruncate(warm, mmap.PAGESIZE)
            os.dup2(warm, number)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        for _ in range(examples(500)):
            os.close(account.make_after_counting(mmap.PAGESIZE) or -1)
    finally:
        done.set()
        thread.join()
    assert os.fstat(own.fileno()).st_size == 100
    for fd in (number, warm):
        os.close(fd)
    own.close()
    account.close()


class Reader:
    """Object of a cycle that reads a value when it is collected, and keeps the value's reference."""

    def __init__(self, ref: Any, seen: list[Any]) -> None:
        self.ref, self.seen, self.itself = ref, seen, self

    def __del__(self) -> None:
        self.seen += [self.ref, int(trainkit.get(self.ref)[0])]


def test_a_value_is_readable_until_its_cycle_is_collected(small_store: None) -> None:
    seen: list[Any] = []
    Reader(trainkit.put(block(8, 1)), seen)
    gc.collect()
    other = trainkit.put(block(8, 2))
    ref, first = seen
    assert (first, trainkit.get(ref)[0], trainkit.get(other)[0]) == (1, 1, 2)


def test_two_processes_put_at_the_same_time(small_store: None) -> None:
    makers = [memory_holder() for _ in range(3)]
    for fill in range(20):
        answers = [maker.make.remote(8, fill) for maker in makers]
        assert [int(value[-1]) for value in trainkit.get(answers)] == [fill] * 3
    del answers
    assert np.all(trainkit.get(trainkit.put(block(60, 2))) == 2)


@pytest.mark.parametrize("kind", [MemoryHolder, AsyncMemoryHolder])
def test_an_error_that_does_not_fit_arrives_all_the_same(small_store: None, kind: type[MemoryHolder]) -> None:
    held = trainkit.put(block(LIMIT_MIB - 1))
    actor = trainkit.remote(kind).options(max_concurrency=2).remote()
    pid = trainkit.get(actor.pid.remote())
    with pytest.raises(ValueError) as raised:
        trainkit.get(actor.raise_block.remote(2), timeout=60)
    assert raised.value.args[0].nbytes == 2 * MIB
    assert trainkit.get(actor.pid.remote()) == pid
    assert trainkit.get(held)[0] == 1
