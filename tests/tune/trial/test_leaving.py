"""What a trial held is free again once it has ended, however it ended: real processes."""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, all_is_free, eventually
from tests.tune.executor.test_task_executor import news
from trainkit import tune
from trainkit.runtime.signals import InterruptHandler
from trainkit.tune.controller import events as ev
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.trial import Trial
from trainkit.tune.executor.actors import ActorExecutor
from trainkit.tune.executor.specs import SpecFactory

pytestmark = pytest.mark.usefixtures("runtime")


def test_a_retry_gets_the_cpus_of_the_attempt_that_failed(fit):
    def raises(config):
        raise ValueError("no luck")

    everything = tune.with_resources(raises, {"cpu": SESSION_CPUS})
    grid = fit(everything, run={"failure_config": tune.FailureConfig(max_failures=2)})
    assert grid.num_errors == 1
    assert eventually(all_is_free)


def test_exit_handlers_run_before_fit_returns(fit, tmp_path, caplog):
    def trainable(config):
        atexit.register((tmp_path / f"left_{config['x']}").touch)
        return 1.0

    in_a_group = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])
    # More than fit at once, so that some wait for the bundles of those that leave.
    grid = fit(tune.with_resources(trainable, in_a_group), {"x": tune.grid_search(list(range(9)))})
    assert len(list(tmp_path.glob("left_*"))) == grid.num_terminated == 9
    assert "is killed" not in caplog.text
    assert eventually(all_is_free)


def test_a_trial_that_leaves_an_executor_open_ends(fit, caplog):
    kept = []

    def trainable(config):
        kept.append(ThreadPoolExecutor(1))  # as joblib keeps its processes for n_jobs=2
        return {"loss": sum(kept[0].map(abs, [-1, 2]))}

    grid = fit(trainable, run={"verbose": 0})
    assert [result.metrics["loss"] for result in grid] == [3]
    assert "is killed" not in caplog.text
    assert eventually(all_is_free)


@pytest.fixture
def make_executor(tmp_path):
    made = []

    def make(trainable: Callable, leave_s: float = math.inf) -> ActorExecutor:
        made.append(
            ActorExecutor(
                Bound(trainable),
                SpecFactory(tmp_path, tune.RunConfig(), lambda index: None),
                now=time.monotonic,
                leave_s=leave_s,
            )
        )
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def begin(executor: ActorExecutor, trial_id: str) -> None:
    trial = Trial(trial_id, 0, {}, name=trial_id, dirname=trial_id)
    executor.carry_out([ev.Start(trial, 0, 0, None)])
    assert isinstance(news(executor)[0], ev.Started)


def test_a_process_that_does_not_end_is_killed_at_its_deadline(make_executor):
    def trainable(config):
        atexit.register(time.sleep, 600)
        return 1.0

    executor = make_executor(trainable, leave_s=0.3)
    begin(executor, "slow")
    executor.carry_out([ev.Advance("slow")])
    executor.wait(None)
    executor.collect()
    executor.carry_out([ev.Release("slow")])
    assert not executor.gone
    while not executor.gone:
        executor.wait_gone()
    assert eventually(all_is_free)


def test_closing_ends_each_trial_even_if_one_cannot_be_ended(make_executor, monkeypatch, caplog):
    executor = make_executor(lambda config: 1.0)
    begin(executor, "a")
    begin(executor, "b")
    kill, refused = trainkit.kill, []

    def refuse_the_first(actor):
        if not refused:
            refused.append(actor)
            raise trainkit.errors.TrainkitError("not now")
        kill(actor)

    monkeypatch.setattr("trainkit.tune.executor.actors.api.kill", refuse_the_first)
    executor.close()
    assert eventually(lambda: trainkit.available_resources().get("CPU") == SESSION_CPUS - 1)
    assert "could not be stopped" in caplog.text
    kill(refused[0])


def test_a_third_ctrl_c_waits_until_the_clean_up_is_done():
    cleaned = []
    with InterruptHandler() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)  # the first is noted
        assert interrupts.news()
        try:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(60)
            os.kill(os.getpid(), signal.SIGINT)  # between the second and the clean-up
        finally:
            with interrupts.held():
                os.kill(os.getpid(), signal.SIGINT)
                cleaned.append(True)
        assert cleaned
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)


@pytest.mark.parametrize("reuse", [False, True])
def test_of_a_trial_that_died_while_it_saved_no_half_checkpoint_is_left(fit, reuse):
    class Dying(tune.Trainable):
        def step(self):
            return {"loss": 1.0}

        def save_checkpoint(self, checkpoint_dir):
            if self.iteration == 2:
                os._exit(1)

    checkpoints = tune.CheckpointConfig(num_to_keep=1, checkpoint_frequency=1)
    (result,) = fit(Dying, run={"checkpoint_config": checkpoints}, reuse_actors=reuse)
    assert result.status == "ERROR"
    folders = sorted(name for name in os.listdir(result.path) if "checkpoint" in name)
    assert folders == ["checkpoint_000000"]


def test_of_a_trial_that_died_before_its_report_was_told_no_checkpoint_is_left(fit):
    class Dying(tune.Trainable):
        def step(self):
            return {"loss": 1.0, "done": self.iteration == 1}

        def save_checkpoint(self, checkpoint_dir):
            pass

        def cleanup(self):
            os._exit(1)

    checkpoints = tune.CheckpointConfig(num_to_keep=1, checkpoint_frequency=1)
    (result,) = fit(Dying, run={"checkpoint_config": checkpoints})
    folders = sorted(name for name in os.listdir(result.path) if "checkpoint" in name)
    assert (len(result.history), folders) == (1, ["checkpoint_000000"])
