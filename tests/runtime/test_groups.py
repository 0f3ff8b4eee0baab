"""Placement groups: strategies, names, lifetimes, and who starts in whose."""

from __future__ import annotations

from typing import Any

import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.victims import Victim
from trainkit.errors import InfeasibleError

pytestmark = pytest.mark.usefixtures("runtime")


def listed() -> list[str]:
    return [group["name"] for group in trainkit.list_placement_groups()]


def test_a_group_ends_with_who_made_it_unless_it_is_detached() -> None:
    class Maker:
        def make(self, name: str, lifetime: str | None) -> bool:
            return trainkit.placement_group([{"CPU": 1}], name=name, lifetime=lifetime).wait(60)

    maker = trainkit.remote(Maker).remote()
    assert trainkit.get([maker.make.remote("its own", None), maker.make.remote("for all", "detached")])
    assert sorted(listed()) == ["for all", "its own"]
    trainkit.kill(maker)
    assert eventually(lambda: listed() == ["for all"])
    group = trainkit.get_placement_group("for all")
    victim = trainkit.remote(Victim).options(placement_group=group, num_cpus=1).remote()
    assert trainkit.get(victim.same.remote(1), timeout=60) == 1
    trainkit.remove_placement_group(group)
    assert trainkit.available_resources()["CPU"] == 4


def test_a_waiting_detached_group_outlives_who_asked_for_it() -> None:
    class Maker:
        def make(self) -> None:
            trainkit.placement_group([{"CPU": 4}], name="later", lifetime="detached")

    holder = trainkit.placement_group([{"CPU": 1}])
    assert holder.wait(60)
    maker = trainkit.remote(Maker).remote()
    trainkit.get(maker.make.remote())
    trainkit.kill(maker)
    later = trainkit.get_placement_group("later")
    assert not later.wait(0.05)
    trainkit.remove_placement_group(holder)
    assert later.wait(60)
    trainkit.remove_placement_group(later)


def test_bundles_hold_memory_custom_resources_and_parts_of_gpus() -> None:
    trainkit.shutdown()
    try:
        trainkit.init(num_cpus=2, num_gpus=2, memory=1 << 30, resources={"licence": 2})
        group = trainkit.placement_group(
            [{"GPU": 0.5, "CPU": 1, "memory": 1 << 28}, {"GPU": 1}, {"licence": 1, "GPU": 0.5}]
        )
        assert group.wait(60)
        free = trainkit.available_resources()
        assert (free.get("GPU", 0), free["licence"], free["memory"]) == (0, 1, (1 << 30) - (1 << 28))

        def ids(**options: Any) -> Any:
            looks = trainkit.remote(trainkit.get_gpu_ids)
            return looks.options(num_cpus=0, placement_group=group, **options).remote()

        quarter = ids(num_gpus=0.25, placement_group_bundle_index=0, memory=1 << 27)
        whole = ids(num_gpus=1)
        half = ids(num_gpus=0.5, resources={"licence": 1})
        assert trainkit.get([quarter, whole, half], timeout=60) == [[0], [1], [0]]
        with pytest.raises(InfeasibleError, match="bundle 1 is not large enough"):
            ids(memory=1 << 27, placement_group_bundle_index=1)
        with pytest.raises(InfeasibleError, match="no bundle is large enough"):
            ids(resources={"licence": 2})
        trainkit.remove_placement_group(group)
        assert trainkit.available_resources() == trainkit.cluster_resources()
    finally:
        trainkit.shutdown()
        trainkit.init(num_cpus=4)
