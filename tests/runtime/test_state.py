"""What the session tells of itself: nodes, actors, tasks, objects, groups, and what waits for what."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    assert "its record was dropped after 10,000 later ends" in graves.unknown().reason
    assert "a session that has ended" in ExitRecords().unknown().reason
    assert [int(row["actor_id"], 16) for row in dead.ended_rows()] == list(range(200, 1_200))
