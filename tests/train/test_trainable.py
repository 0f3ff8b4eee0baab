"""Trainers as trials of a Tuner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.train.operators import Digits
from tests.train.workers.killed_operator import KilledOperator
from trainkit import tune
from trainkit.train import BATCH_SIZE, TorchTrainer
from trainkit.train.workers.placement import bundles_of_trial
from trainkit.tune.utils import merge_dicts

pytestmark = pytest.mark.usefixtures("runtime")


def trainable(**options: Any) -> Any:
    arguments = {"num_workers": 2, "config": {"samples": 120, BATCH_SIZE: 20}, "use_gpu": False, **options}
    return TorchTrainer.as_trainable(training_operator_cls=Digits, **arguments)


def fit(cls: Any, tmp_path: Path, space: dict[str, Any], **tune_options: Any) -> Any:
    return tune.Tuner(
        cls,
        param_space=space,
        tune_config=tune.TuneConfig(metric="val_loss", mode="min", **tune_options),
        run_config=tune.RunConfig(
            name="gangs", storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 4}
        ),
    ).fit()


def test_it_asks_for_the_gangs_placement_group() -> None:
    request = trainable(num_workers=4, num_cpus_per_worker=2).default_resource_request({})
    assert list(request.bundles) == [{}] + [{"CPU": 2}] * 4


def test_with_use_local_the_trials_process_is_worker_0_and_has_its_bundle(tmp_path: Path) -> None:
    def pids(trainer: TorchTrainer, info: dict[str, Any]) -> dict[str, Any]:
        workers = trainer.apply_all_workers(os.getpid)
        return {**trainer.train(), **trainer.validate(), "own": workers[0] == os.getpid() != workers[1]}

    cls = trainable(use_local=True, override_tune_step=pids)
    assert list(cls.default_resource_request({}).bundles) == [{"CPU": 1}] * 2
    grid = fit(cls, tmp_path, {"lr": tune.grid_search([0.1, 0.2])})
    assert [result.metrics["own"] for result in grid] == [True, True], grid.errors
    assert [result.metrics["epoch"] for result in grid] == [4, 4]


def test_a_trial_alone_in_this_process(tmp_path: Path) -> None:
    trial = trainable()({"lr": 0.2, "nested": {"a": 1}})
    try:
        configs = trial.trainer.apply_all_operators(lambda operator: operator.config)
        assert configs == [{"samples": 120, BATCH_SIZE: 10, "lr": 0.2, "nested": {"a": 1}}] * 2
        first = trial.train()
        assert {"train_loss", "val_loss", "val_accuracy", "epoch"} <= set(first)
        where = trial.save(str(tmp_path / "c"))
        second = trial.train()
        trial.restore(where)
        assert trial.train()["val_loss"] == pytest.approx(second["val_loss"], abs=0.5)
        assert trial.trainer.validate()["num_samples"] == 120
    finally:
        trial.stop()
    with TorchTrainer(training_operator_cls=Digits, config={"samples": 5}, use_local=True) as reader:
        reader.load(where)
        assert reader.train()["epoch"] == 2


def test_a_step_of_the_users_own() -> None:
    def step(trainer: TorchTrainer, info: dict[str, Any]) -> dict[str, Any]:
        trainer.train(num_steps=2)
        return {"seen": info["iteration"], "batches": trainer.train(num_steps=3)["batch_count"]}

    trial = trainable(num_workers=1, override_tune_step=step)({})
    try:
        results = [trial.train() for _ in range(2)]
        assert [(result["seen"], result["batches"]) for result in results] == [(0, 3), (1, 3)]
    finally:
        trial.stop()


class SharedName(Digits):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {**super().train_batch(batch, batch_info), "loss": 1.0}

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {"loss": 2.0, "num_samples": 1}


def test_of_a_name_that_both_have_validations_value_is_reported() -> None:
    config = {"samples": 50, "batch_size": 20}
    cls = TorchTrainer.as_trainable(training_operator_cls=SharedName, config=config, use_gpu=False)
    trial = cls({})
    try:
        result = trial.train()
    finally:
        trial.stop()
    assert (result["loss"], result["last_loss"]) == (2.0, 2.0)
    assert (result["num_samples"], result["batch_count"], result["epoch"]) == (50, 3, 1)


def test_configurations_are_merged_in_depth() -> None:
    base = {"optimizer": {"lr": 1, "momentum": 0.9}, "width": 8}
    over = {"optimizer": {"lr": 2}, "width": {"first": 4}}
    assert merge_dicts(base, over) == {"optimizer": {"lr": 2, "momentum": 0.9}, "width": {"first": 4}}
    assert base["optimizer"] == {"lr": 1, "momentum": 0.9}


def test_which_bundles_of_a_trial_the_gang_takes() -> None:
    one = {"CPU": 1.0}
    assert bundles_of_trial([{}, one, one], one, 2) == [1, 2]
    assert bundles_of_trial([one, one, one], one, 2) == [1, 2]
    assert bundles_of_trial([one, one], one, 2) == [0, 1]
    assert bundles_of_trial([one], {"CPU": 2.0}, 1) is None
    assert bundles_of_trial([one, {"CPU": 1.0, "GPU": 1.0}], {"CPU": 1, "GPU": 1}, 1) == [1]


def mortal_trial(folder: Path, lives: int, **options: Any) -> Any:
    (folder / "lives").write_text("life\n" * lives)
    config = {"at": "train 5", "rank": 1, "folder": str(folder)}
    return TorchTrainer.as_trainable(
        training_operator_cls=KilledOperator,
        num_workers=2,
        config=config,
        use_gpu=False,
        scheduler_step_freq="epoch",
        **options,
    )


def test_a_worker_that_dies_is_replaced_within_the_trials_places(tmp_path: Path) -> None:
    grid = fit(mortal_trial(tmp_path, 3), tmp_path, {"seed": tune.grid_search([1, 2])})
    assert grid.num_errors == 0
    assert [result.metrics["epoch"] for result in grid] == [4, 4]
    assert (tmp_path / "lives").read_text() == ""


def test_a_trial_whose_workers_die_every_time_fails_as_any_trial(tmp_path: Path) -> None:
    def once(trainer: TorchTrainer, info: dict[str, Any]) -> dict[str, Any]:
        return {**trainer.train(max_retries=1), **trainer.validate(max_retries=1)}

    cls = mortal_trial(tmp_path, 3, override_tune_step=once)
    grid = tune.Tuner(
        cls,
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(
            name="again",
            storage_path=str(tmp_path),
            verbose=0,
            stop={"training_iteration": 2},
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    ).fit()
    # Two deaths end the first attempt; the second survives the third.
    assert grid.num_errors == 0
    assert grid[0].metrics["epoch"] == 2
    assert (tmp_path / "lives").read_text() == ""
