"""Handing out GPUs: declared ones, so that it can be tried on a machine without any."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually, run_python
from trainkit.runtime.local.system import devices
from trainkit.runtime.local.worker.bootstrap import THREAD_VARIABLES


class Holder:
    def seen(self) -> tuple[str | None, list[int | str]]:
        return os.environ.get("CUDA_VISIBLE_DEVICES"), trainkit.get_gpu_ids()

    def nested(self) -> Any:
        return trainkit.get(trainkit.remote(Holder).remote().seen.remote())


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The driver's own list, whose names and order are kept."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-aaaa,7")
    trainkit.init(num_cpus=4)
    yield
    trainkit.shutdown()


def holder(gpus: float) -> Any:
    return trainkit.remote(Holder).options(num_gpus=gpus).remote()


def test_a_worker_does_not_hand_its_gpus_on(four_gpus: None) -> None:
    assert trainkit.get(holder(1).nested.remote()) == ("", [])


def test_inline_calls_name_the_same_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-aaaa")
    trainkit.init(engine="inline", num_cpus=1)
    try:
        ids = trainkit.remote(num_gpus=1)(trainkit.get_gpu_ids)
        assert (trainkit.get_gpu_ids(), trainkit.get(ids.remote())) == ([4, "GPU-aaaa"], [4])
    finally:
        trainkit.shutdown()


def test_the_process_of_a_task_with_a_gpu_ends_with_it(four_gpus: None) -> None:
    pid_of = trainkit.remote(num_gpus=0.5)(os.getpid)
    pids = trainkit.get([pid_of.remote() for _ in range(4)])
    assert len(set(pids)) == 4
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    kept = pid_of.options(max_calls=0)
    assert trainkit.get(kept.remote()) == trainkit.get(kept.remote())


@pytest.mark.parametrize(
    ("declared", "names"),
    [("0,1", ["0", "1"]), ("", []), ("-1", []), ("3,-1,4", ["3"]), ("MIG-1/2/3", ["MIG-1/2/3"])],
)
def test_the_drivers_list_is_read_as_cuda_reads_it(
    monkeypatch: pytest.MonkeyPatch, declared: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", declared)
    assert devices.visible_gpus() == names


@pytest.mark.external
@pytest.mark.parametrize("preload", [[], ["torch"]], ids=["imported there", "forked with it"])
def test_a_fraction_caps_the_memory_of_torch_when_cuda_is_first_used(preload: list[str]) -> None:
    # A program of its own: this one may have imported torch, and then its workers are forked with it.
    done = run_python("-m", "tests.runtime.local.fractions", *preload, cwd=Path(__file__).parents[2])
    there = bool(preload)
    expected = [[[[0.25, 0]], there, False], [[], there, False], [[], there, False]]
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("GPU-a1,GPU-b2,GPU-c3,GPU-d4", ["", "GPU-a1", "GPU-b2", "GPU-c3,GPU-d4"]),
        ("MIG-3/1/0,MIG-3/2/0,MIG-9/1/0,7", ["", "MIG-3/1/0", "MIG-3/2/0", "MIG-9/1/0,7"]),
        ("7,2,5,0", ["", "7", "2", "5,0"]),
    ],
    ids=["UUIDs", "MIG", "in the order given"],
)
@pytest.mark.gang
def test_names_and_order_are_those_of_the_parent(
    monkeypatch: pytest.MonkeyPatch, declared: str, expected: list[str]
) -> None:
    """Promise 1.17 of docs/promises.md."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", declared)
    trainkit.init(num_cpus=4)
    try:
        holders = [holder(gpus) for gpus in (0, 0.5, 1, 2)]
        seen = trainkit.get([actor.seen.remote() for actor in holders])
        assert [names for names, _ in seen] == expected
        named = [
            [int(name) if name.isdigit() else name for name in names.split(",") if name] for names in expected
        ]
        assert [ids for _, ids in seen] == named
    finally:
        trainkit.shutdown()


def thread_counts() -> tuple[int, set[int]]:
    import threadpoolctl
    import torch

    torch.ones(300, 300) @ torch.ones(300, 300)
    np.ones((300, 300)) @ np.ones((300, 300))
    pools = [pool for pool in threadpoolctl.threadpool_info() if "numpy" in pool["filepath"]]
    return torch.get_num_threads(), {pool["num_threads"] for pool in pools}


class Counted:
    def threads(self) -> tuple[int, set[int]]:
        return thread_counts()


@pytest.mark.gang
def test_thread_pools_follow_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 1.44 of docs/promises.md."""
    for variable in THREAD_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    trainkit.init(num_cpus=4, preload=["torch", "numpy"])
    try:
        counted = trainkit.remote(Counted)
        asked = [counted.options(num_cpus=cpus).remote().threads.remote() for cpus in (3, 1)]
        assert trainkit.get(asked, timeout=60) == [(3, {3}), (1, {1})]
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
        users = counted.options(num_cpus=3).remote().threads.remote()
        assert trainkit.get(users, timeout=60) == (2, {1})
    finally:
        trainkit.shutdown()
