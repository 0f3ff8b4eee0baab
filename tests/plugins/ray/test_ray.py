"""The Ray engine: the suites of every engine, and what is Ray's alone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.plugins.ray import ray_actors
from tests.plugins.ray.ray_actors import Loop
from tests.suites.engine import EngineSuite
from tests.suites.engine_actors import ActorSuite
from tests.suites.engine_arguments import ArgumentSuite
from tests.suites.engine_calls import CallSuite
from tests.suites.engine_placement import PlacementSuite
from tests.suites.engine_retries import RetrySuite, die_until
from tests.suites.engine_state import StateSuite
from tests.suites.parts import Keeper, surroundings
from tests.train.checkpoint.test_automatic_checkpoints import STEPS, saved, trainer, weights
from tests.train.workers.test_recovery import identical
from trainkit.errors import ConfigError, ObjectLostError, WorkerDiedError
from trainkit.plugins.testing.engine import Suite

ray = pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit-ml[ray]'")

from tests.plugins.ray.ray_session import clean_ray  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """A Ray for all classes here, as each takes seconds to start; it has what the most demanding needs."""

    def start() -> Any:
        trainkit.init(engine="ray", include_dashboard=False, log_to_driver=False, **PlacementSuite.settings)
        return lambda: None

    with clean_ray(start):
        yield


class OnRay(Suite):
    """A suite in the session that is there."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def session(cls) -> None:
        assert trainkit.is_initialized()


def test_a_trainer_saves_by_steps_and_continues(tmp_path: Path) -> None:
    """Workers on Ray pause at the same step, though they share no memory with the trainer."""
    with trainer(tmp_path, keep={"every_steps": 4}) as first:
        first.train()
        expected = first.state_dict()
    assert [*saved(tmp_path).values()] == [(0, 4), (0, 8), (1, STEPS)]
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint_000002")
    with trainer(tmp_path, keep={"every_steps": 4}) as second:
        assert (second.epoch, second.global_step) == (0, 8)
        assert second.train()["batch_count"] == STEPS
        assert identical(weights(second.state_dict()), weights(expected))


class TestRayPlacement(OnRay, PlacementSuite):
    engine = "ray"


class TestRay(OnRay, EngineSuite):
    engine = "ray"


class TestRayActors(OnRay, ActorSuite):
    engine = "ray"
    crowd = 50


class TestRayCalls(OnRay, CallSuite):
    engine = "ray"


class TestRayArguments(OnRay, ArgumentSuite):
    engine = "ray"


class TestRayRetries(OnRay, RetrySuite):
    engine = "ray"


class TestRayState(OnRay, StateSuite):
    engine = "ray"


def remote(target: Any, **options: Any) -> Any:
    return trainkit.remote(target).options(**options) if options else trainkit.remote(target)


class TestTasks:
    def test_they_nest_and_init_in_a_worker_has_no_effect(self) -> None:
        assert trainkit.get(remote(ray_actors.nested).remote(2)) == 3

    def test_one_that_dies_too_often_is_given_up(self, tmp_path: Path) -> None:
        with pytest.raises(WorkerDiedError):
            trainkit.get(remote(die_until, max_retries=0).remote(tmp_path / "mark", 2))


class TestActors:
    def test_one_that_is_not_ours_is_not_taken_for_one(self) -> None:
        theirs = ray.remote(Loop).options(name="theirs").remote()
        with pytest.raises(ConfigError, match="not created by trainkit"):
            trainkit.get_actor("theirs")
        ray.kill(theirs)

    def test_environment_and_folder_are_its_own(self, tmp_path: Path) -> None:
        actor = remote(Keeper, env={"COLOUR": "blue"}, runtime_env={"working_dir": str(tmp_path)}).remote()
        seen = actor.__ray_call__.remote(lambda own: surroundings("COLOUR"))
        assert trainkit.get(seen) == ("blue", str(tmp_path))

    def test_an_event_loop_awaits_references(self) -> None:
        assert trainkit.get(remote(Loop).remote().double.remote([trainkit.put(21)])) == 42

    def test_a_function_carries_a_handle(self) -> None:
        actor = remote(Keeper).remote(2)
        assert trainkit.get(remote(lambda: trainkit.get(actor.get.remote())).remote()) == 2


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
