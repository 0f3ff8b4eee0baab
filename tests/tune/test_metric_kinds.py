"""Metrics of every kind come back as they were, and misspelt ones are told; row 1.31."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from trainkit import tune

pytestmark = pytest.mark.usefixtures("inline")

ODD = {
    "numpy": np.float32(0.5),
    "integer": np.int64(7),
    "truth": np.bool_(True),
    "array": np.array(2.5),
    "tensor": torch.tensor(1.5),
    "gradient": torch.tensor(2.0, requires_grad=True),
    "nan": math.nan,
    "inf": math.inf,
    "minus": -math.inf,
    "nested": {"deeper": {"value": np.float64(3)}},
    "text": "NaN of words",
}
PLAIN = {
    "numpy": 0.5,
    "integer": 7,
    "truth": True,
    "array": 2.5,
    "tensor": 1.5,
    "gradient": 2.0,
    "nan": math.nan,
    "inf": math.inf,
    "minus": -math.inf,
    "nested": {"deeper": {"value": 3.0}},
    "text": "NaN of words",
}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


def test_metrics_of_every_kind_come_back(fit, tmp_path):  # row 1.31
    def trainable(config):
        tune.report({"loss": 1.0})
        tune.report({"loss": 0.5, **ODD, "late": 3})

    (result,) = fit(trainable)
    (loaded,) = tune.Tuner.restore(tmp_path / "e", trainable).get_results()
    for found in (result.metrics, loaded.metrics, loaded.history[-1]):
        assert same(PLAIN, {name: found[name] for name in PLAIN})

    line = json.loads(Path(result.path, "result.json").read_text().splitlines()[-1])
    assert (line["nan"], line["inf"], line["minus"]) == ("NaN", "Infinity", "-Infinity")
    assert line["nested"] == {"deeper": {"value": 3.0}}
    with open(Path(result.path, "progress.csv"), newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["late"], second["late"]) == ("", "3")
    assert math.isnan(float(second["nan"]))
    assert [float(second[name]) for name in ("inf", "minus", "numpy", "tensor", "nested/deeper/value")] == [
        math.inf,
        -math.inf,
        0.5,
        1.5,
        3.0,
    ]


def test_a_misspelt_metric_is_named_at_once_and_fails_its_trial_alone(fit, caplog):  # row 1.31
    def trainable(config):
        for _ in range(3):
            tune.report({"accuracy" if config["x"] else "acuracy": 1.0})

    grid = fit(
        trainable, {"x": tune.grid_search([0, 1])}, metric="accuracy", mode="max", max_concurrent_trials=1
    )
    assert [result.error is None for result in grid] == [False, True]
    assert "Did you mean 'acuracy'?" in str(grid[0].error)
    (warning,) = [record.message for record in caplog.records if "Did you mean" in record.message]
    assert "'accuracy'" in warning


@pytest.mark.parametrize(("time_attr", "told"), [("epochs", 1), ("epoch", 0)])
def test_what_a_scheduler_counts_by_but_nobody_reports_is_told_once(fit, caplog, time_attr, told):
    def trainable(config):
        for epoch in range(2):
            tune.report({"loss": 1.0, "epoch": epoch})

    scheduler = tune.schedulers.ASHAScheduler(time_attr=time_attr, max_t=9)
    fit(trainable, {"x": tune.uniform(0, 1)}, metric="loss", scheduler=scheduler, num_samples=2)
    assert caplog.text.count(f"the first report has no {time_attr!r}") == told


def test_a_late_metric_is_no_mistake(fit, caplog):
    def trainable(config):
        tune.report({"loss": 2.0, "train_loss": 1.0})
        tune.report({"val_loss": 1.0})

    (result,) = fit(trainable, metric="val_loss")
    assert result.error is None
    told = "no 'val_loss', which is the metric: reported were loss, train_loss. It may come later"
    assert caplog.text.count(told) == 1 and "Did you mean" not in caplog.text


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            {"metric": "score"},
            "no 'score', which is the metric: reported were epoch, loss. ASHAScheduler",
        ),
        (
            {"metric": "los"},
            "no 'los', which is the metric: reported were epoch, loss. Did you mean 'loss'? ASHAScheduler",
        ),
        (
            {"metric": "loss", "time_attr": "training_iterations"},
            "no 'training_iterations', which the scheduler's time_attr names: reported were epoch, loss. "
            "Did you mean 'training_iteration'?",
        ),
        (
            {"metric": "loss", "time_attr": "hours"},
            "no 'hours', which the scheduler's time_attr names: reported were epoch, loss. ASHAScheduler",
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


def test_what_a_scheduler_judges_by_is_told_where_no_metric_need_come(fit, caplog, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    scheduler = tune.schedulers.ASHAScheduler(max_t=2)
    (result,) = fit(lambda config: {"loss": 1.0}, metric="score", scheduler=scheduler)
    assert result.error is None
    assert "no 'score', which is the metric: reported were loss. ASHAScheduler judges no trial" in caplog.text
    assert "fails" not in caplog.text
