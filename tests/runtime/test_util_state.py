"""State and placement by Ray's names, on the inline and on the local engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import trainkit
from tests.conftest import eventually, session_processes
from tests.runtime.pooled import Doubler
from trainkit.errors import InfeasibleError
from trainkit.util import placement_group, placement_group_table, remove_placement_group, state
from trainkit.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@pytest.fixture(scope="module", params=["inline", "local"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    before = set(session_processes())
    trainkit.init(engine=request.param, num_cpus=2)
    yield request.param
    trainkit.shutdown()
    assert eventually(lambda: not set(session_processes()) - before)


def test_placement_group_table(engine: str):
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK", name="pair")
    assert group.wait(60)
    entry = placement_group_table(group)
    assert (entry["name"], entry["strategy"], entry["state"]) == ("pair", "PACK", "CREATED")
    assert len(entry["bundles"]) == 2
    assert placement_group_table() == {entry["placement_group_id"]: entry}
    assert state.list_placement_groups() == [entry]
    remove_placement_group(group)
    assert eventually(lambda: placement_group_table(group) == {})
    assert placement_group_table() == {}


def test_lists(engine: str):
    actor = trainkit.remote(Doubler).options(label="listed").remote()
    assert trainkit.get(actor.double.remote(1)) == 2
    assert "ALIVE" in {entry["state"] for entry in state.list_actors()}
    assert state.list_tasks() == []
    assert isinstance(state.list_objects(), list)
    assert [node["alive"] for node in state.list_nodes()] == [True]


def test_node_affinity(engine: str):
    here = state.list_nodes()[0]["node_id"]
    double = trainkit.remote(abs)
    on_this = double.options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False))
    assert trainkit.get(on_this.remote(-1)) == 1
    with pytest.raises(InfeasibleError, match=f"no node 'elsewhere' to run on; there are {here}"):
        double.options(scheduling_strategy=NodeAffinitySchedulingStrategy("elsewhere", soft=False))
    anywhere = NodeAffinitySchedulingStrategy("elsewhere", soft=True)
    assert trainkit.get(double.options(scheduling_strategy=anywhere).remote(-1)) == 1
