"""Large values that find no room in memory go to disk: as many as there are, and nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually, run_python, shared_memory
from tests.runtime.local.memory_holders import MIB, MemoryHolder, block
from trainkit.errors import ConfigError, ObjectStoreFullError, OutOfDiskError
from trainkit.runtime.local.memory import spilling, usage

LIMIT_MIB = 32


def on_disk(folder: Path) -> list[str]:
    """The files in a folder that any process has open or mapped, with their names or without."""
    found = []
    for pid in usage.all_pids():
        with contextlib.suppress(OSError):  # it has ended
            found += Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return [line for line in found if f"{folder}/" in line]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "spilled"
    trainkit.init(num_cpus=4, object_store_memory=LIMIT_MIB * MIB, object_spilling_directory=folder)
    yield folder
    trainkit.shutdown()
    gc.collect()
    assert eventually(lambda: not shared_memory() and not on_disk(folder))
    assert not folder.exists() or not list(folder.iterdir())


def store() -> dict[str, int]:
    (node,) = trainkit.nodes()
    return dict(node["object_store"])


@pytest.mark.external
def test_as_many_as_there_are(disk: Path) -> None:
    refs = [trainkit.put(block(10, fill)) for fill in range(12)]
    total = trainkit.remote(lambda *values: [int(value[-1]) for value in values])
    assert trainkit.get(total.remote(*refs)) == list(range(12))
    values = trainkit.get(refs)
    assert [int(value.sum(dtype=np.int64)) for value in values] == [fill * 10 * MIB for fill in range(12)]
    assert not any(value.flags.writeable for value in values)
    rows = trainkit.list_objects()
    assert [sum(row["spilled"] for row in rows), len(rows)] == [9, 12]
    assert all(os.getpid() in row["pids"] for row in rows)
    assert store() == {
        "limit_bytes": LIMIT_MIB * MIB,
        "used_bytes": sum(row["size_bytes"] for row in rows if not row["spilled"]),
        "on_disk_bytes": sum(row["size_bytes"] for row in rows if row["spilled"]),
        "spilled_bytes": sum(row["size_bytes"] for row in rows if row["spilled"]),
        "spilled_objects": 9,
    }
    assert on_disk(disk)
    assert list(disk.iterdir()) == []
    shown = run_python("-m", "trainkit", "status")
    assert "30 MiB of 32 MiB memory, 90 MiB on disk (9 spilled so far, 90 MiB)" in shown.stdout
    del refs, values
    assert eventually(lambda: not on_disk(disk))
    assert trainkit.list_objects() == []


def test_nothing_goes_to_disk_as_long_as_there_is_room(disk: Path) -> None:
    value = block(10)
    for _ in range(30):
        kept = [trainkit.put(value), trainkit.put(value)]
        assert trainkit.get(trainkit.remote(lambda given: int(given[0])).remote(kept[0])) == 1
        del kept
    assert store()["spilled_objects"] == 0


def test_what_exceeds_the_whole_store(disk: Path) -> None:
    ref = trainkit.put(block(2 * LIMIT_MIB, 3))
    assert trainkit.get(trainkit.remote(lambda value: int(value[-1])).remote(ref)) == 3
    assert [row["spilled"] for row in trainkit.list_objects()] == [True]


def test_a_reader_keeps_what_it_reads(disk: Path) -> None:
    refs = [trainkit.put(block(10, fill)) for fill in range(3)]
    read = trainkit.get(refs[0])
    more = [trainkit.put(block(10, fill)) for fill in range(3, 6)]
    assert int(read.sum(dtype=np.int64)) == 0
    assert [int(value[0]) for value in trainkit.get(refs + more)] == list(range(6))
    mapped = {row["object_id"]: row["spilled"] for row in trainkit.list_objects()}
    assert sorted(mapped.values()) == [False] * 3 + [True] * 3


def test_what_others_hold_stays_where_it_is(disk: Path) -> None:
    keeper = trainkit.remote(MemoryHolder).remote()
    refs = [trainkit.put(block(10, fill)) for fill in range(3)]
    trainkit.get(keeper.kept_as_given.remote(refs))
    more = [trainkit.put(block(10, fill)) for fill in range(3, 6)]
    trainkit.get(keeper.kept_as_given.remote(more))
    assert [int(value[0]) for value in trainkit.get(refs + more)] == list(range(6))
    assert sorted(row["spilled"] for row in trainkit.list_objects()) == [False] * 3 + [True] * 3


def test_a_reference_outlives_its_maker(disk: Path) -> None:
    maker, keeper = trainkit.remote(MemoryHolder).remote(), trainkit.remote(MemoryHolder).remote()
    refs = trainkit.get(maker.put.remote(10, 6))
    trainkit.kill(maker)
    assert trainkit.get(keeper.keep.remote(*refs)) == sum(range(1, 7))


def test_what_was_moved_makes_room_in_memory(disk: Path) -> None:
    cold = [trainkit.put(block(10, fill)) for fill in range(3)]
    for fill in range(20):
        assert int(trainkit.get(trainkit.put(block(10, fill)))[0]) == fill
    assert store()["spilled_objects"] <= 3
    assert [int(value[0]) for value in trainkit.get(cold)] == [0, 1, 2]


def test_the_limit_holds_while_many_processes_spill(disk: Path) -> None:
    makers = [trainkit.remote(MemoryHolder).options(num_cpus=0).remote() for _ in range(4)]
    pending = [maker.put.remote(1, 80) for maker in makers]
    most = 0
    while pending:
        _, pending = trainkit.wait(pending, num_returns=len(pending), timeout=0.05)
        most = max(most, store()["used_bytes"])
    assert 0 < most <= LIMIT_MIB * MIB
    assert store()["spilled_objects"] >= 4 * 80 - LIMIT_MIB


def test_small_values_are_moved_together(disk: Path) -> None:
    refs = []
    while not store()["spilled_objects"]:
        refs.append(trainkit.put(block(0.5, len(refs))))
    moved = store()["spilled_objects"]
    assert moved > 1
    assert store()["spilled_bytes"] <= LIMIT_MIB * MIB / 10
    refs += [trainkit.put(block(0.5, len(refs) + more)) for more in range(moved - 1)]
    assert store()["spilled_objects"] == moved
    assert [int(value[-1]) for value in trainkit.get(refs)] == list(range(len(refs)))


def test_threads_put_read_send_and_drop_at_once(disk: Path) -> None:
    sums = trainkit.remote(MemoryHolder).remote()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        held: list[tuple[Any, int]] = []
        try:
            for _ in range(60):
                fill = int(rng.integers(200))
                held.append((trainkit.put(block(float(rng.uniform(1, 3)), fill)), fill))
                if len(held) <= 3:
                    continue
                ref, expected = held.pop(int(rng.integers(len(held))))
                if rng.integers(4):
                    value = trainkit.get(ref)
                    found = {int(value[0]), int(value[-1])}
                    del value
                else:
                    found = {trainkit.get(sums.keep.remote(ref))}
                    trainkit.get(sums.forget.remote())
                del ref  # another thread may be moving the value to disk now
                if found != {expected}:
                    wrong.append((found, expected))
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert store()["spilled_objects"] > 0


DRIVER = """
import os, signal, sys, time
import trainkit
from tests.runtime.local.memory_holders import MIB, MemoryHolder, block
trainkit.init(num_cpus=2, object_store_memory=8 * MIB, object_spilling_directory={folder!r})
held = [trainkit.put(block(4, fill)) for fill in range(5)]
keeper = trainkit.remote(MemoryHolder).remote()
trainkit.get(keeper.kept_as_given.remote(held))
print(trainkit.nodes()[0]["object_store"]["spilled_objects"], trainkit.nodes()[0]["pid"], flush=True)
time.sleep(600)
"""


@pytest.mark.external
@pytest.mark.parametrize("whom", ["driver", "node", "both"])
def test_nothing_stays_behind_whoever_is_killed(whom: str, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(folder=str(tmp_path))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    spilled, node = map(int, driver.stdout.readline().split())
    assert spilled >= 3
    assert on_disk(tmp_path)
    if whom in ("node", "both"):
        os.kill(node, signal.SIGKILL)
    driver.kill()
    driver.wait()
    assert eventually(lambda: not on_disk(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_of_the_call_alone(disk: Path) -> None:
    held = [trainkit.put(block(10, fill)) for fill in range(3)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MIB, limits[1]))  # files may not be larger
    try:
        with pytest.raises(OutOfDiskError, match=f"so is the disk of {disk}: 10 MiB"):
            trainkit.put(block(10))
        small = trainkit.put(block(4, 4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [int(value[0]) for value in trainkit.get([*held, small])] == [0, 1, 2, 4]
    assert issubclass(OutOfDiskError, ObjectStoreFullError)


def test_a_folder_that_is_gone_is_named(disk: Path) -> None:
    held = [trainkit.put(block(10, fill)) for fill in range(3)]
    shutil.rmtree(disk)
    with pytest.raises(ObjectStoreFullError, match="object_spilling_directory") as raised:
        trainkit.put(block(10))
    assert str(disk) in str(raised.value)
    assert [int(value[0]) for value in trainkit.get(held)] == [0, 1, 2]


@pytest.mark.parametrize("folder", ["/proc/nowhere", True, "", 7])
def test_a_folder_that_will_not_do(folder: Any) -> None:
    with pytest.raises(ConfigError, match="object_spilling_directory"):
        trainkit.init(object_spilling_directory=folder)
    assert not trainkit.is_initialized()


def test_a_disk_keeps_a_twentieth() -> None:
    assert spilling.has_room(available_bytes=60, total_bytes=1000, size_bytes=10)
    assert not spilling.has_room(available_bytes=60, total_bytes=1000, size_bytes=11)


MOUNTS = (
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "30 22 0:26 / /tmp rw,nosuid shared:5 - tmpfs tmpfs rw,size=1024k\n"
)


@pytest.mark.parametrize(("device", "expected"), [((8, 1), True), ((0, 26), False), ((0, 99), True)])
def test_a_file_system_in_memory_is_no_disk(device: tuple[int, int], expected: bool) -> None:
    assert spilling.on_disk(MOUNTS, os.makedev(*device)) is expected


def test_the_default_is_the_temporary_folder_or_one_on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/shm")
    assert spilling.choose_folder(None) in ("/var/tmp", "")
    assert spilling.choose_folder(False) == ""
    assert spilling.choose_folder("/dev/shm") == "/dev/shm"
