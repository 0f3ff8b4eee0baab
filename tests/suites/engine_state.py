"""What every engine tells of itself: nodes, actors, tasks, objects, groups, and where code runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.suites.base import Suite, lacks, needs
from tests.suites.parts import Keeper, await_file, context, start_and_wait_for
from trainkit.errors import ConfigError


def rows_of(listing: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in listing if all(row[key] == value for key, value in wanted.items())]


class StateSuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone."""

    def test_nodes(self) -> None:
        (node,) = trainkit.nodes()
        assert node["alive"]
        assert node["node_id"] == trainkit.get_runtime_context().get_node_id()
        assert node["resources"]["CPU"] == SESSION_CPUS
        assert node["available"]["CPU"] <= SESSION_CPUS
        assert {"hostname", "pid", "address", "NodeManagerAddress"} <= set(node)

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

    def test_where_the_driver_is(self) -> None:
        here = context()
        assert here["node_id"]
        assert here["worker_id"]
        assert here["actor_id"] is None
        assert here["task_id"] is None
        assert here["namespace"]

    def test_where_a_task_is(self) -> None:
        task = trainkit.remote(num_cpus=2)(context)
        one, other = trainkit.get([task.remote(), task.remote()])
        assert one["node_id"] == context()["node_id"]
        assert one["namespace"] == context()["namespace"]
        assert one["actor_id"] is None
        assert one["task_id"] != other["task_id"]
        assert one["resources"] == {"CPU": 2}

    def test_where_an_actor_is(self) -> None:
        actor = trainkit.remote(Keeper).options(num_cpus=1).remote()
        one, other = trainkit.get([actor.context.remote() for _ in range(2)])
        assert one["actor_id"] == other["actor_id"] != trainkit.get(_context_of_another())["actor_id"]
        assert one["task_id"] != other["task_id"]
        assert one["resources"] == {"CPU": 1}
        assert not one["restarted"]

    @needs("isolation")
    def test_each_process_has_an_id(self) -> None:
        actor = trainkit.remote(Keeper).remote()
        assert trainkit.get(actor.context.remote())["worker_id"] != context()["worker_id"]


def _context_of_another() -> Any:
    return trainkit.remote(Keeper).remote().context.remote()
