"""The Ray engine on two nodes, both on this machine, joined by their address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.suites.parts import Keeper, surroundings, value_of_named
from trainkit.errors import ConfigError, InfeasibleError, ObjectLostError

ray = pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit-ml[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from tests.plugins.ray.ray_session import clean_ray  # noqa: E402


def node_id() -> str:
    return trainkit.get_runtime_context().get_node_id()


def make(size: int) -> Any:
    return np.arange(size, dtype=np.float64)


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    def start() -> Any:
        cluster = Cluster()
        for _ in range(2):
            cluster.add_node(num_cpus=2, include_dashboard=False)
        trainkit.init(address=cluster.address)
        return cluster.shutdown

    with clean_ray(start):
        yield


def test_tasks_and_actors_on_both_nodes() -> None:
    assert trainkit.cluster_resources()["CPU"] == 4
    assert len(trainkit.nodes()) == 2
    group = trainkit.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert group.wait(30)
    here = trainkit.remote(node_id)
    where = [here.options(placement_group=group, placement_group_bundle_index=i) for i in range(2)]
    nodes = trainkit.get([task.remote() for task in where])
    assert set(nodes) == {node["node_id"] for node in trainkit.nodes()}

    # 8 MB made on one node and read on the other, and here.
    size = 1_000_000
    places = [{"placement_group": group, "placement_group_bundle_index": i} for i in range(2)]
    array = trainkit.remote(make).options(**places[0]).remote(size)
    total = trainkit.remote(lambda a: float(a.sum())).options(**places[1]).remote(array)
    assert trainkit.get(total) == trainkit.get(array).sum() == size * (size - 1) / 2

    # A named actor on one node is found from the other.
    actor = trainkit.remote(Keeper).options(name="far", num_cpus=1, **places[1]).remote("there")
    assert trainkit.get(trainkit.remote(value_of_named).options(**places[0]).remote("far")) == "there"
    trainkit.kill(actor)
    trainkit.remove_placement_group(group)


def test_what_no_node_can_hold_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no node is that large"):
        trainkit.remote(node_id).options(num_cpus=3).remote()
    with pytest.raises(InfeasibleError, match="on one node"):
        trainkit.placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_PACK")
    with pytest.raises(InfeasibleError, match="STRICT_SPREAD"):
        trainkit.placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")


def scratch_of_workers() -> set[Path]:
    folder = trainkit.remote(lambda: trainkit.runtime.api.scratch_dir())
    return set(trainkit.get([folder.remote() for _ in range(8)]))


def test_resources_cannot_be_given_to_a_cluster_that_has_its_own() -> None:
    address = ray.get_runtime_context().gcs_address
    trainkit.shutdown()
    with pytest.raises(ConfigError, match="num_cpus"):
        trainkit.init(address=address, num_cpus=2)
    trainkit.init(address=address)
    assert trainkit.get(trainkit.remote(make).remote(3)).tolist() == [0, 1, 2]


def test_what_a_session_gives_to_all_its_workers() -> None:
    address = ray.get_runtime_context().gcs_address
    trainkit.shutdown()
    trainkit.init(address=address, namespace="mine", runtime_env={"env_vars": {"SUITE_A": "1"}})
    actor = trainkit.remote(Keeper).options(name="here").remote(1)
    assert trainkit.get(actor.__ray_call__.remote(lambda own: surroundings("SUITE_A")[0])) == "1"
    assert trainkit.get(trainkit.get_actor("here", "mine").get.remote()) == 1


def test_a_ray_that_runs_already_is_used_and_left_running() -> None:
    address = ray.get_runtime_context().gcs_address
    trainkit.shutdown()
    ray.init(address=address, namespace="own")
    trainkit.init(engine="ray")
    assert trainkit.get_runtime_context().namespace == "own"
    ref = trainkit.put(1)
    earlier = trainkit.runtime.api.scratch_dir()
    assert scratch_of_workers() == {earlier}
    trainkit.shutdown()
    assert not earlier.exists()
    assert ray.is_initialized()
    rays = ray.put(2)
    trainkit.init(engine="local", num_cpus=1)
    assert trainkit.get(trainkit.remote(len).remote([rays])) == 1, "another engine has Ray pickle it"
    trainkit.shutdown()
    trainkit.init(engine="ray")
    with pytest.raises(ObjectLostError, match="another engine or session"):
        trainkit.get(ref)
    assert scratch_of_workers() == {trainkit.runtime.api.scratch_dir()}, "Ray keeps its workers"
    trainkit.shutdown()
    ray.shutdown()
