"""What every engine tells of itself: nodes, actors, tasks, objects, groups, and where code runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.suites.parts import Keeper, await_file, context, start_and_wait_for
from trainkit.errors import ConfigError
from trainkit.plugins.testing.engine import Suite, lacks, needs
from trainkit.runtime.session import engine
from trainkit.util import get_node_ip_address, list_named_actors, metrics, state


def rows_of(listing: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in listing if all(row[key] == value for key, value in wanted.items())]


class Placed:
    """A class of an `async` actor, which tells where its calls run."""

    async def context(self) -> dict[str, Any]:
        return context()


class StateSuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone."""

    def test_an_unknown_kind_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match=r"'actor'\) is not supported: use one of nodes, actors"):
            engine().state("actor")

    def test_what_waits_is_a_listing_on_every_engine(self) -> None:
        assert isinstance(engine().state("requests"), list)

    def test_nodes(self) -> None:
        (node,) = trainkit.nodes()
        assert node["alive"]
        assert node["node_id"] == trainkit.get_runtime_context().get_node_id()
        assert node["resources"]["CPU"] == SESSION_CPUS
        assert node["available"].get("CPU", 0) <= SESSION_CPUS  # what is used up is left out
        assert "pid" in node
        assert node["NodeName"] == node["NodeManagerAddress"] == node["address"]
        assert node["NodeManagerHostname"] == node["hostname"]

    def test_actors_from_their_birth_to_their_death(self) -> None:
        actor = trainkit.remote(Keeper).options(name="listed", num_cpus=0.5, max_restarts=1).remote()
        pid = trainkit.get(actor.pid.remote())
        (row,) = rows_of(trainkit.list_actors(), name="listed")
        expected = {
            "actor_id": trainkit.get(actor.context.remote())["actor_id"],
            "class_name": "Keeper",
            "name": "listed",
            "namespace": trainkit.get_runtime_context().namespace,
            "state": "ALIVE",
            "pid": pid,
            "resources": {"CPU": 0.5},
            "detached": False,
            "restarts": 0,
            "death_cause": None,
        }
        assert {key: row[key] for key in expected} == expected
        trainkit.kill(actor, no_restart=False)
        assert eventually(lambda: rows_of(trainkit.list_actors(), name="listed")[0]["restarts"] == 1)
        trainkit.kill(actor)
        assert eventually(lambda: rows_of(trainkit.list_actors(), name="listed")[0]["state"] == "DEAD")
        (row,) = rows_of(trainkit.list_actors(), name="listed")
        assert "kill" in row["death_cause"]

    def test_a_detached_actor_is_listed_as_one(self) -> None:
        actor = trainkit.remote(Keeper).options(name="detached", lifetime="detached").remote()
        trainkit.get(actor.get.remote())
        assert rows_of(trainkit.list_actors(), name="detached")[0]["detached"]
        trainkit.kill(actor)

    @needs("listings")
    def test_tasks_while_they_run(self) -> None:
        task = trainkit.remote(trainkit.list_tasks).options(name="look", num_cpus=2)
        (row,) = rows_of(trainkit.get(task.remote()), name="look")
        assert row["state"] == "RUNNING"
        assert row["resources"] == {"CPU": 2}
        assert row["owner_pid"] == os.getpid()
        assert isinstance(row["pid"], int)

    @needs("background", "listings")
    def test_tasks_while_they_wait(self, tmp_path: Path) -> None:
        started, go = tmp_path / "started", tmp_path / "go"
        task = trainkit.remote(num_cpus=SESSION_CPUS)(start_and_wait_for)
        running = task.options(name="runs").remote(started, go)
        await_file(started)
        waiting = task.options(name="waits").remote(started, go)

        def waits() -> bool:
            return [row["state"] for row in rows_of(trainkit.list_tasks(), name="waits")] == ["PENDING"]

        assert eventually(waits)
        assert rows_of(trainkit.list_tasks(), name="runs", state="RUNNING")
        go.touch()
        trainkit.get([running, waiting], timeout=60)

    @needs("listings")
    def test_large_objects(self) -> None:
        ref = trainkit.put(np.ones(1 << 18))

        def listed() -> list[dict[str, Any]]:
            return [row for row in trainkit.list_objects() if row["size_bytes"] >= 8 << 18]

        (row,) = listed()
        assert os.getpid() in row["pids"]
        assert row["object_id"]
        del ref
        assert eventually(lambda: not listed())

    @lacks("listings")
    @pytest.mark.parametrize("what", [trainkit.list_tasks, trainkit.list_objects])
    def test_what_cannot_be_listed_says_why(self, what: Callable[[], Any]) -> None:
        with pytest.raises(ConfigError, match="dashboard"):
            what()

    def test_the_timeline_has_tasks_and_methods_that_have_ended(self, tmp_path: Path) -> None:
        if engine().name != "ray":  # which records always; the others' is in test_timeline.py
            with pytest.raises(ConfigError, match="TRAINKIT_TIMELINE=1 before"):
                trainkit.timeline()
            return
        began = time.time()
        actor = trainkit.remote(Keeper).remote(1)
        trainkit.get([actor.get.remote(), trainkit.remote(abs).options(name="in_timeline").remote(2)])
        wanted = {"task::Keeper.__init__", "task::Keeper.get", "task::in_timeline"}

        def events() -> list[dict[str, Any]]:
            return [event for event in trainkit.timeline() if event["ph"] == "X" and event["cat"] in wanted]

        assert eventually(lambda: {event["cat"] for event in events()} == wanted)
        for event in events():
            if event["cat"] == "task::in_timeline":
                assert event["args"]["task_id"]
                assert began * 1e6 <= event["ts"] <= event["ts"] + event["dur"] <= time.time() * 1e6
        trainkit.timeline(tmp_path / "timeline.json")
        written = json.loads((tmp_path / "timeline.json").read_text())
        assert wanted <= {event.get("cat") for event in written}

    def test_metrics_are_kept_in_every_process(self) -> None:
        counter = metrics.Counter("suite_counted", tag_keys=("where",)).set_default_tags({"where": "here"})
        gauge = metrics.Gauge("suite_level")
        histogram = metrics.Histogram("suite_spread", boundaries=[1.0, 10.0])

        def count() -> None:
            counter.inc(2)
            gauge.set(5)
            histogram.observe(3, None)

        trainkit.get([trainkit.remote(count).remote() for _ in range(2)])
        count()
        if engine().name == "ray":
            with pytest.raises(ConfigError, match="metrics_export_port"):
                metrics.prometheus_text()
            return
        assert 'suite_counted_total{where="here"} 6.0' in metrics.prometheus_text()
        assert "suite_level 5.0" in metrics.prometheus_text()
        assert 'suite_spread_bucket{le="10.0"} 3.0' in metrics.prometheus_text()

    def test_placement_groups(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 2}], strategy="SPREAD", name="shown")
        assert group.wait(30)
        (row,) = rows_of(trainkit.list_placement_groups(), name="shown")
        assert row["state"] == "CREATED"
        assert row["strategy"] == "SPREAD"
        assert row["bundles"] == [{"CPU": 1}, {"CPU": 2}]
        assert row["placement_group_id"]
        trainkit.remove_placement_group(group)
        assert eventually(
            lambda: not rows_of(trainkit.list_placement_groups(), name="shown", state="CREATED")
        )

    def test_listings_by_rays_names_take_filters_and_a_limit(self) -> None:
        actors = [trainkit.remote(Keeper).options(name=f"row-{index}").remote() for index in range(3)]
        pids = trainkit.get([actor.pid.remote() for actor in actors])
        named = [("name", "!=", "row-1"), ("state", "=", "alive"), ("class_name", "=", "Keeper")]
        rows = [row for row in state.list_actors(filters=named) if row.name in ("row-0", "row-1", "row-2")]
        assert sorted(row["name"] for row in rows) == ["row-0", "row-2"]
        assert {row.ray_namespace for row in rows} == {trainkit.get_runtime_context().namespace}
        assert len(state.list_actors(filters=[("state", "=", "ALIVE")], limit=1, detail=True)) == 1
        (row,) = state.list_actors(filters=[("name", "=", "row-1")], timeout=5, raise_on_missing_output=False)
        assert state.get_actor(row.actor_id) == row
        assert (row.pid, row["is_detached"], row.num_restarts) == (pids[1], False, 0)
        assert state.list_actors(filters=[("pid", "=", str(row.pid)), ("name", "=", "row-1")]) == [row]
        assert state.get_actor("00") is None
        with pytest.raises(ConfigError, match="an unknown column: use one of actor_id"):
            state.list_actors(filters=[("colour", "=", "red")])
        with pytest.raises(ConfigError, match="'=' or '!='"):
            state.list_actors(filters=[("pid", "<", 1)])
        with pytest.raises(ConfigError, match="limit must be from 1"):
            state.list_actors(limit=0)

    def test_a_node_and_its_processes_by_rays_names(self) -> None:
        (node,) = state.list_nodes(filters=[("state", "=", "ALIVE")])
        assert state.get_node(node.node_id) == node
        assert node.resources_total["CPU"] == SESSION_CPUS
        assert state.get_node("00") is None
        assert get_node_ip_address() == node.node_ip
        (driver,) = state.list_workers(filters=[("worker_type", "=", "driver"), ("pid", "=", os.getpid())])
        assert state.get_worker(driver.worker_id) == driver
        assert (driver.node_id, driver.is_alive) == (node.node_id, True)
        for listed, row in ((state.list_nodes, node), (state.list_workers, driver)):
            with pytest.raises(ConfigError) as refused:
                listed(filters=[("colour", "=", "red")])
            columns = str(refused.value).partition(": use one of ")[2].split(", ")
            assert set(columns) <= set(row), "what can be filtered by is in the rows"

    @needs("listings")
    def test_tasks_by_rays_names(self) -> None:
        (row,) = trainkit.get(trainkit.remote(_tasks_named).options(name="mine").remote("mine"))
        assert (row["state"], row["func_or_class_name"]) == ("RUNNING", "mine")

    def test_names_of_living_actors(self) -> None:
        actor = trainkit.remote(Keeper).options(name="known", namespace="elsewhere").remote()
        trainkit.get(actor.get.remote())
        assert "known" not in list_named_actors()
        assert {"name": "known", "namespace": "elsewhere"} in list_named_actors(all_namespaces=True)

    def test_where_the_driver_is(self) -> None:
        here = context()
        assert here["node_id"]
        assert here["worker_id"]
        assert here["actor_id"] is None
        assert here["actor_name"] is None
        assert here["task_id"] is None
        assert here["task_name"] is None
        assert here["group_id"] is None
        assert here["namespace"]
        assert set(here["ids"]) == {"job_id", "node_id", "namespace"}
        assert isinstance(here["ids"]["node_id"], trainkit.NodeID)
        with pytest.raises(ConfigError, match="only inside an actor"):
            _ = trainkit.get_runtime_context().current_actor

    def test_where_a_task_is(self) -> None:
        task = trainkit.remote(num_cpus=2)(context)
        one, other = trainkit.get([task.remote(), task.remote()])
        assert one["node_id"] == context()["node_id"]
        assert one["namespace"] == context()["namespace"]
        assert one["actor_id"] is None
        assert one["task_id"] != other["task_id"]
        assert one["resources"] == {"CPU": 2}
        assert one["job_id"] == context()["job_id"]
        assert (one["task_name"], one["ids"]["task_id"].hex()) == ("context", one["task_id"])
        assert trainkit.get(task.options(name="nick").remote())["task_name"] == "nick"

    def test_where_an_actor_is(self) -> None:
        actor = trainkit.remote(Keeper).options(num_cpus=1).remote()
        one, other = trainkit.get([actor.context.remote() for _ in range(2)])
        assert one["actor_id"] == other["actor_id"] != trainkit.get(_context_of_another())["actor_id"]
        assert one["task_id"] != other["task_id"]
        assert one["resources"] == {"CPU": 1}
        assert not one["restarted"]
        assert (one["task_name"], one["actor_name"]) == ("Keeper.context", "")
        assert one["ids"]["actor_id"].hex() == one["actor_id"]

    @pytest.mark.parametrize(
        ("cls", "options"),
        [
            (Keeper, {"max_concurrency": 2}),
            (Placed, {"concurrency_groups": {"io": 1}}),
        ],
    )
    def test_one_call_of_a_method_has_a_name(self, cls: type, options: dict[str, Any]) -> None:
        actor = trainkit.remote(cls).options(**options).remote()
        calls = [actor.context.options(name="nick"), actor.context]
        if options.get("concurrency_groups"):
            calls[0] = calls[0].options(concurrency_group="io")
        named, plain = trainkit.get([call.remote() for call in calls], timeout=60)
        assert (named["task_name"], plain["task_name"]) == ("nick", f"{cls.__name__}.context")
        with pytest.raises(TypeError, match="name must be a string, not 7"):
            actor.context.options(name=7)

    def test_an_actor_hands_on_a_handle_to_itself(self) -> None:
        actor = trainkit.remote(Keeper).options(name="self").remote(5)
        itself = trainkit.get(actor.itself.remote())
        assert itself == actor
        assert trainkit.get(itself.get.remote()) == 5
        assert trainkit.get(itself.context.remote())["actor_name"] == "self"

    def test_which_group_a_process_is_in(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}])
        found = trainkit.get(trainkit.remote(context).options(placement_group=group).remote())
        assert (found["group_id"], found["captures"]) == (group.id.hex(), False)
        assert isinstance(group.id, trainkit.PlacementGroupID)
        trainkit.remove_placement_group(group)

    @needs("isolation")
    def test_each_process_has_an_id(self) -> None:
        actor = trainkit.remote(Keeper).remote()
        assert trainkit.get(actor.context.remote())["worker_id"] != context()["worker_id"]


def _tasks_named(name: str) -> list[Any]:
    return state.list_tasks(filters=[("name", "=", name)])


def _context_of_another() -> Any:
    return trainkit.remote(Keeper).remote().context.remote()
