"""Trials as real processes: isolation, resources, deaths, and bad input met before anything runs."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import trainkit
from tests.conftest import all_is_free, eventually
from tests.runtime.local.victims import Victim
from tests.tune.pausing import steps
from trainkit import tune
from trainkit.clock import SYSTEM
from trainkit.errors import (
    InfeasibleError,
    SerializationError,
    SpaceError,
    StoreError,
)
from trainkit.tune.callbacks import console

pytestmark = pytest.mark.usefixtures("runtime")


class WaitsForFile(tune.Trainable):
    def setup(self, config):
        assert eventually(Path(config["go"]).exists, 60)

    def step(self):
        return {"loss": 1.0, "done": True}


@pytest.mark.parametrize("what", ["waits for 0.5 CPU: .*; held by holder ", "starts: its worker .pid "])
def test_the_console_says_what_the_first_trial_waits_for(fit, tmp_path, monkeypatch, what):
    go, told = tmp_path / "go", []
    holder = trainkit.remote(Victim).options(name="holder", num_cpus=4 if "held" in what else 0).remote()
    trainkit.get(holder.pid.remote())

    def say(line):
        told.append(line)
        if re.search(f"8 trials: . pending; [0-9a-f_]+ {what}", line):
            trainkit.kill(holder)
            go.touch()

    monkeypatch.setattr(console, "SUMMARY_S", 0.05)
    monkeypatch.setattr(console, "say", say)
    trainable = tune.with_resources(WaitsForFile, {"CPU": 0.5})
    fit(trainable, {"go": str(go)}, num_samples=8, run={"verbose": 1})
    assert go.exists(), told


def test_each_trial_has_a_process_of_its_own(fit):
    def trainable(config):
        for step in range(5):
            tune.report({"loss": config["x"] / (step + 1), "own_pid": os.getpid()})

    grid = fit(trainable, {"x": tune.uniform(1, 2)}, num_samples=6, metric="loss", seed=1, scheduler="fifo")
    assert grid.num_terminated == 6
    pids = {result.metrics["own_pid"] for result in grid}
    assert len(pids) == 6
    assert os.getpid() not in pids
    assert all(result.metrics["pid"] == result.metrics["own_pid"] for result in grid)
    assert all(len(result.history) == 5 for result in grid)
    best = grid.get_best_result()
    assert best.config["x"] == min(result.config["x"] for result in grid)


def test_asha_on_real_processes_stops_most_and_never_runs_past_a_decision(fit):
    def trainable(config):
        for step in range(1, 28):
            Path(tune.get_context().get_trial_dir(), "ran_to").write_text(str(step))
            tune.report({"loss": config["x"] + 1 / step})

    scheduler = tune.schedulers.ASHAScheduler(max_t=27, reduction_factor=3)
    settings = {"num_samples": 20, "metric": "loss", "scheduler": scheduler, "seed": 2}
    grid = fit(trainable, {"x": tune.uniform(0, 1)}, **settings)
    assert grid.num_terminated == 20
    early = [result for result in grid if result.metrics["training_iteration"] < 27]
    assert len(early) >= 10
    for result in grid:
        assert int(Path(result.path, "ran_to").read_text()) == result.metrics["training_iteration"]
    for result in early:
        assert result.decisions[-1]["verdict"] == "STOP"
        assert result.decisions[-1]["rung"] == result.metrics["training_iteration"]
        assert f"rung {result.metrics['training_iteration']}" in result.reason


def test_no_more_trials_run_than_the_resources_allow(fit, tmp_path):
    def trainable(config):
        mark = tmp_path / f"running_{config['n']}"
        mark.touch()
        time.sleep(0.05)
        seen = len(list(tmp_path.glob("running_*")))
        mark.unlink()
        return {"seen": seen}

    bound = tune.with_resources(trainable, {"cpu": 2})
    grid = fit(bound, {"n": tune.grid_search(list(range(6)))})
    assert max(result.metrics["seen"] for result in grid) <= 2
    grid = fit(trainable, {"n": tune.grid_search([1, 2, 3])}, max_concurrent_trials=1, run={"name": "one"})
    assert [result.metrics["seen"] for result in grid] == [1, 1, 1]
    assert eventually(all_is_free)


def test_a_trial_of_several_processes_gets_its_bundles(fit):
    def who(config):
        @trainkit.remote(num_cpus=1)
        class Worker:
            def pid(self):
                return os.getpid()

        group = trainkit.get_current_placement_group()
        workers = [
            Worker.options(placement_group=group, placement_group_bundle_index=index).remote()
            for index in range(group.bundle_count)
        ]
        return {
            "bundles": group.bundle_specs,
            "pids": trainkit.get([worker.pid.remote() for worker in workers]),
        }

    request = tune.PlacementGroupFactory([{}, {"CPU": 1}, {"CPU": 1}])
    grid = fit(tune.with_resources(who, request), {"x": tune.uniform(0, 1)}, num_samples=5)
    assert grid.num_errors == 0, grid.errors
    for result in grid:
        assert result.metrics["bundles"] == [{"CPU": 1}, {"CPU": 1}]
        assert len(set(result.metrics["pids"])) == 2
    assert eventually(all_is_free)


def test_what_a_trial_starts_runs_in_the_bundles_of_the_trial(fit):
    @trainkit.remote
    def where():
        return trainkit.get_current_placement_group().bundle_specs

    @trainkit.remote
    class Child:
        def __init__(self):
            self.grandchild = trainkit.get(where.remote())

        def where(self):
            return self.grandchild

    def trainable(config):
        child = Child.options(num_cpus=0).remote()
        return {"task": trainkit.get(where.remote()), "actor": trainkit.get(child.where.remote())}

    bundles = [{"CPU": 1}, {"CPU": 1}]  # all that there is: outside of them nothing would ever run
    for reuse in (False, True):
        grid = fit(
            tune.with_resources(trainable, tune.PlacementGroupFactory(bundles)),
            num_samples=2,
            reuse_actors=reuse,
            run={"name": f"reuse={reuse}"},
        )
        assert [(each.metrics["task"], each.metrics["actor"]) for each in grid] == [(bundles, bundles)] * 2
    assert eventually(all_is_free)


def test_a_seeded_trial_draws_the_same_numbers(fit):
    def trainable(config):
        return {"drawn": float(np.random.rand())}

    outcomes = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        grid = fit(trainable, num_samples=2, seed=seed, run={"name": name})
        outcomes.append([result.metrics["drawn"] for result in grid])
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] != outcomes[2]
    assert outcomes[0][0] != outcomes[0][1]


# --- deaths ---------------------------------------------------------------------------------------


def test_a_killed_trial_goes_on_from_its_checkpoint_when_allowed(fit):
    def trainable(config):
        goes_on = tune.get_checkpoint() is not None
        for step, saved in steps(5):
            tune.report({"step": step, "goes_on": goes_on}, checkpoint=saved)
            if step == 3 and not goes_on:
                os.kill(os.getpid(), signal.SIGKILL)

    (result,) = fit(trainable, run={"failure_config": tune.FailureConfig(max_failures=1)})
    assert result.status == "TERMINATED"
    assert [(row["step"], row["goes_on"]) for row in result.history] == [
        *((step, False) for step in (1, 2, 3)),
        *((step, True) for step in (4, 5)),
    ]
    lines = Path(result.path, "result.json").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_trial_that_hangs_ends_with_the_time_budget(fit, monkeypatch, stubborn):
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "0.3")
    reported, passed_s = set(), [0.0]
    monkeypatch.setattr(SYSTEM, "monotonic", lambda: time.monotonic() + sum(passed_s))

    class Hour(tune.Callback):
        """Passes once both have reported, however long they take for it."""

        def on_trial_result(self, iteration, trials, trial, result, **info):
            reported.add(trial.trial_id)
            if len(reported) == 2:
                passed_s.append(3600.0)

    def trainable(config):
        tune.report({"loss": 1.0})
        while True:
            try:
                time.sleep(600)
            except BaseException:
                if not stubborn:
                    raise

    grid = fit(trainable, num_samples=2, time_budget_s=3600, run={"callbacks": [Hour()]})
    assert {result.status for result in grid} == {"TERMINATED"}
    assert ("killed" in grid[0].reason) == stubborn
    assert grid[0].metrics["loss"] == 1.0


# --- bad input, before the first trial: an error, and no half-made experiment ---------------------


def never(config):
    raise AssertionError("no trial may start")


LOCK = threading.Lock()


class Locked:
    def __init__(self):
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        # row 1.4
        (lambda fit: fit(tune.with_resources(never, {"cpu": 99})), InfeasibleError, ["99 CPU", "4 CPU"]),
        (
            lambda fit: fit(never, {"net": {"x": tune.choice([Locked()])}}),
            SerializationError,
            ["net/x", "lock"],
        ),
        (lambda fit: fit(never, {"x": Locked()}), SerializationError, ["'x'", "lock"]),
        (
            lambda fit: fit(tune.with_parameters(lambda config, p: 1, p=Locked())),
            SerializationError,
            ["p=", "lock"],
        ),
        (lambda fit: fit(functools.partial(print, LOCK)), SerializationError, ["lock"]),
        (lambda fit: fit(never, {"x": tune.uniform(2, 1)}), SpaceError, ["uniform(2", "lower"]),
        (lambda fit: fit(never, run={"storage_path": "/proc/nothing"}), StoreError, ["cannot be created"]),
    ],
)
def test_bad_input_is_refused_before_any_trial(fit, tmp_path, make, kind, words):
    with pytest.raises(kind) as caught:
        make(fit)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "e").exists()
