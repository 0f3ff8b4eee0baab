"""A restored experiment is the one that was left: its settings, decisions, counts, files and results."""

from __future__ import annotations

import collections
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, InfeasibleError, StoreError
from trainkit.tune.controller.events import SETTABLE, SettingsChanged
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import FIFOScheduler
from trainkit.tune.schedulers.base import Decision, TrialScheduler, Verdict
from trainkit.tune.search import BasicVariantGenerator
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.restore import replay
from trainkit.tune.store.writer import ExperimentStore

pytestmark = pytest.mark.usefixtures("inline")


def stored_settings(folder: Path) -> dict:
    with ExperimentReader(folder) as reader:
        facts = reader.facts()
    return {**facts["tune_config"], **facts["run_config"]}


def test_settings_that_are_not_given_again_stay_as_stored(fit, restore, tmp_path):
    def endless(config):
        while True:
            tune.report({"loss": config["x"]})

    fit(
        endless,
        {"x": tune.uniform(0, 1)},
        metric="loss",
        num_samples=2,
        max_concurrent_trials=1,
        scheduler=tune.schedulers.ASHAScheduler(max_t=50, grace_period=50),
        run={
            "stop": {"training_iteration": 3},
            "callbacks": [tune.Callback()],
            "failure_config": tune.FailureConfig(max_failures=2),
            "checkpoint_config": tune.CheckpointConfig(num_to_keep=1),
        },
    )
    before = stored_settings(tmp_path / "e")
    with pytest.raises(ConfigError, match=r"RunConfig\(callbacks=\[...\]\)"):
        tune.Tuner.restore(tmp_path / "e", endless)
    grid = restore(endless, run={"callbacks": [tune.Callback()]}, num_samples=4)
    assert [result.metrics["training_iteration"] for result in grid] == [3] * 4
    assert stored_settings(tmp_path / "e") == {**before, "num_samples": 4}


def test_all_that_is_to_be_given_again_is_said_at_once(fit, restore, tmp_path):
    class Own(FIFOScheduler):
        pass

    class OwnSearch(BasicVariantGenerator):
        pass

    def once(config):
        return 1.0

    def stop(trial_id, result):
        return True

    fit(once, scheduler=Own(), search_alg=OwnSearch(), run={"stop": stop, "callbacks": [tune.Callback()]})
    with pytest.raises(ConfigError, match=r"TuneConfig\(search_alg=..., scheduler=...\)"):
        tune.Tuner.restore(tmp_path / "e", once)
    own = tune.TuneConfig(scheduler=Own(), search_alg=OwnSearch())
    with pytest.raises(ConfigError, match=r"RunConfig\(stop=..., callbacks=\[...\]\)"):
        tune.Tuner.restore(tmp_path / "e", once, tune_config=own)
    assert len(restore(once, tune_config=own, run={"stop": stop, "callbacks": [tune.Callback()]})) == 1


class Told(TrialScheduler):
    """Keeps what it is told."""

    needs_metric = False

    def __init__(self) -> None:
        super().__init__()
        self.log: list = []

    @property
    def arguments(self) -> dict:
        return {}

    def __deepcopy__(self, memo: dict) -> Told:
        return self

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        self.log.append((trial_id, time))
        return Decision(Verdict.CONTINUE)


def test_a_replay_tells_the_scheduler_what_the_live_run_did(fit, tmp_path):
    def trainable(config):
        for step in range(3):
            if config["x"] == 1 and step == 1:
                tune.report({"loss": "not a number", "a": step})
            elif config["x"] == 2 and step == 2:
                tune.report({"loss": 1.0})  # lacks what the stop rule waits for
            else:
                tune.report({"loss": 1.0, "a": step})

    live = Told()
    space = {"x": tune.grid_search([0, 1, 2])}
    grid = fit(trainable, space, metric="loss", scheduler=live, run={"stop": {"a": 10}})
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", "ERROR"]
    replayed, searcher = Told(), BasicVariantGenerator()
    replayed.set_search_properties("loss", "min", scheduler_generator(0))
    searcher.begin(Space.of(space), metric="loss", mode="min", num_samples=1, seed=0)
    with ExperimentReader(tmp_path / "e") as reader:
        replay(reader.log(), reader.trials(), TrialSource(searcher, Space.of(space)), replayed)
    assert replayed.log == live.log


