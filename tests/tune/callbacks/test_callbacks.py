"""Callbacks hear what happened, in order; files are whole; a callback's failure touches nothing."""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from trainkit import tune


@pytest.fixture(scope="module", autouse=True)
def inline() -> Iterator[None]:
    trainkit.init(engine="inline", num_cpus=1)
    yield
    trainkit.shutdown()


@pytest.fixture
def fit(tmp_path):
    def fit(trainable, param_space=None, *, num_samples=1, metric=None, **run):
        return tune.Tuner(
            trainable,
            param_space=param_space,
            tune_config=tune.TuneConfig(
                num_samples=num_samples, metric=metric, mode="min" if metric else None
            ),
            run_config=tune.RunConfig(**{"storage_path": tmp_path, "name": "e", "verbose": 0, **run}),
        ).fit()

    return fit


class Listener(tune.Callback):
    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def setup(self, stop=None, num_samples=None, **info):
        self.heard.append(("setup", num_samples))

    def on_trial_start(self, iteration, trials, trial, **info):
        self.heard.append(("start", trial.index))

    def on_trial_restore(self, iteration, trials, trial, **info):
        self.heard.append(("restore", trial.index, len(info["results"])))

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.heard.append(("result", trial.index, result["training_iteration"]))

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        self.heard.append(("checkpoint", trial.index, checkpoint.dirname))

    def on_trial_recover(self, iteration, trials, trial, **info):
        self.heard.append(("recover", trial.index))

    def on_trial_error(self, iteration, trials, trial, **info):
        self.heard.append(("error", trial.index, trial.failure.kind))

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.heard.append(("complete", trial.index))

    def on_experiment_end(self, trials, **info):
        self.heard.append(("end", len(trials)))


def eventful(config):
    if config["n"] == 1:
        raise ValueError
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        scratch = Path(tune.get_context().get_trial_dir(), "scratch")
        scratch.mkdir()
        tune.report({"loss": 1}, checkpoint=tune.Checkpoint(scratch))
        raise KeyError
    tune.report({"loss": 2})


def test_what_happens_is_heard_in_order(fit):
    listener = Listener()
    fit(
        eventful,
        {"n": tune.grid_search([0, 1])},
        callbacks=[listener],
        failure_config=tune.FailureConfig(max_failures=1),
    )
    assert listener.heard == [
        ("setup", 1),
        ("start", 0),
        ("result", 0, 1),
        ("checkpoint", 0, "checkpoint_000000"),
        ("recover", 0),
        ("restore", 0, 1),
        ("start", 0),
        ("result", 0, 2),
        ("complete", 0),
        ("start", 1),
        ("recover", 1),
        ("restore", 1, 0),
        ("start", 1),
        ("error", 1, "ValueError"),
        ("end", 2),
    ]


HOOKS = [name for name in vars(tune.Callback) if name.startswith("on_") or name == "setup"]
"""`get_state` and `set_state` are tested in test_hooks.py."""


def test_a_callback_that_raises_is_told_once_of_each_hook_and_touches_nothing(fit, caplog):
    def raises(*args, **kwargs):
        raise RuntimeError("the service is down")

    broken = tune.Callback()
    for hook in HOOKS:
        setattr(broken, hook, raises)
    listener = Listener()
    with caplog.at_level(logging.WARNING, "trainkit.tune"):
        grid = fit(
            lambda config: ({"loss": n} for n in range(3)), num_samples=3, callbacks=[broken, listener]
        )
    assert grid.num_terminated == 3
    assert listener.heard[-1] == ("end", 3)
    never_happens = {
        "on_trial_restore",
        "on_trial_recover",
        "on_trial_error",
        "on_trial_save",
        "on_checkpoint",
        "on_trial_change",
    }
    texts = [record.getMessage() for record in caplog.records]
    told = {hook: sum(f".{hook}" in text for text in texts) for hook in HOOKS}
    assert told == {hook: int(hook not in never_happens) for hook in HOOKS}


