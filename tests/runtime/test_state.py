"""What the session tells of itself: nodes, actors, tasks, objects, groups, and what waits for what."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.victims import Victim
from trainkit.errors import ActorDiedError
from trainkit.runtime.local.node.records import ExitRecords, WorkerTable, pending_row
from trainkit.runtime.local.wire.messages import StartActor, WorkerEnvironment
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.session import engine
from trainkit.runtime.specs import Placement

pytestmark = pytest.mark.usefixtures("runtime")

Row = dict[str, Any]


def actors(*states: str) -> list[Row]:
    return [row for row in trainkit.list_actors() if row["state"] in states]


def requests() -> list[Row]:
    return engine().state("requests")


def victim(**options: Any) -> Any:
    return trainkit.remote(Victim).options(**options).remote()


def until(path: Path) -> Callable[[], None]:
    """A task that goes on until there is a file of that name."""

    def waits() -> None:
        while not path.exists():
            time.sleep(0.005)

    return waits


@pytest.fixture(autouse=True)
def all_is_free() -> Any:
    yield
    assert eventually(lambda: not actors("ALIVE", "PENDING"))
    assert eventually(lambda: trainkit.available_resources() == trainkit.cluster_resources())


def test_the_machine_is_one_living_node() -> None:
    holder = victim(num_cpus=1)
    trainkit.get(holder.pid.remote())
    (node,) = trainkit.nodes()
    assert node["alive"] is True
    assert node["hostname"] == socket.gethostname()
    assert node["Resources"] == trainkit.cluster_resources()
    assert node["available"]["CPU"] == 3
    assert int(node["node_id"], 16) > 0
    os.kill(node["pid"], 0)


def test_an_actor_waits_lives_and_dies_in_the_list() -> None:
    before = len(actors("DEAD"))
    holder = victim(num_cpus=4, label="holder")
    pid = trainkit.get(holder.pid.remote())
    waiting = victim(num_cpus=2, resources={})
    ref = waiting.pid.remote()
    assert eventually(lambda: len(actors("PENDING")) == 1)
    (row,) = actors("PENDING")
    assert row["class_name"] == "Victim"
    assert (row["pid"], row["resources"], row["detached"], row["restarts"]) == (None, {"CPU": 2}, False, 0)
    (living,) = actors("ALIVE")
    assert (living["pid"], living["resources"], living["death_cause"]) == (pid, {"CPU": 4}, None)
    assert living["namespace"] == "default"
    os.kill(pid, signal.SIGKILL)
    second = trainkit.get(ref, timeout=60)
    # The actor may answer before the node has heard that its process was forked.
    assert eventually(lambda: [living["pid"] for living in actors("ALIVE")] == [second])
    assert actors("ALIVE")[0]["actor_id"] == row["actor_id"]
    dead = actors("DEAD")[before:]
    assert [(gone["pid"], gone["death_cause"]) for gone in dead] == [
        (pid, f"Victim (pid {pid}) was killed by SIGKILL")
    ]
    trainkit.kill(waiting)
    assert "was ended: it was killed by trainkit.kill()" in actors("DEAD")[-1]["death_cause"]


def test_an_actor_that_never_started_is_among_the_dead() -> None:
    holder = victim(num_cpus=4)
    trainkit.get(holder.pid.remote())
    queued = victim(num_cpus=1)
    ref = queued.pid.remote()
    trainkit.kill(queued)
    with pytest.raises(ActorDiedError, match="killed before it was started"):
        trainkit.get(ref, timeout=60)
    row = actors("DEAD")[-1]
    assert (row["pid"], row["death_cause"]) == (None, "Victim was ended: it was killed before it was started")


def test_tasks_that_run_and_tasks_that_wait(tmp_path: Path) -> None:
    waits = until(tmp_path / "go")
    refs = [trainkit.remote(waits).options(name=f"task-{index}").remote() for index in range(7)]

    def states() -> list[tuple[str, str]]:
        return sorted((row["state"], row["name"]) for row in trainkit.list_tasks())

    expected = [("PENDING", f"task-{index}") for index in range(4, 7)]
    expected += [("RUNNING", f"task-{index}") for index in range(4)]
    assert eventually(lambda: states() == expected), states()
    for row in trainkit.list_tasks():
        assert (row["owner_pid"], row["resources"]) == (os.getpid(), {"CPU": 1})
        assert (row["pid"] is None) == (row["state"] == "PENDING")
    (tmp_path / "go").touch()
    trainkit.get(refs, timeout=60)
    assert eventually(lambda: trainkit.list_tasks() == [])


def test_a_reused_process_shows_the_name_of_what_it_runs_now(tmp_path: Path) -> None:
    trainkit.get(trainkit.remote(os.getpid).options(name="before").remote())
    ref = trainkit.remote(until(tmp_path / "go")).options(name="now").remote()
    assert eventually(lambda: [row["name"] for row in trainkit.list_tasks()] == ["now"])
    (tmp_path / "go").touch()
    trainkit.get(ref, timeout=60)


def test_tasks_of_a_worker_are_listed_with_their_owner(tmp_path: Path) -> None:
    inner = until(tmp_path / "go")

    def outer() -> None:
        trainkit.get(trainkit.remote(inner).options(name="inner").remote())

    ref = trainkit.remote(outer).options(name="outer").remote()
    assert eventually(lambda: {row["name"] for row in trainkit.list_tasks()} == {"outer", "inner"})
    rows = {row["name"]: row for row in trainkit.list_tasks()}
    assert rows["inner"]["owner_pid"] == rows["outer"]["pid"]
    assert rows["outer"]["owner_pid"] == os.getpid()
    (tmp_path / "go").touch()
    trainkit.get(ref, timeout=60)


def test_objects_are_listed_with_who_holds_them() -> None:
    size = 3_000_000
    ref = trainkit.put(np.zeros(size, np.uint8))
    (row,) = [row for row in trainkit.list_objects() if row["size_bytes"] >= size]
    assert row["pids"] == [os.getpid()]
    int(row["object_id"], 16)

    class Keeper:
        def keep(self, refs: list[Any]) -> int:
            self.kept = trainkit.get(refs[0])
            return os.getpid()

    keeper = trainkit.remote(Keeper).remote()
    pid = trainkit.get(keeper.keep.remote([ref]))
    (again,) = [other for other in trainkit.list_objects() if other["object_id"] == row["object_id"]]
    assert sorted(again["pids"]) == sorted([os.getpid(), pid])


def test_a_group_that_waits_is_pending() -> None:
    holder = victim(num_cpus=2)
    trainkit.get(holder.pid.remote())
    group = trainkit.placement_group([{"CPU": 3}, {"CPU": 1}], strategy="SPREAD", name="big")
    (row,) = trainkit.list_placement_groups()
    assert (row["state"], row["name"], row["strategy"]) == ("PENDING", "big", "SPREAD")
    del holder
    assert group.wait(60)
    assert trainkit.list_placement_groups()[0]["state"] == "CREATED"
    trainkit.remove_placement_group(group)


def test_why_something_is_pending(tmp_path: Path) -> None:
    def hold() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        (tmp_path / "pid").rename(tmp_path / "began")
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    assert requests() == []
    holder = trainkit.remote(hold).options(num_cpus=3, name="trainer-3").remote()
    assert eventually(lambda: (tmp_path / "began").exists())
    pid = int((tmp_path / "began").read_text())
    gang = trainkit.placement_group([{"CPU": 2}, {"CPU": 2}])
    late = victim(num_cpus=1, label="late")
    member = victim(num_cpus=1, label="member", placement_group=gang)
    assert eventually(lambda: len(requests()) == 3)
    first, second, third = requests()
    assert int(first["id"], 16) == gang.id
    assert (first["what"], first["asked"]) == ("a group of 2 bundles", {"CPU": 4})
    assert (first["lacking"], first["holders"]) == (["CPU"], [f"trainer-3 (pid {pid}): 3 CPU"])
    assert first["owner_pid"] == os.getpid()
    assert first["since_s"] >= second["since_s"] >= third["since_s"] >= 0
    assert first["reasons"] == [f"3 CPU missing: 1 CPU of 4 CPU free; held by trainer-3 (pid {pid}): 3 CPU"]
    assert second["what"] == "late"
    assert second["reasons"] == ["waits behind a group of 2 bundles, which asks for 4 CPU"]
    assert third["reasons"] == [
        "its placement group is not reserved yet",
        f"its group: {first['reasons'][0]}",
    ]
    (row,) = [row for row in actors("PENDING") if row["actor_id"] == second["id"]]
    assert row["class_name"] == "Victim"
    (tmp_path / "go").touch()
    trainkit.get(holder)
    assert trainkit.get([member.same.remote(1)], timeout=60) == [1]
    (left,) = requests()
    assert left["reasons"] == ["1 CPU missing: 0 CPU of 4 CPU free; held by a group of 2 bundles: 4 CPU"]
    crowded = victim(num_cpus=2, label="crowded", placement_group=gang, placement_group_bundle_index=0)
    assert eventually(lambda: len(requests()) == 2)
    (reason,) = requests()[1]["reasons"]
    assert reason.startswith(
        "bundle 0 of its group: 1 CPU missing: 1 CPU of 2 CPU free; held by member (pid "
    )
    del crowded
    trainkit.remove_placement_group(gang)
    assert trainkit.get(late.same.remote(2), timeout=60) == 2


def test_only_the_last_dead_are_remembered() -> None:
    graves, dead = ExitRecords(), WorkerTable()
    nobody = WorkerEnvironment(b"", "/", frozenset())
    for worker_id in range(10_500):
        graves[worker_id] = ExitRecord(pid=worker_id, code=1)
        if worker_id < 1_200:
            row = pending_row(StartActor(worker_id, "Actor", Placement(), nobody))
            dead.add_ended(row, graves[worker_id])
    assert len(graves) == 10_000
    assert 499 not in graves
    assert graves[10_499].pid == 10_499
    assert "its record is gone: 10,000 more have ended since" in graves.unknown().reason
    assert "a session that has ended" in ExitRecords().unknown().reason
    assert [int(row["actor_id"], 16) for row in dead.ended_rows()] == list(range(200, 1_200))