def test_a_restore_onto_less_says_so_before_anything_runs(fit, restore, tmp_path):
    path = tmp_path / "unlucky"
    path.touch()

    def trainable(config):
        start = tune.get_checkpoint().to_dict()["step"] if tune.get_checkpoint() else 0
        tune.report({"start": start}, checkpoint=tune.Checkpoint.from_dict({"step": start + 1}))
        if path.exists():
            raise RuntimeError("not yet")

    space = {"n": tune.grid_search([1, 1, 2])}
    fit(tune.with_resources(trainable, lambda config: {"cpu": config["n"]}), space)
    path.unlink()
    more = tune.with_resources(trainable, lambda config: {"cpu": config["n"] + 1})
    with pytest.raises(InfeasibleError, match="3 CPU"):
        restore(more, restart_errored=True)
    again = tune.with_resources(trainable, lambda config: {"cpu": config["n"]})
    grid = restore(again, resume_errored=True)
    assert grid.num_terminated == 3
    assert [result.metrics["start"] for result in grid] == [1, 1, 1], "the checkpoints were still there"


@pytest.mark.parametrize("how", ["retry", "restore"])
def test_totals_go_on_from_the_checkpoint(fit, restore, tmp_path, how):
    def trainable(config):
        checkpoint = tune.get_checkpoint()
        for step in range(2 if checkpoint else 0, 6):
            saved = tune.Checkpoint.from_dict({}) if step == 1 else None
            tune.report({"timesteps_this_iter": 10, "time_total_s": 1.5 * (step + 1)}, checkpoint=saved)
            if step == 4 and checkpoint is None:
                raise RuntimeError("work of three steps is lost")

    failures = tune.FailureConfig(max_failures=1 if how == "retry" else 0)
    grid = fit(trainable, run={"failure_config": failures})
    if how == "restore":
        assert grid.num_errors == 1
        grid = restore(trainable, resume_errored=True)
    history = grid[0].history
    assert [row["timesteps_total"] for row in history] == [10 * (step + 1) for step in range(6)]
    with ExperimentReader(tmp_path / "e") as reader:
        (kept,) = reader.trials()[0].checkpoints
    assert (kept.iteration, kept.time_total_s, kept.timesteps_total) == (2, 3.0, 20)


def test_the_users_own_folders_survive_a_restore(fit, restore):
    def trainable(config):
        trial_dir = Path(tune.get_context().get_trial_dir())
        for name in ("checkpoint_best", ".checkpoint_old", "checkpoint_12", "checkpoint_000099"):
            (trial_dir / name).mkdir(exist_ok=True)
        return 1.0

    grid = fit(trainable)
    restore(trainable)
    left = {path.name for path in Path(grid[0].path).iterdir() if path.is_dir()}
    assert left == {"checkpoint_best", ".checkpoint_old", "checkpoint_12"}  # the last is a name of ours


def test_a_trials_folder_instead_of_the_experiments_names_the_experiments(fit):
    found = fit(lambda config: {"loss": 1.0})[0]
    above = re.escape(str(Path(found.path).parent))
    with pytest.raises(StoreError, match=rf"give the folder of the experiment, which is {above}$"):
        tune.Tuner.restore(found.path, lambda config: {"loss": 1.0})


def test_what_was_set_holds_for_a_second_fit_of_one_tuner(fit, tmp_path):
    """The later word counts: what a restore is given, and then what was set."""

    def trainable(config):
        return {"loss": config["x"]}

    def set_outside(**changed: Any) -> None:
        with contextlib.closing(ExperimentStore.open(tmp_path / "e")) as store:
            store.commit([SettingsChanged(changed, changed.get("num_samples", 3))])

    fit(trainable, {"x": tune.uniform(0, 1)}, metric="loss", num_samples=2, max_concurrent_trials=1)
    given = tune.TuneConfig(num_samples=3)
    tuner = tune.Tuner.restore(tmp_path / "e", trainable, tune_config=given)
    assert len(tuner.fit()) == 3
    set_outside(num_samples=5)
    assert len(tuner.fit()) == 5, "it was set after the restore was given another number"
    set_outside(max_concurrent_trials=2, time_budget_s=60.5)
    assert len(tuner.fit()) == 5
    with ExperimentReader(tmp_path / "e") as reader:
        kept = reader.facts()["tune_config"]
    assert {name: kept[name] for name in SETTABLE} == {
        "num_samples": 5,
        "time_budget_s": 60.5,
        "max_concurrent_trials": 2,
    }


