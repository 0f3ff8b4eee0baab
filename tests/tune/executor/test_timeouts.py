"""trial_timeout_s: an attempt that takes longer is killed, wherever it is."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, all_is_free, eventually
from tests.tune.controller.harness import Play, kinds
from tests.tune.executor.test_task_executor import news
from trainkit import tune
from trainkit.errors import TrialTimeoutError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.configs import FailureConfig
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.trial import Trial
from trainkit.tune.executor.actors import ActorExecutor
from trainkit.tune.executor.specs import SpecFactory

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(scope="module", autouse=True)
def warm(runtime) -> None:
    """The first worker of a session takes its time: what follows is about the trials."""
    trainkit.get(trainkit.remote(os.getpid).remote())


class Holder:
    def pid(self) -> int:
        return os.getpid()


def stuck_in_c() -> None:
    """Nothing but SIGKILL ends this: no signal handler of Python's runs, and SIGTERM is ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock held


@pytest.mark.slow
def test_a_trial_that_hangs_in_c_is_killed_and_its_place_taken(fit):  # row 2.1
    def trainable(config):
        tune.report({"pid": os.getpid()})
        if config["x"] == 1:
            stuck_in_c()
        tune.report({"pid": os.getpid()})

    everything = tune.with_resources(trainable, {"cpu": SESSION_CPUS / 2})
    grid = fit(everything, {"x": tune.grid_search([0, 1, 2, 3, 4])}, trial_timeout_s=15)
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", *["TERMINATED"] * 3]
    assert [len(result.history) for result in grid] == [2, 1, 2, 2, 2]
    assert isinstance(grid[1].error, TrialTimeoutError)
    assert "trial_timeout_s=15" in str(grid[1].error)
    assert grid[1].reason.startswith("TrialTimeoutError: ")
    with pytest.raises(ProcessLookupError):
        os.kill(grid[1].metrics["pid"], 0)
    assert eventually(all_is_free)


def test_a_trial_that_hangs_in_its_set_up_is_killed_too(fit):
    class Slow(tune.Trainable):
        def setup(self, config):
            time.sleep(600)

        def step(self):
            return {}

    (result,) = fit(Slow, trial_timeout_s=0.5)
    assert isinstance(result.error, TrialTimeoutError)


def test_the_time_of_each_attempt_runs_from_its_start():
    play = Play(num_samples=3, cpus=2, trial_timeout_s=10, failure=FailureConfig(max_failures=1))
    play.placed(0)
    play.placed(1)
    play.started(0)
    play.tick(5)
    play.failed(0)  # and begins again
    play.placed(0)
    assert play.controller.deadline == pytest.approx(10, abs=0.1)
    assert kinds(play.tick(5)) == ["Kill", "Release", "Start"]
    assert play.trial(1).reason == "retry 1 of 1 after TrialTimeoutError"
    play.placed(1)
    assert play.trial(0).status == "PENDING" and play.calls["test_00000"] == "setup"
    assert kinds(play.tick(5))[:2] == ["Kill", "Release"]
    assert play.trial(0).failure.kind == "TrialTimeoutError"
    assert play.recorded(ev.StatusChanged)[-1].status == "ERROR"


def test_what_waits_for_its_resources_is_not_timed():
    play = Play(num_samples=1, trial_timeout_s=10)
    play.tick(3600)
    assert play.controller.deadline == math.inf and play.calls == {"test_00000": "setup"}
    play.started(0)  # where nobody says when it had them
    assert play.controller.deadline == pytest.approx(3610, abs=0.1)


def test_a_trial_is_placed_once_it_has_what_it_asks_for(tmp_path):
    """Until then something else of the program has all CPUs."""
    holder = trainkit.remote(num_cpus=SESSION_CPUS)(Holder).remote()
    trainkit.get(holder.pid.remote())
    specs = SpecFactory(tmp_path, tune.RunConfig(), lambda index: None)
    executor = ActorExecutor(Bound(lambda config: 1.0), specs, now=time.monotonic, timed=True)
    trial = Trial("t", 0, {}, name="t", dirname="t")
    try:
        executor.carry_out([ev.Start(trial, 0, 0, None)])
        executor.wait(0.3)
        assert executor.collect() == [], "it has no process yet"
        trainkit.kill(holder)
        (placed,) = news(executor)
        assert isinstance(placed, ev.Placed) and (placed.trial_id, placed.attempt) == ("t", 0)
        assert isinstance(news(executor)[0], ev.Started)
    finally:
        executor.close()
