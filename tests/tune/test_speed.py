"""What a trial costs the driver doesn't grow with the trials before it: by counts, as times tell of noise."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks.rows import rows_of
from tests.tune import programs
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.store.writer import ExperimentStore

ROOT = Path(__file__).resolve().parents[2]


def trivial(config):
    return {"loss": config["x"] ** 2}


SPACE = {"x": tune.uniform(-1, 1)}


class Calls(tune.Callback):
    """Counts the calls of functions, of Python's and of C's, until each trial's end."""

    def __init__(self) -> None:
        self.count = 0
        self.at_end: list[int] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += event in ("call", "c_call")

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.at_end.append(self.count)

    def between(self, first: int, last: int) -> float:
        """Mean number for a trial."""
        return (self.at_end[last] - self.at_end[first]) / (last - first)


@pytest.fixture
def calls():
    counting = Calls()
    before = sys.getprofile()
    sys.setprofile(counting)
    yield counting
    sys.setprofile(before)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_trial_takes_few_calls_and_the_last_as_few_as_the_first(inline, fit, calls, reuse):
    # row 1.2
    settings = {"search_alg": "random", "reuse_actors": reuse, "run": {"callbacks": [calls]}}
    fit(trivial, SPACE, metric="loss", num_samples=300, **settings)
    first, last = calls.between(50, 100), calls.between(249, 299)
    assert last <= 1.05 * first
    assert last < 3_000  # a millisecond, more or less


def test_a_report_takes_few_calls(inline, fit, calls):
    reports = 200

    def trainable(config):
        for step in range(reports):
            tune.report({"loss": step})

    fit(trainable, metric="loss", num_samples=4, max_concurrent_trials=1, run={"callbacks": [calls]})
    assert calls.between(1, 3) / reports < 600


@pytest.mark.parametrize("scheduler", ["fifo", "auto"])
def test_a_report_to_a_searcher_that_learns_takes_few_calls(inline, fit, calls, scheduler):
    reports = 200

    def trainable(config):
        for step in range(reports):
            tune.report({"loss": step})

    settings = {"scheduler": scheduler, "max_concurrent_trials": 1, "run": {"callbacks": [calls]}}
    results = fit(trainable, SPACE, metric="loss", num_samples=12, **settings)
    assert all(each.metrics["training_iteration"] == reports for each in results)
    # The third trial imports modules and fits the first model.
    assert calls.between(5, 11) / reports < 630


class Memory(tune.Callback):
    """Notes what Python's objects take at each trial's end."""

    def __init__(self) -> None:
        self.at_end: list[int] = []

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.at_end.append(tracemalloc.get_traced_memory()[0])


def test_what_the_driver_keeps_of_a_trial_is_small(inline, fit):
    # row 1.16: at most 50 MB of 3,500 trials, which is 14 KB a trial
    memory = Memory()
    tracemalloc.start()
    try:
        settings = {"search_alg": "random", "run": {"callbacks": [memory]}}
        fit(trivial, SPACE, metric="loss", num_samples=240, **settings)
    finally:
        tracemalloc.stop()
    kept = (memory.at_end[239] - memory.at_end[89]) / 150
    assert kept < 10_000


def records_of(index: int) -> list[ev.Record]:
    """All that is recorded of a trivial trial."""
    trial = Trial(f"t_{index:05d}", index, {"x": 0.5}, f"f_{index:05d}", f"f_{index:05d}")
    metrics = {"loss": 0.25, "training_iteration": 1, "time_total_s": 0.5, "date": "2026-01-01_00-00-00"}
    return [
        ev.TrialAdded(trial),
        ev.AttemptStarted(trial, 0, 1.0, 1, "here", "127.0.0.1", 0),
        ev.ResultAdded(trial, 0, 1, 1.0, metrics, metrics),
        ev.StatusChanged(trial, 1.0, TrialStatus.TERMINATED, "finished", 0, 0),
    ]


def test_a_write_of_the_state_does_not_grow_with_the_trials(tmp_path):
    # row 1.35
    store = ExperimentStore.create(tmp_path / "e", {})
    connection, steps, changes = store._connection, 0, {}

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    for index in range(5_050):
        if index in (500, 5_000):
            steps, changed = 0, connection.total_changes
            connection.set_progress_handler(count, 1)  # each instruction of SQLite's machine
        store.commit(records_of(index))
        if index in (549, 5_049):
            connection.set_progress_handler(None, 1)
            changes[index] = steps / 50, (connection.total_changes - changed) / 50
    store.close()
    (early, rows), (late, rows_late) = changes.values()
    assert rows == rows_late == 6
    assert early * 0.9 < late < early * 1.1
    assert late < 500


def test_the_benchmark_runs():
    only = [word for name in ("fresh", "large", "start", "huge") for word in ("--only", name)]
    done = programs.run("-m", "benchmarks.tuning", "--small", *only, cwd=programs.ROOT)
    rows = rows_of(done.stdout)
    assert rows["files on the disk, of a trial"].value > 3
    for name in ("10,000 trials: restore of them all", "100,000 trials: trainkit ls", "trainkit --help"):
        assert rows[name].value > 0
