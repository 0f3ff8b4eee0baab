"""Metrics of every kind come back as they were, and misspelt ones are told; row 1.31."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from trainkit import tune
from trainkit.errors import MetricError
from trainkit.tune.core.stoppers import misspelt

pytestmark = pytest.mark.usefixtures("inline")

KINDS = {
    "vector": (np.arange(2), [0, 1]),
    "matrix": (torch.ones(2, 1, requires_grad=True), [[1.0], [1.0]]),
    "dates": (np.array(["2026-03-01"], dtype="datetime64[D]"), ["2026-03-01"]),
    "date": (datetime.datetime(2026, 3, 1, 10, 15), "2026-03-01T10:15:00"),
    "lasted": (datetime.timedelta(minutes=2), 120.0),
    "path": (Path("/data/model"), "/data/model"),
    "set": ({3, 1}, [1, 3]),
    "bytes": (b"abc\xff", "abc\\xff"),
    "several": ([np.float32(0.5), {"deep": np.zeros(1)}], [0.5, {"deep": [0.0]}]),
    "numpy": (np.float32(0.5), 0.5),
    "integer": (np.int64(7), 7),
    "truth": (np.bool_(True), True),
    "array": (np.array(2.5), 2.5),
    "tensor": (torch.tensor(1.5), 1.5),
    "gradient": (torch.tensor(2.0, requires_grad=True), 2.0),
    "nan": (math.nan, math.nan),
    "inf": (math.inf, math.inf),
    "minus": (-math.inf, -math.inf),
    "nested": ({"deeper": {"value": np.float64(3)}}, {"deeper": {"value": 3.0}}),
    "text": ("NaN of words", "NaN of words"),
}
"""Metrics as they are reported, and as they come back."""


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


def test_metrics_of_every_kind_come_back(fit, tmp_path):  # row 1.31
    def trainable(config):
        tune.report({"loss": 1.0})
        tune.report({"loss": 0.5, **{name: odd for name, (odd, _) in KINDS.items()}, "late": 3})

    (result,) = fit(trainable)
    (loaded,) = tune.Tuner.restore(tmp_path / "e", trainable).get_results()
    for found in (result.metrics, loaded.metrics, loaded.history[-1]):
        assert all(same(plain, found[name]) for name, (_, plain) in KINDS.items())


def test_what_no_report_can_hold_is_named(fit):
    grid = fit(lambda config: {"loss": 1.0, "large": np.zeros((200, 100))}, metric="loss")
    assert "metric 'large' has shape (200, 100), more than 10000 numbers" in str(grid.errors[0])
    grid = fit(lambda config: {"loss": 1.0, "odd": object()}, metric="loss", run={"name": "b"})
    assert "metric 'odd' is of type object: report numbers" in str(grid.errors[0])
    grid = fit(lambda config: tune.report(0.3), metric="loss", run={"name": "c"})
    told = "'loss', but only a number was reported: give its name, as tune.report({'loss': value})"
    assert told in str(grid.errors[0])


def test_a_metric_that_one_trial_misspells_fails_that_trial_alone(fit):  # row 1.31
    def trainable(config):
        for _ in range(3):
            tune.report({"accuracy" if config["x"] else "acuracy": 1.0})

    grid = fit(
        trainable, {"x": tune.grid_search([1, 0])}, metric="accuracy", mode="max", max_concurrent_trials=1
    )
    assert [result.error is None for result in grid] == [True, False]
    assert "Did you mean 'acuracy'?" in str(grid[1].error)


def test_a_misspelt_metric_ends_the_experiment_at_the_first_report(fit, tmp_path):
    def trainable(config):
        for _ in range(40):
            tune.report({"loss": 1.0, "eval": {"loss": 2.0}})

    settings = {"num_samples": 4, "scheduler": tune.schedulers.ASHAScheduler(max_t=40)}
    words = r"'los', which was not reported; reported names are eval/loss, loss. Did you mean 'loss'\?"
    with pytest.raises(MetricError, match=words):
        fit(trainable, {"x": tune.uniform(0, 1)}, metric="los", **settings)
    grid = tune.ResultGrid.from_path(tmp_path / "e")
    assert sum(len(result.history) for result in grid) <= 2
    assert {result.status for result in grid} <= {"PENDING", "RUNNING"}

    def restore(metric, **more):
        config = tune.TuneConfig(metric=metric, mode="min", **more)
        return tune.Tuner.restore(tmp_path / "e", trainable, tune_config=config)

    with pytest.raises(MetricError, match=r"'eval/los', which .* Did you mean 'eval/loss'"):
        restore("eval/los")
    restore("score")  # a report that is still to come may have it
    assert tune.ResultGrid.from_path(tmp_path / "e").metric == "los"  # nothing was changed by these
    restored = restore("loss").fit()
    assert restored.num_terminated == 4
    assert restored.get_best_result().metrics["loss"] == 1.0
    with pytest.raises(
        MetricError, match="'score', which was not reported; reported names are eval/loss, loss"
    ):
        restore("score")
    restore("score", strict_metric_checking=False)


def test_a_metric_that_comes_later_says_so(fit, monkeypatch):
    def trainable(config):
        tune.report({"rewards": 1.0})
        tune.report({"rewards": 1.0, "reward": 2.0})

    with pytest.raises(MetricError, match="strict_metric_checking"):
        fit(trainable, metric="reward", mode="max")
    (result,) = fit(trainable, metric="reward", mode="max", strict_metric_checking=False, run={"name": "b"})
    assert result.metrics["reward"] == 2.0
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    assert fit(trainable, metric="reward", mode="max", run={"name": "c"}).num_terminated == 1


OTHER_METRICS = [
    ("rmse", "mse"),
    ("mape", "mae"),
    ("minFDE", "minADE"),
    ("val_loss", "eval_loss"),
    ("precision_macro", "precision_micro"),
    ("auroc", "auprc"),
]
"""Names that are as alike as misspellings, but of two metrics."""


@pytest.mark.parametrize(
    ("metric", "reported", "meant"),
    [
        ("los", "loss", "loss"),
        ("val_acuracy", "val_accuracy", "val_accuracy"),
        ("eval/loss", "eval_loss", "eval_loss"),
        ("Loss", "loss", "loss"),
        ("trainig_iteration", "loss", "training_iteration"),
        ("val_loss", "loss", None),
        ("val_accuracy", "accuracy", None),
        ("val_accuracy", "train_accuracy", None),
        ("episode_reward_max", "episode_reward_mean", None),
        ("top5", "top1", None),
        ("mae", "mse", None),
        ("scor", "score", "score"),
        ("losss", "loss", "loss"),
        ("rewrad", "reward", "reward"),
        ("accurasy", "accuracy", "accuracy"),
        ("episode_rewrd_mean", "episode_reward_mean", "episode_reward_mean"),
        *[(*pair, None) for one, other in OTHER_METRICS for pair in ((one, other), (other, one))],
    ],
)
def test_what_is_a_misspelling_and_what_another_metric(metric, reported, meant):
    assert misspelt(metric, {reported: 1.0, "training_iteration": 1, "config": {metric: 1}}) == meant


def test_a_late_metric_is_no_mistake(fit, caplog):
    def trainable(config):
        tune.report({"loss": 2.0, "train_loss": 1.0})
        tune.report({"val_loss": 1.0})

    (result,) = fit(trainable, metric="val_loss")
    assert result.error is None
    told = (
        "no 'val_loss', which is the metric: reported names are loss, train_loss. Did you mean 'train_loss'?"
    )
    assert caplog.text.count(told) == 1


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            {"metric": "score"},
            "no 'score', which is the metric: reported names are epoch, loss. ASHAScheduler judges no trial",
        ),
        (
            {"metric": "loss", "time_attr": "training_iterations"},
            "no 'training_iterations', which is the time_attr: reported names are epoch, loss."
            " Did you mean 'training_iteration'?",
        ),
        (
            {"metric": "loss", "time_attr": "hours"},
            "no 'hours', which is the time_attr: reported names are epoch, loss. ASHAScheduler judges",
        ),
    ],
)
def test_what_the_first_report_lacks_is_told_at_once_with_what_it_has(fit, caplog, names, told):
    class Looks(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if result["training_iteration"] == 2:
                seen.append(caplog.text.count(told))

    def trainable(config):
        for epoch in range(3):
            tune.report({"loss": 1.0, "epoch": epoch})

    seen: list[int] = []
    scheduler = tune.schedulers.ASHAScheduler(time_attr=names.get("time_attr", "training_iteration"), max_t=9)
    run = {"callbacks": [Looks()]}
    fit(trainable, metric=names["metric"], scheduler=scheduler, run=run)
    assert seen == [caplog.text.count(told)] == [1]
