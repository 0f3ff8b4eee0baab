"""Real Keras 3, on torch, in a function trial: each epoch is a report, checkpoints are models."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "torch"

import keras

from tests.conftest import run_python
from trainkit import tune
from trainkit.air.integrations import keras as for_keras
from trainkit.errors import ConfigError
from trainkit.tune.integration.keras import (
    ReportCheckpointCallback,
    TuneReportCallback,
    TuneReportCheckpointCallback,
)

pytestmark = pytest.mark.usefixtures("inline")
EPOCHS = 3


def points():
    return np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def train(callback, model=None, first=0):
    x = points()
    if model is None:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    y = x[:, :1]
    given = {"epochs": EPOCHS, "initial_epoch": first, "batch_size": 16, "verbose": 0}
    model.fit(x, y, validation_data=(x, y), callbacks=[callback], **given)
    return model


def test_each_epoch_is_a_report_with_the_model(fit):
    (result,) = fit(lambda config: train(ReportCheckpointCallback()) and None)
    assert [len(row.keys() & {"loss", "mae", "val_loss", "val_mae"}) for row in result.history] == [
        4
    ] * EPOCHS
    again = train(
        TuneReportCallback("nothing"), ReportCheckpointCallback.get_model(result.checkpoint), EPOCHS
    )
    x = points()
    assert again.evaluate(x, x[:, :1], verbose=0)[0] == pytest.approx(result.metrics["val_loss"])


def test_a_trial_goes_on_from_the_model_in_its_checkpoint(fit):
    def objective(config):
        checkpoint = tune.get_checkpoint()
        if checkpoint is not None:
            train(ReportCheckpointCallback(), ReportCheckpointCallback.get_model(checkpoint), EPOCHS - 1)
            return
        train(TuneReportCheckpointCallback(frequency=EPOCHS - 1))
        raise RuntimeError("once")

    (result,) = fit(objective, run={"failure_config": tune.FailureConfig(max_failures=1)})
    losses = [row["loss"] for row in result.history]
    assert len(losses) == EPOCHS and losses == sorted(losses, reverse=True)


def test_a_report_may_come_with_each_batch_and_a_checkpoint_at_the_end(fit):
    callback = ReportCheckpointCallback("train_end", ["train_batch_end"], "loss")
    (result,) = fit(lambda config: train(callback) and None)
    assert len(result.history) == 2 * EPOCHS + 1
    assert Path(result.checkpoint.path, "model.keras").is_file()
    with pytest.raises(ConfigError, match="not one of Keras's events"):
        ReportCheckpointCallback(checkpoint_on="validation_end")


def test_a_backend_that_is_not_there_is_named():
    script = "from trainkit.tune.integration.keras import TuneReportCallback"
    done = run_python("-c", script, code=1, env={**os.environ, "KERAS_BACKEND": "tensorflow"})
    assert "MissingDependencyError: Keras cannot be imported" in done.stderr
    assert "KERAS_BACKEND=torch" in done.stderr
    assert for_keras.ReportCheckpointCallback is ReportCheckpointCallback
