"""The recipe with each scheduler: every trial ends, whatever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from recipes import digits
from tests.recipes.programs import run_recipe
from trainkit import tune

TRIALS, EPOCHS = 5, 9


pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(scope="module")
def few() -> dict[str, Any]:
    """A sixth of the digits."""
    return {name: array[:: 6 if name.startswith("train") else 2] for name, array in digits.load().items()}


class Marked(digits.Network):
    """Says which process it is in."""

    def setup(self, config: dict[str, Any], data: dict[str, Any]) -> None:
        super().setup(config, data)
        Path(self.logdir, "pid").write_text(str(os.getpid()))


class Killer(threading.Thread):
    """Kills trials at random moments, `kills` times; those that there are by then."""

    def __init__(self, folder: Path, kills: int, seed: str) -> None:
        super().__init__()
        self.killed = 0
        self._folder, self._kills, self._rng = folder, kills, random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        while self.killed < self._kills and not self._over.wait(self._rng.uniform(0.01, 0.1)):
            marks = sorted(self._folder.glob("e/*/pid"))
            if not marks:
                continue
            try:
                os.kill(int(self._rng.choice(marks).read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):  # gone, or just being written
                continue
            self.killed += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.parametrize("scheduler", list(digits.SCHEDULERS))
def test_every_trial_ends_though_some_are_killed(tmp_path, few, scheduler):
    search = digits.tuner(
        scheduler,
        few,
        trials=TRIALS,
        epochs=EPOCHS,
        trainable=Marked,
        name="e",
        storage_path=tmp_path,
        verbose=0,
        failure_config=tune.FailureConfig(max_failures=1),
    )
    killer = Killer(tmp_path, 4, scheduler)
    killer.start()
    try:
        results = search.fit()
    finally:
        killer.stop()
    assert killer.killed
    assert len(results) == TRIALS
    assert {str(result.status) for result in results} <= {"TERMINATED", "ERROR"}
    for result in results:
        iterations = [report["training_iteration"] for report in result.history]
        assert iterations == list(range(1, len(iterations) + 1))  # what was run again is there once
        assert len(iterations) <= EPOCHS


@pytest.mark.slow
def test_it_runs_from_the_command_line(tmp_path):
    options = ["--scheduler", "pbt-synch", "--trials", "4", "--epochs", "4", "--output", str(tmp_path)]
    said = run_recipe("digits", *options)
    assert "4 TERMINATED; 16 epochs in all" in said
    assert "best: " in said
    assert "4 TERMINATED; 16 epochs in all" in run_recipe("digits", *options, "--resume")
