"""The Ray engine: the suite of every engine, and what each verb becomes on Ray."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.runtime import ray_actors
from tests.runtime.ray_actors import Given, Grouped, Loop, Many, Unstable
from tests.suites.engine import EngineSuite
from trainkit.errors import (
    ActorDiedError,
    ConfigError,
    GetTimeoutError,
    InfeasibleError,
    ObjectLostError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    WorkerDiedError,
)

ray = pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit[ray]'")

from tests.runtime.ray_session import clean_ray  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    def start() -> Any:
        trainkit.init(engine="ray", num_cpus=SESSION_CPUS, include_dashboard=False, log_to_driver=False)
        return lambda: None

    with clean_ray(start):
        yield


class TestRay(EngineSuite):
    pass


def remote(target: Any, **options: Any) -> Any:
    return trainkit.remote(target).options(**options) if options else trainkit.remote(target)


def same(value: Any) -> Any:
    return value


class TestTasks:
    def test_they_nest_and_init_in_a_worker_has_no_effect(self) -> None:
        assert trainkit.get(remote(ray_actors.nested).remote(2)) == 3

    def test_one_that_dies_is_run_again(self, tmp_path: Path) -> None:
        task = remote(ray_actors.die_until, max_retries=2)
        assert trainkit.get(task.remote(str(tmp_path / "mark"), 2)) == 2

    def test_one_that_dies_too_often_is_given_up(self, tmp_path: Path) -> None:
        task = remote(ray_actors.die_until, max_retries=0)
        with pytest.raises(WorkerDiedError):
            trainkit.get(task.remote(str(tmp_path / "mark"), 2))

    @pytest.mark.parametrize("retried", [True, [Unstable]])
    def test_one_that_raises_is_run_again_if_asked(self, tmp_path: Path, retried: Any) -> None:
        task = remote(ray_actors.fail_until, max_retries=3, retry_exceptions=retried)
        assert trainkit.get(task.remote(str(tmp_path / "mark"), 3, Unstable)) == 3

    def test_other_exceptions_are_not_tried_again(self, tmp_path: Path) -> None:
        task = remote(ray_actors.fail_until, max_retries=3, retry_exceptions=[Unstable])
        with pytest.raises(LookupError, match="call 1"):
            trainkit.get(task.remote(str(tmp_path / "mark"), 3, LookupError))

    def test_a_worker_ends_after_max_calls(self) -> None:
        task = remote(ray_actors.pid, max_calls=1)
        first, second = (trainkit.get(task.remote()) for _ in range(2))
        assert first != second

    def test_results_come_one_by_one_and_the_failure_last(self) -> None:
        stream = remote(ray_actors.numbers).remote(10)
        assert [trainkit.get(next(stream)) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="no more than three"):
            trainkit.get(next(stream))
        assert list(stream) == []
        stream = remote(ray_actors.numbers).remote(2)
        assert [trainkit.get(ref) for ref in stream] == [0, 1]
        assert trainkit.get(stream.completed()) is None

    @pytest.mark.parametrize("force", [False, True])
    def test_a_running_one_is_cancelled(self, tmp_path: Path, force: bool) -> None:
        ref = remote(ray_actors.sleep_long, max_retries=0).remote(str(tmp_path / "mark"))
        assert eventually((tmp_path / "mark").exists)
        trainkit.cancel(ref, force=force)
        with pytest.raises((TaskCancelledError, WorkerDiedError) if force else TaskCancelledError):
            trainkit.get(ref, timeout=30)

    def test_a_timeout_is_ours_and_wait_tells_what_is_done(self, tmp_path: Path) -> None:
        slow = remote(ray_actors.sleep_long).remote(str(tmp_path / "mark"))
        quick = remote(ray_actors.pid).remote()
        with pytest.raises(GetTimeoutError):
            trainkit.get(slow, timeout=0.05)
        assert trainkit.wait([slow, quick], timeout=30) == ([quick], [slow])
        trainkit.cancel(slow)

    def test_a_failure_reaches_those_who_take_its_value(self) -> None:
        failed = remote(ray_actors.fail_until).remote(os.devnull, 9, LookupError)
        with pytest.raises(LookupError, match="call") as caught:
            trainkit.get(remote(same).remote(remote(same).remote(failed)))
        assert isinstance(caught.value, TaskError)

    def test_environment_and_folder_are_the_tasks_own(self, tmp_path: Path) -> None:
        actor = remote(Many, env={"COLOUR": "blue"}, runtime_env={"working_dir": str(tmp_path)}).remote()
        assert trainkit.get(actor.variable.remote("COLOUR")) == "blue"
        assert trainkit.get(actor.folder.remote()) == str(tmp_path)
        here = remote(os.getcwd, runtime_env={"working_dir": str(tmp_path)})
        assert trainkit.get(here.remote()) == str(tmp_path)

    def test_the_part_of_an_argument_that_cannot_travel_is_named(self) -> None:
        import threading

        lock = threading.Lock()
        with pytest.raises(SerializationError, match="variable 'lock' of the enclosing scope"):
            remote(lambda: lock).remote()
        with pytest.raises(SerializationError, match=r"config\['lock'\]"):
            trainkit.runtime.api.ensure_serializable({"lock": lock}, "config")


class TestActors:
    def test_a_named_one_is_found_with_its_methods(self) -> None:
        kept = remote(Many, name="many").remote()
        trainkit.get(kept.note.remote("first"))
        found = trainkit.get_actor("many")
        assert trainkit.get(found.note.remote("second")) == ["first", "second"]
        assert trainkit.get(found.pair.remote()) == [1, 2]
        assert [trainkit.get(ref) for ref in found.count.remote(2)] == [0, 1]
        assert trainkit.get(remote(ray_actors.ask_by_name).remote("many"))[-1] == "from a task"
        with pytest.raises(AttributeError, match="no method 'missing'"):
            found.missing  # noqa: B018

    def test_a_taken_name_is_refused_or_shared(self) -> None:
        kept = remote(Many, name="taken").remote()
        pid = trainkit.get(kept.pid.remote())
        with pytest.raises(ConfigError, match="taken"):
            remote(Many, name="taken").remote()
        again = remote(Many, name="taken", get_if_exists=True).remote()
        assert trainkit.get(again.pid.remote()) == pid
        elsewhere = remote(Many, name="taken", namespace="other").remote()
        assert trainkit.get(elsewhere.pid.remote()) != pid
        assert trainkit.get(trainkit.get_actor("taken", "other").pid.remote()) != pid
        with pytest.raises(ConfigError, match="no actor named 'absent'"):
            trainkit.get_actor("absent")

    def test_a_detached_one_outlives_its_handles(self) -> None:
        remote(Many, name="detached", lifetime="detached").remote().note.remote(1)
        found = trainkit.get_actor("detached")
        assert trainkit.get(found.note.remote(2)) == [1, 2]
        trainkit.kill(found)

    def test_it_ends_with_its_last_handle(self) -> None:
        actor = remote(Many).remote()
        pid = trainkit.get(actor.pid.remote())
        del actor
        assert eventually(lambda: not Path(f"/proc/{pid}").exists(), 20)

    def test_its_death_is_told(self) -> None:
        actor = remote(Many).remote()
        with pytest.raises(ActorDiedError, match="Many"):
            trainkit.get(actor.die.remote())
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.pid.remote())

    def test_it_is_made_anew_and_its_calls_again(self, tmp_path: Path) -> None:
        actor = remote(Many, max_restarts=1, max_task_retries=1).remote()
        first = trainkit.get(actor.pid.remote())
        second = trainkit.get(actor.die_once.remote(str(tmp_path / "mark")))
        assert first != second
        assert trainkit.get(actor.where.remote())["restarted"]

    def test_a_killed_one_may_be_made_anew(self) -> None:
        actor = remote(Many, max_restarts=1, max_task_retries=-1).remote()
        first = trainkit.get(actor.pid.remote())
        trainkit.kill(actor, no_restart=False)
        # Ray tells the process to end and returns; a call that is quick may still reach it.
        assert eventually(lambda: trainkit.get(actor.pid.remote()) != first, 30)

    def test_it_may_leave(self) -> None:
        actor = remote(Many).remote()
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.leave.remote())
        with pytest.raises(ConfigError, match="this is no actor"):
            trainkit.runtime.api.exit_actor()

    def test_nothing_keeps_one_on_an_event_loop_from_leaving(self) -> None:
        loop = remote(Loop, name="leaving").remote()
        with pytest.raises(ActorDiedError, match="exit_actor"):
            trainkit.get(loop.leave.remote(), timeout=30)
        with pytest.raises(ConfigError, match="no actor named 'leaving'"):
            trainkit.get_actor("leaving")

    def test_a_constructor_that_is_given_a_failure_fails_with_it(self) -> None:
        failed = remote(ray_actors.fail_until).remote(os.devnull, 9, LookupError)
        actor = remote(Given).remote(failed)
        with pytest.raises(LookupError, match="call"):
            trainkit.get(actor.value.remote())
        assert trainkit.get(remote(Given).remote(trainkit.put(5)).value.remote()) == 5

    def test_it_knows_where_it_is(self) -> None:
        actor = remote(Many, num_cpus=1).remote()
        where = trainkit.get(actor.where.remote())
        assert where["resources"] == {"CPU": 1}
        assert where["actor"]
        assert where["task"]
        assert not where["restarted"]
        here = trainkit.get_runtime_context()
        assert where["namespace"] == here.namespace == "default"
        assert here.get_actor_id() is None
        assert here.get_task_id() is None

    def test_threads_and_groups_of_threads(self, tmp_path: Path) -> None:
        actor = remote(Many, max_concurrency=2).remote()
        trainkit.get([actor.meet.remote(2, str(tmp_path)) for _ in range(2)], timeout=30)
        (tmp_path / "group").mkdir()
        grouped = remote(Grouped, concurrency_groups={"pair": 2}).remote()
        calls = [grouped.meet.remote(2, str(tmp_path / "group")) for _ in range(2)]
        assert trainkit.get(grouped.alone.remote(), timeout=30) == "main"
        trainkit.get(calls, timeout=30)

    def test_an_event_loop(self) -> None:
        loop = remote(Loop).remote()
        waiting = [loop.passed.remote() for _ in range(3)]
        trainkit.get(loop.open.remote())
        assert trainkit.get(waiting, timeout=30) == ["passed"] * 3
        assert trainkit.get(loop.plain.remote()) == 7
        assert trainkit.get(loop.double.remote([trainkit.put(21)])) == 42
        assert [trainkit.get(ref) for ref in loop.count.remote(3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="in a coroutine") as caught:
            trainkit.get(loop.fail.remote())
        assert "Loop.fail" in caught.value.remote_traceback

    def test_references_are_awaited(self) -> None:
        actor = remote(Many).remote()

        async def both() -> list[Any]:
            values = [await actor.note.remote(1)]
            async for ref in actor.count.remote(10):
                try:
                    values.append(await ref)
                except LookupError as error:
                    values.append(str(error))
            return values

        assert asyncio.run(both()) == [[1], 0, 1, 2, "no more than three"]

    def test_a_handle_travels(self) -> None:
        actor = remote(Many).remote()

        def use(handles: list[Any]) -> Any:
            return trainkit.get(handles[0].note.remote("by hand"))

        assert trainkit.get(remote(use).remote([actor])) == ["by hand"]
        assert trainkit.get(remote(lambda: trainkit.get(actor.note.remote(2))).remote()) == ["by hand", 2]


class TestPlacement:
    def test_a_group_by_name_and_what_runs_in_it(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 2}], strategy="SPREAD", name="pair")
        assert trainkit.get(group.ready(), timeout=30) is None
        assert trainkit.get_placement_group("pair").bundle_specs == [{"CPU": 1}, {"CPU": 2}]
        assert trainkit.get(remote(ray_actors.hold_group, placement_group=group).remote()) == [
            {"CPU": 1},
            {"CPU": 2},
        ]
        assert trainkit.get(remote(ray_actors.hold_group).remote()) is None
        with pytest.raises(ConfigError, match="named 'pair' already"):
            trainkit.placement_group([{"CPU": 1}], name="pair")
        listed = {item["name"]: item for item in trainkit.list_placement_groups()}
        assert listed["pair"]["state"] == "CREATED"
        trainkit.remove_placement_group(group)
        with pytest.raises(ConfigError, match="no placement group named 'pair'"):
            trainkit.get_placement_group("pair")

    def test_one_that_does_not_fit_now_waits(self) -> None:
        first = trainkit.placement_group([{"CPU": SESSION_CPUS}])
        assert first.wait(30)
        second = trainkit.placement_group([{"CPU": 1}])
        assert not second.wait(0.1)
        trainkit.remove_placement_group(first)
        assert second.wait(30)
        trainkit.remove_placement_group(second)

    def test_a_strategy_that_cannot_be_followed_is_refused(self) -> None:
        with pytest.raises(InfeasibleError, match="STRICT_SPREAD"):
            trainkit.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")

    def test_what_there_is_is_listed(self) -> None:
        actor = remote(Many, name="listed", num_cpus=1).remote()
        pid = trainkit.get(actor.pid.remote())
        (node,) = trainkit.nodes()
        assert node["alive"]
        assert node["resources"]["CPU"] == SESSION_CPUS
        assert eventually(lambda: trainkit.available_resources()["CPU"] == SESSION_CPUS - 1)
        (row,) = (row for row in trainkit.list_actors() if row["name"] == "listed")
        assert (row["class_name"], row["state"], row["pid"]) == ("Many", "ALIVE", pid)
        with pytest.raises(ConfigError, match="dashboard"):
            trainkit.list_tasks()
        assert trainkit.get_gpu_ids() == []

    def test_a_removed_group_takes_nobody_in(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}])
        assert group.wait(30)
        trainkit.remove_placement_group(group)
        with pytest.raises(WorkerDiedError, match="placement group was removed"):
            remote(ray_actors.pid, placement_group=group).remote()
        with pytest.raises(ConfigError, match="removed"):
            group.ready()


class TestSession:
    def test_a_scratch_folder_is_shared(self) -> None:
        here = trainkit.runtime.api.scratch_dir()
        assert trainkit.get(remote(lambda: trainkit.runtime.api.scratch_dir()).remote()) == here

    def test_large_arrays_are_read_in_place(self) -> None:
        ref = trainkit.put(np.ones(1_000_000))
        one, two = trainkit.get([ref, ref])
        assert np.shares_memory(one, two)

    def test_a_forked_process_is_refused(self) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                trainkit.put(1)
            except ObjectLostError:
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