@pytest.mark.parametrize("hook", ["setup", "on_trial_result", "on_experiment_end"])
def test_a_callback_that_raises_ends_the_experiment_if_asked(fit, tmp_path, hook):
    def raises(*args, **kwargs):
        raise ZeroDivisionError("mine")

    broken = tune.Callback()
    setattr(broken, hook, raises)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(
            lambda config: ({"loss": n} for n in range(3)),
            num_samples=3,
            callbacks=[broken],
            failure_config=tune.FailureConfig(fail_fast="raise"),
        )
    found = [result.status for result in tune.ResultGrid.from_path(tmp_path / "e")]
    assert found == (["TERMINATED"] * 3 if hook == "on_experiment_end" else ["PENDING"])
    again = tune.Tuner.restore(
        tmp_path / "e", lambda config: ({"loss": n} for n in range(3)), run_config=tune.RunConfig(verbose=0)
    ).fit()
    assert again.num_terminated == 3


def test_a_logger_written_for_ray_finds_what_it_reads_of_a_trial(fit, tmp_path):
    seen = {}

    class Mine(tune.LoggerCallback):
        def log_trial_start(self, trial):
            assert str(trial) == trial.name
            assert not trial.is_finished()
            assert trial.status == trial.RUNNING == "RUNNING"
            (Path(trial.local_path) / "mine.log").write_text("")

        def log_trial_result(self, iteration, trial, result):
            with open(Path(trial.logdir) / "mine.log", "a") as file:
                file.write(f"{result['training_iteration']}\n")

        def log_trial_end(self, trial, failed=False):
            seen[trial.trial_id] = trial.evaluated_params, trial.experiment_tag, trial.trainable_name
            assert trial.is_finished()
            assert (trial.error_file is not None) == failed == (trial.status == trial.ERROR)

    def objective(config):
        tune.report({"loss": 1})
        if config["lr"] > 1:
            raise ValueError

    grid = fit(objective, {"lr": tune.grid_search([1, 2]), "fixed": 3}, callbacks=[Mine()])
    assert seen == {
        result.trial_id: ({"lr": result.config["lr"]}, f"{n}_lr={result.config['lr']}", "objective")
        for n, result in enumerate(grid)
    }
    assert [Path(result.path, "mine.log").read_text() for result in grid] == ["1\n"] * 2
    # So does who looks at them afterwards.
    for read in (grid, tune.ExperimentAnalysis(grid.experiment_path).trials):
        found = {
            trial.trial_id: (trial.evaluated_params, trial.experiment_tag, trial.trainable_name)
            for trial in read
        }
        assert found == seen
        assert all(trial.is_finished() for trial in read)
        assert [Path(trial.error_file).exists() if trial.error_file else None for trial in read] == [
            None,
            True,
        ]


def test_the_files_that_other_tools_read(fit):
    def trainable(config):
        yield {"loss": math.nan, "eval": {"acc": 0.5}, "text": 'a,"b"\nc'}
        yield {"loss": 2.0, "eval": {"acc": 0.75}, "late": 1}
        yield {"loss": math.inf}

    (result,) = fit(trainable, {"lr": 0.1, "cls": tune.choice([dict])})
    folder = Path(result.path)
    params = json.loads((folder / "params.json").read_text())
    assert params == {"lr": 0.1, "cls": {"$opaque": "builtins.dict"}}
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["loss"] for row in rows] == ["NaN", 2.0, "Infinity"]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert rows[0]["config"]["lr"] == 0.1
    with open(folder / "progress.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["loss"] for row in table] == ["nan", "2.0", "inf"]
    assert [row["eval/acc"] for row in table] == ["0.5", "0.75", ""]
    assert [row["late"] for row in table] == ["", "1", ""]
    assert table[0]["text"] == 'a,"b"\nc'
    assert table[0]["config/lr"] == "0.1"
