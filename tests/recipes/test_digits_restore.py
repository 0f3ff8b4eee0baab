"""A search of the recipe that was interrupted and restored decides what it would have decided anyway."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import trainkit
from recipes import digits
from trainkit import tune

TRIALS, EPOCHS = 6, 9


@pytest.fixture(scope="module")
def few() -> dict[str, Any]:
    """A sixth of the digits."""
    return {name: array[:: 6 if name.startswith("train") else 2] for name, array in digits.load().items()}


class Interrupts(tune.Callback):
    """Ends the run with the given report, as Ctrl-C would."""

    def __init__(self, at: int) -> None:
        self.left = at

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def inline():
    trainkit.init(engine="inline", num_cpus=1)  # one trial at a time, so the order is always the same
    yield
    trainkit.shutdown()


def told(results: tune.ResultGrid) -> list[Any]:
    """What was decided on each trial, and what it reported."""
    facts = ("iteration", "verdict", "rule", "rung", "rank", "entries", "cutoff", "donor", "median")
    return [
        (
            result.config,
            str(result.status),
            [report["accuracy"] for report in result.history],
            [[each.get(name) for name in facts] for each in result.decisions],
        )
        for result in results
    ]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("scheduler", list(digits.SCHEDULERS))
def test_a_restore_goes_on_with_the_same_decisions(tmp_path, few, scheduler):
    def search(name: str, callbacks: list[tune.Callback]) -> tune.ResultGrid:
        run = {"name": name, "storage_path": tmp_path, "verbose": 0, "callbacks": callbacks}
        return digits.tuner(scheduler, few, trials=TRIALS, epochs=EPOCHS, **run).fit()

    expected = told(search("whole", []))
    reports = sum(len(accuracies) for _, _, accuracies, _ in expected)
    search("cut", [Interrupts(reports // 2)])
    trainable = tune.with_parameters(digits.Network, data=few)
    run = tune.RunConfig(verbose=0, callbacks=[])
    restored = tune.Tuner.restore(tmp_path / "cut", trainable, run_config=run).fit()
    assert {str(result.status) for result in restored} <= {"TERMINATED", "ERROR"}
    found = told(restored)
    assert [trial[:3] for trial in found] == [trial[:3] for trial in expected]
    assert [trial[3] for trial in found] == [trial[3] for trial in expected]
