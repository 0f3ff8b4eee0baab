"""State and placement by Ray's names, on the inline and on the local engine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually, session_processes
from tests.runtime.pooled import Doubler
from trainkit.errors import ConfigError, InfeasibleError
from trainkit.util import placement_group, placement_group_table, remove_placement_group, state
from trainkit.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)


@pytest.fixture(scope="module", params=["inline", "local"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    before = set(session_processes())
    logging = {"logging_level": "error", "configure_logging": False, "_temp_dir": "/nowhere"}
    with trainkit.init(engine=request.param, num_cpus=2, labels={"region": "eu"}, **logging) as session:
        assert session["node_id"] == session.address_info["node_id"] == trainkit.nodes()[0]["NodeID"]
        assert (session.dashboard_url, session.ray_version) == ("", None)
        assert "node_ip_address" in session
        assert trainkit.init(ignore_reinit_error=True) == session
        yield request.param
    assert not trainkit.is_initialized()
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_cpu'"):
        trainkit.init(num_cpu=2)
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
    assert state.get_placement_group(group.id.hex()) == entry
    assert state.list_placement_groups(filters=[("name", "!=", "pair")]) == []
    assert trainkit.get_placement_group("pair") == group
    assert {group: 1}[trainkit.get_placement_group("pair")] == 1
    remove_placement_group(group)
    assert eventually(lambda: placement_group_table(group) == {})
    assert placement_group_table() == {}


def test_node_affinity(engine: str):
    here = state.list_nodes()[0]["node_id"]
    double = trainkit.remote(abs)
    on_this = double.options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False))
    assert trainkit.get(on_this.remote(-1)) == 1
    with pytest.raises(InfeasibleError, match=f"no node 'elsewhere' exists; nodes: {here}"):
        double.options(scheduling_strategy=NodeAffinitySchedulingStrategy("elsewhere", soft=False))
    anywhere = NodeAffinitySchedulingStrategy("elsewhere", soft=True)
    assert trainkit.get(double.options(scheduling_strategy=anywhere).remote(-1)) == 1


@pytest.mark.parametrize(
    ("hard", "selector", "fits"),
    [
        ({"region": In("us", "eu")}, {"region": "in(us, eu)"}, True),
        ({"region": In("us")}, {"region": "us"}, False),
        ({"region": NotIn("us")}, {"region": "!us"}, True),
        ({"region": NotIn("eu")}, {"region": "!in(eu)"}, False),
        ({"region": Exists(), "spot": DoesNotExist()}, {"region": "eu", "spot": "!yes"}, True),
        ({"spot": Exists()}, {"spot": "yes"}, False),
    ],
)
def test_labels_of_the_node(engine: str, hard: dict[str, object], selector: dict[str, str], fits: bool):
    assert trainkit.get_runtime_context().get_node_labels()["region"] == "eu"
    strategy = NodeLabelSchedulingStrategy(hard, soft={"region": In("us")})
    for options in ({"scheduling_strategy": strategy}, {"label_selector": selector}):
        task = trainkit.remote(abs).options(**options)
        actor = trainkit.remote(Doubler).options(**options)
        if fits:
            assert trainkit.get(task.remote(-1)) == 1
            assert trainkit.get(actor.remote().double.remote(2)) == 4
            continue
        for asked in (lambda: trainkit.get(task.remote(-1)), actor.remote):  # noqa: B023
            with pytest.raises(InfeasibleError, match="but this machine has"):
                asked()


def test_wrong_labels_are_refused(engine: str):
    with pytest.raises(ConfigError, match="needs conditions in 'hard' or in 'soft'"):
        NodeLabelSchedulingStrategy({})
    with pytest.raises(ConfigError, match="to In, NotIn, Exists or DoesNotExist"):
        NodeLabelSchedulingStrategy({"a": "b"})
    with pytest.raises(ConfigError, match="needs one or more strings"):
        In()
    with pytest.raises(ConfigError, match="label_selector"):
        trainkit.remote(abs).options(label_selector={"a": 1})


def test_tasks_that_wait_and_run_are_found_by_their_references(engine: str, tmp_path: Path):
    def wait() -> None:
        while not (tmp_path / "go").exists():
            time.sleep(0.005)

    if engine == "inline":  # a task has ended when its reference is there
        assert state.get_task(trainkit.remote(abs).remote(-1)) is None
        return
    refs = [trainkit.remote(wait).options(name="waits").remote() for _ in range(3)]
    assert eventually(lambda: [state.get_task(ref).state for ref in refs].count("RUNNING") == 2)
    running, waiting = (
        [row.state for row in state.list_tasks(filters=[("state", "=", wanted)])]
        for wanted in ("RUNNING", "PENDING_NODE_ASSIGNMENT")
    )
    assert (len(running), len(waiting)) == (2, 1)
    (tmp_path / "go").touch()
    trainkit.get(refs, timeout=60)
    assert eventually(lambda: state.get_task(refs[0]) is None)


def test_objects_are_listed(engine: str):
    ref = trainkit.put(np.zeros(1 << 20, np.uint8))
    (row,) = [row for row in state.list_objects() if row.object_size >= 1 << 20]
    assert state.get_objects(row.object_id) == [row]
    with pytest.raises(AttributeError, match=r"count the rows of list_objects\(\)"):
        _ = state.summarize_objects
    del ref


class Talker:
    def say(self, text: str) -> int:
        print(text)
        print("loud", file=sys.stderr)
        sys.stdout.flush()
        return os.getpid()


def test_what_a_worker_printed(engine: str):
    talker = trainkit.remote(Talker).options(name="talker").remote()
    pid = trainkit.get(talker.say.remote("first\nsecond"))
    if engine == "inline":
        assert state.list_logs() == {}
        with pytest.raises(ConfigError, match="has no log"):
            state.get_log(pid=pid)
        return
    (row,) = state.list_actors(filters=[("pid", "=", pid), ("state", "=", "ALIVE")])
    assert eventually(lambda: "worker_out" in state.list_logs(glob_filter=f"*{pid}*"))
    assert eventually(lambda: "".join(state.get_log(actor_id=row.actor_id)) == "first\nsecond\n")
    assert eventually(lambda: "worker_err" in state.list_logs(glob_filter=f"*-{pid}.err"))
    (name,) = state.list_logs(glob_filter=f"*-{pid}.err")["worker_err"]
    assert "".join(state.get_log(filename=name)) == "loud\n"
    assert "".join(state.get_log(pid=pid, tail=1)) == "second\n"
    assert "".join(state.get_log(pid=pid, suffix="err")) == "loud\n"
    followed = state.get_log(pid=pid, follow=True, _interval=0.01)
    assert next(followed) == "first\nsecond\n"
    trainkit.get(talker.say.remote("third"))
    assert next(followed) == "third\n"
    trainkit.kill(talker)
    assert list(followed) == []
    with pytest.raises(ConfigError, match="filename, an actor_id, a task_id or a pid"):
        state.get_log()
