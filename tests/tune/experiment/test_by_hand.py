"""What a user does by hand: Ctrl-C, asking for too much, starting tasks in a trial. Real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, all_is_free, eventually
from trainkit import tune

pytestmark = pytest.mark.usefixtures("runtime")


class CtrlC(tune.Callback):
    """Presses it at the first report."""

    def __init__(self) -> None:
        self.pressed = False

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


class Endless(tune.Trainable):
    def step(self):
        time.sleep(0.02)
        return {"n": self.iteration}

    def cleanup(self):
        Path(self.logdir, "cleaned").touch()


def endless(config):
    try:
        while True:
            time.sleep(0.02)
            tune.report({"n": 1})
    finally:
        Path(tune.get_context().get_trial_dir(), "cleaned").touch()


@pytest.mark.parametrize(("trainable", "reuse"), [(Endless, False), (endless, False), (Endless, True)])
def test_ctrl_c_returns_what_there_is_and_lets_trials_clean_up(fit, monkeypatch, trainable, reuse):  # row 1.6
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "300")  # to end in order, on a busy machine too
    before = signal.getsignal(signal.SIGINT)
    grid = fit(trainable, num_samples=9, reuse_actors=reuse, run={"callbacks": [CtrlC()]})
    assert signal.getsignal(signal.SIGINT) is before
    assert 1 <= len(grid) <= 9
    assert {result.status for result in grid} == {"PENDING"}
    reported = [result for result in grid if result.metrics]
    assert reported
    assert all(Path(result.path, "cleaned").exists() for result in reported)
    assert eventually(all_is_free)


def test_a_task_in_a_trial_borrows_its_place(fit):  # row 1.4
    def trainable(config):
        def square(x):
            return x * x

        return {"squared": trainkit.get(trainkit.remote(num_cpus=1)(square).remote(config["x"]))}

    grid = fit(trainable, {"x": tune.grid_search(list(range(SESSION_CPUS)))})  # no CPU is left
    assert [result.metrics["squared"] for result in grid] == [x * x for x in range(SESSION_CPUS)]