@pytest.mark.parametrize("damaged", ["{", '{"x":"\u00e9"}'])
def test_a_trial_with_a_damaged_configuration_does_not_run(fit, restore, tmp_path, damaged):
    def trainable(config):
        if not (tmp_path / "mended").exists():
            raise ValueError("not mended")
        return config["x"]

    fit(trainable, {"x": tune.grid_search([1.0, 2.0])})
    with contextlib.closing(sqlite3.connect(tmp_path / "e" / "experiment.sqlite")) as connection, connection:
        connection.execute("UPDATE trials SET config = ? WHERE trial_index = 1", (damaged,))
    (tmp_path / "mended").touch()
    for how in ({"restart_errored": True}, {"resume_errored": True}):
        with pytest.raises(
            StoreError, match=r"experiment.sqlite is damaged: a configuration of trial .*_00001"
        ):
            restore(trainable, **how)
    grid = restore(trainable)
    configs = [result.config for result in grid if not result.error]
    assert configs == [{"x": 2.0}], "what can't be read counts as not tried"


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_a_constant_of_another_kind_of_dictionary_is_stored_and_restored(fit, restore, tmp_path, caplog):
    def trainable(config):
        tune.report({key: type(config[key]).__name__ for key in ("base", "own")})
        if not (tmp_path / "mended").exists():
            raise ValueError("not mended")

    def kinds(grid):
        return [grid[0].metrics[key] for key in ("base", "own")]

    given = {
        "base": collections.OrderedDict(lr=1.0),
        "own": tune.choice([Attributes(a=1)]),
        "x": tune.uniform(0, 1),
    }
    grid = fit(trainable, given)
    assert kinds(grid) == ["OrderedDict", "Attributes"]
    assert {"config/base/lr", "config/own/a"} <= set(grid.get_dataframe().columns)
    for space, lost in (
        (None, "Attributes, OrderedDict"),
        ({**given, "own": tune.choice([{"a": 1}])}, "Attributes"),
    ):
        caplog.clear()
        grid = restore(trainable, param_space=space, restart_errored=True)
        assert kinds(grid)[1] == "dict", "without the space the file has only their content"
        assert f"plain dicts and lists in place of {lost}: give a" in caplog.text
    caplog.clear()
    (tmp_path / "mended").touch()
    grid = restore(trainable, param_space=given, restart_errored=True)
    assert (kinds(grid), grid[0].error) == (["OrderedDict", "Attributes"], None)
    assert "a changed space" not in caplog.text
    restore(trainable)
    assert "plain dicts" not in caplog.text, "no trial is left to run"


def test_a_clock_that_was_set_back_leaves_the_order_of_what_happened(fit, restore, tmp_path):
    """As after a restore on a machine whose clock is behind."""

    def trainable(config):
        tune.report({"loss": 1.0})
        if not (tmp_path / "mended").exists():
            raise ValueError("not mended")

    fit(trainable)
    with contextlib.closing(sqlite3.connect(tmp_path / "e" / "experiment.sqlite")) as connection, connection:
        connection.execute("UPDATE events SET time = time + 3600")
        connection.execute("UPDATE attempts SET started = started + 3600")
    (tmp_path / "mended").touch()
    (result,) = restore(trainable, resume_errored=True)
    assert [attempt.outcome for attempt in result.attempts] == ["ValueError: not mended", "finished"]
    first, second = result.attempts
    assert first.started < second.started
    with ExperimentReader(tmp_path / "e") as reader:
        assert 0 < reader.spent_s() < 1800


def test_a_kill_before_the_first_step_is_restored(fit, restore):
    """The file exists, without any trial in it."""
    store = ExperimentStore.create
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperimentStore, "create", lambda *args: (store(*args).close(), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            fit(lambda config: {"loss": 1}, {}, metric="loss", num_samples=3)
    assert [str(result.status) for result in restore(lambda config: {"loss": 1})] == ["TERMINATED"] * 3
