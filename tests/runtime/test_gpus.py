"""Handing out GPUs: declared ones, so that it can be tried on a machine without any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import trainkit
from trainkit.runtime.local import devices


class Holder:
    def seen(self) -> tuple[str | None, list[int]]:
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


def test_each_holder_sees_its_own(four_gpus: None) -> None:
    assert trainkit.cluster_resources()["GPU"] == 4
    holders = [holder(gpus) for gpus in (0, 0.5, 0.5, 1, 2)]
    seen = trainkit.get([actor.seen.remote() for actor in holders])
    assert seen == [("", []), ("4", [0]), ("4", [0]), ("5", [1]), ("GPU-aaaa,7", [2, 3])]
    assert trainkit.available_resources()["GPU"] == 0
    assert trainkit.get_gpu_ids() == [0, 1, 2, 3]


def test_a_worker_does_not_hand_its_gpus_on(four_gpus: None) -> None:
    assert trainkit.get(holder(1).nested.remote()) == ("", [])


def test_a_gpu_is_free_again_when_its_holder_ends(four_gpus: None) -> None:
    first = holder(4)
    waiting = holder(1)
    ref = waiting.seen.remote()
    assert trainkit.wait([ref], timeout=0.3)[0] == []
    trainkit.get(first.seen.remote())
    del first
    assert trainkit.get(ref, timeout=10) == ("4", [0])


@pytest.mark.parametrize(
    ("declared", "names"),
    [("0,1", ["0", "1"]), ("", []), ("-1", []), ("3,-1,4", ["3"]), ("MIG-1/2/3", ["MIG-1/2/3"])],
)
def test_the_drivers_list_is_read_as_cuda_reads_it(
    monkeypatch: pytest.MonkeyPatch, declared: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", declared)
    assert devices.visible_gpus() == names
