"""Real XGBoost and LightGBM in a function trial: each round is a report, checkpoints are models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from trainkit import tune
from trainkit.plugins.integrations import lightgbm as for_lightgbm
from trainkit.plugins.integrations import xgboost as for_xgboost
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("inline")

ROUNDS = 6


def points():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 4))
    return x, (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int)


def with_xgboost(callback, *, rounds=ROUNDS, eta=0.3, before=None, cv=False):
    x, y = points()
    matrix = xgboost.DMatrix(x, y)
    params = {"objective": "binary:logistic", "eta": eta, "max_depth": 2, "nthread": 1}
    if cv:
        return xgboost.cv(params, matrix, rounds, nfold=3, callbacks=[callback], seed=0)
    return xgboost.train(
        params,
        matrix,
        rounds,
        evals=[(matrix, "eval")],
        verbose_eval=False,
        callbacks=[callback],
        xgb_model=before,
    )


def with_lightgbm(callback, *, rounds=ROUNDS, eta=0.3, before=None, cv=False, more=()):
    x, y = points()
    data = lightgbm.Dataset(x, y, free_raw_data=False)
    params = {"objective": "binary", "metric": "binary_logloss", "learning_rate": eta}
    params |= {"num_leaves": 3, "num_threads": 1, "verbosity": -1}
    if cv:
        return lightgbm.cv(params, data, rounds, nfold=3, callbacks=[callback], seed=0)
    return lightgbm.train(
        params,
        data,
        rounds,
        valid_sets=[data],
        valid_names=["eval"],
        callbacks=[callback, *more],
        init_model=before,
    )


BOTH: dict[str, tuple[Any, Any, str]] = {
    "xgboost": (for_xgboost, with_xgboost, "eval-logloss"),
    "lightgbm": (for_lightgbm, with_lightgbm, "eval-binary_logloss"),
}


@pytest.fixture(params=list(BOTH))
def library(request):
    return BOTH[request.param]


def history(result, name):
    return list(result.metrics_dataframe[name])


def test_each_round_is_a_report(fit, library):
    module, train, metric = library
    (result,) = fit(lambda config: train(module.TuneReportCallback()) and None)
    losses = history(result, metric)
    assert len(losses) == ROUNDS
    assert losses == sorted(losses, reverse=True)
    assert result.checkpoint is None


@pytest.mark.parametrize("form", ["name", "list", "dictionary"])
def test_metrics_are_chosen_and_renamed(fit, library, form):
    module, train, metric = library
    chosen = {"name": metric, "list": [metric], "dictionary": {"loss": metric}}[form]
    (result,) = fit(lambda config: train(module.TuneReportCallback(chosen)) and None)
    assert ("loss" if form == "dictionary" else metric) in result.metrics


def test_what_is_reported_can_be_changed(fit, library):
    module, train, metric = library

    def change(metrics):
        return {"percent": 100 * metrics[metric]}

    callback = module.TuneReportCheckpointCallback(results_postprocessing_fn=change)
    (result,) = fit(lambda config: train(callback) and None)
    assert metric not in result.metrics
    assert result.metrics["percent"] > 1


def test_the_model_is_in_the_checkpoints(fit, library, tmp_path):
    module, train, metric = library
    callback = module.TuneReportCheckpointCallback({"loss": metric}, frequency=4)
    x, _ = points()
    inputs = xgboost.DMatrix(x) if module is for_xgboost else x

    def trainable(config):
        model = train(callback)
        np.save(tmp_path / "predicted.npy", model.predict(xgboost.DMatrix(x) if module is for_xgboost else x))

    (result,) = fit(trainable)
    kept = [module.TuneReportCheckpointCallback.get_model(each) for each, _ in result.best_checkpoints]
    assert [rounds_of(model) for model in kept] == [4, 6]
    assert kept[-1].predict(inputs) == pytest.approx(np.load(tmp_path / "predicted.npy"), abs=1e-6)


def rounds_of(model):
    return model.num_boosted_rounds() if isinstance(model, xgboost.Booster) else model.num_trees()


def test_no_checkpoint_at_the_end_where_none_is_wanted(fit, library):
    module, train, metric = library
    callback = module.TuneReportCheckpointCallback(metric, frequency=4, checkpoint_at_end=False)
    (result,) = fit(lambda config: train(callback) and None)
    assert len(result.best_checkpoints) == 1
    assert len(history(result, metric)) == ROUNDS


def test_asha_stops_it_in_the_midst_of_training(fit, library, tmp_path):
    module, train, metric = library

    def trainable(config):
        train(module.TuneReportCallback({"loss": metric}), eta=config["eta"], rounds=8)
        Path(tmp_path, f"whole_{config['eta']}").touch()

    grid = fit(
        trainable,
        {"eta": tune.grid_search([0.5, 0.001])},
        metric="loss",
        scheduler=ASHAScheduler(grace_period=2, reduction_factor=2, max_t=100),
        max_concurrent_trials=1,
    )
    assert [len(history(result, "loss")) for result in grid] == [8, 2]
    assert not grid.errors
    assert [path.name for path in tmp_path.glob("whole_*")] == ["whole_0.5"]


def test_a_trial_goes_on_from_its_checkpoint(fit, library, tmp_path):
    module, train, metric = library
    callback_class = module.TuneReportCheckpointCallback

    def trainable(config):
        checkpoint = tune.get_checkpoint()
        before = callback_class.get_model(checkpoint) if checkpoint else None
        done = rounds_of(before) if before is not None else 0
        with open(tmp_path / "starts", "a") as file:
            file.write(f"{done}\n")
        rounds = 2 if done else 4
        train(callback_class({"loss": metric}, frequency=2), rounds=rounds, before=before)
        if not done:
            raise RuntimeError("the machine is gone")

    (whole,) = fit(lambda config: train(module.TuneReportCallback({"loss": metric})) and None)
    run = {"failure_config": tune.FailureConfig(max_failures=1), "name": "again"}
    (result,) = fit(trainable, run=run)
    assert result.error is None
    assert (tmp_path / "starts").read_text().split() == ["0", "4"]
    assert history(result, "loss")[-2:] == pytest.approx(history(whole, "loss")[-2:], abs=1e-5)


def test_cross_validation_gives_means(fit):
    callback = for_lightgbm.TuneReportCheckpointCallback(frequency=1)
    (result,) = fit(lambda config: with_lightgbm(callback, cv=True) and None)
    assert {"valid-binary_logloss-mean", "valid-binary_logloss-stdv"} <= set(result.metrics)
    assert result.checkpoint is None  # there is no one model

    def means(metrics):
        return {"mean": metrics["test-logloss"][0], "deviation": metrics["test-logloss"][1]}

    callback = for_xgboost.TuneReportCheckpointCallback(
        results_postprocessing_fn=means, checkpoint_at_end=False
    )
    (result,) = fit(lambda config: with_xgboost(callback, cv=True) and None, run={"name": "xgboost"})
    assert len(history(result, "mean")) == ROUNDS
    assert result.metrics["deviation"] > 0


def test_rounds_before_an_early_stop_are_reported(fit):
    class Never:
        order = 30

        def __call__(self, env):
            if env.iteration == 2:
                raise lightgbm.callback.EarlyStopException(2, env.evaluation_result_list)

    callback = for_lightgbm.TuneReportCallback()
    (result,) = fit(lambda config: with_lightgbm(callback, more=[Never()]) and None)
    assert result.error is None
    assert len(history(result, "eval-binary_logloss")) == 3
