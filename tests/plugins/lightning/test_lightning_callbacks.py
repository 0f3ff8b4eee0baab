"""A real Lightning Trainer in a function trial: metrics and checkpoints go to the tuner."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.conftest import run_python
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.schedulers import ASHAScheduler

PACKAGES = ("pytorch_lightning", "lightning.pytorch")
INSTALLED = [name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None]
pl = importlib.import_module(INSTALLED[0])

from trainkit.plugins.lightning.callbacks import (  # noqa: E402 - extends what is imported by now
    HOOKS,
    TuneReportCallback,
    TuneReportCheckpointCallback,
)

pytestmark = [
    pytest.mark.usefixtures("inline"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]


class Line(pl.LightningModule):
    """Learns y = 3x."""

    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layer = torch.nn.Linear(1, 1)

    def _loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def data():
    x = torch.linspace(-1, 1, 16).reshape(-1, 1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 3 * x), batch_size=8)


def train(lr, *callbacks, epochs=3, ckpt_path=None, **arguments):
    torch.manual_seed(0)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[*callbacks],
        **arguments,
    )
    trainer.fit(Line(lr), data(), data(), ckpt_path=ckpt_path)
    return trainer


def history(result, name):
    return list(result.metrics_dataframe[name])


def test_each_validation_is_a_report_but_the_sanity_check(fit):
    def trainable(config):
        train(config["lr"], TuneReportCallback({"loss": "val_loss"}), num_sanity_val_steps=2)

    (result,) = fit(trainable, {"lr": 0.3}, metric="loss")
    losses = history(result, "loss")
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert result.checkpoint is None


@pytest.mark.parametrize("on", ["train_epoch_end", "on_train_epoch_end", ["on_train_epoch_end"]])
def test_events_are_named_with_and_without_on(fit, on):  # row 1.41
    (result,) = fit(lambda config: train(0.3, TuneReportCallback(["train_loss"], on=on), epochs=2) and None)
    assert len(history(result, "train_loss")) == 2


def test_a_metric_that_is_not_there_is_told_of_once(fit, caplog):
    fit(lambda config: train(0.3, TuneReportCallback(["val_loss", "val_acc"])) and None)
    assert len([record for record in caplog.records if "val_acc" in record.getMessage()]) == 1


def test_a_trial_goes_on_from_its_checkpoint(fit, tmp_path):
    def trainable(config):
        callback = TuneReportCheckpointCallback({"loss": "val_loss"}, filename="trainer.ckpt")
        checkpoint = tune.get_checkpoint()
        path = os.path.join(checkpoint.path, "trainer.ckpt") if checkpoint else None
        with open(tmp_path / "starts", "a") as file:
            file.write(f"{path is not None}\n")

        class Dies(pl.Callback):
            def on_train_epoch_start(self, trainer, pl_module):
                if path is None and trainer.current_epoch == 2:
                    raise RuntimeError("the machine is gone")

        train(0.3, callback, Dies(), epochs=4, ckpt_path=path)

    (whole,) = fit(lambda config: train(0.3, TuneReportCallback({"loss": "val_loss"}), epochs=4) and None)
    run = {"failure_config": tune.FailureConfig(max_failures=1), "name": "again"}
    (result,) = fit(trainable, metric="loss", run=run)
    assert (tmp_path / "starts").read_text().split() == ["False", "True"]
    assert history(result, "training_iteration") == [1, 2, 3, 4]
    assert history(result, "loss") == pytest.approx(history(whole, "loss"), rel=1e-6)
    assert Path(result.checkpoint.path, "trainer.ckpt").exists()


def test_asha_stops_it_inside_fit_without_a_word(fit, tmp_path, capfd, caplog):
    def trainable(config):
        try:
            train(config["lr"], TuneReportCallback({"loss": "val_loss"}), epochs=8)
            Path(tmp_path, f"whole_{config['lr']}").touch()
        finally:
            Path(tmp_path, f"left_{config['lr']}").touch()

    grid = fit(
        trainable,
        {"lr": tune.grid_search([0.3, 0.0])},
        metric="loss",
        scheduler=ASHAScheduler(grace_period=2, reduction_factor=2, max_t=100),
        max_concurrent_trials=1,
    )
    assert [len(history(result, "loss")) for result in grid] == [8, 2]
    assert not grid.errors
    assert {path.name for path in tmp_path.glob("*_*")} == {"whole_0.3", "left_0.3", "left_0.0"}
    printed = capfd.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert "Traceback" not in caplog.text


def test_an_event_that_lightning_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"on='validation_over' is not one of .*on_validation_end"):
        TuneReportCallback("loss", on="validation_over")
    assert "on_save_checkpoint" not in HOOKS


SCRIPT = """
import copy, importlib, pickle, sys
first = importlib.import_module(sys.argv[1])
import trainkit
from trainkit import tune
from trainkit.plugins.lightning.callbacks import TuneReportCallback
assert issubclass(TuneReportCallback, first.Callback)
pl = importlib.import_module(sys.argv[2])
class Mine(TuneReportCallback):
    setups = 0
    def setup(self, trainer, pl_module, stage):
        super().setup(trainer, pl_module, stage)
        self.setups += 1
trainkit.init(engine="inline")
run = tune.RunConfig(storage_path=sys.argv[3], verbose=0)
class Logs(importlib.import_module(sys.argv[2] + ".demos.boring_classes").BoringModel):
    def training_step(self, batch, batch_idx):
        out = super().training_step(batch, batch_idx)
        self.log("loss", out["loss"])
        return out
def trainable(config):
    mine = Mine(on="on_train_epoch_end")
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, limit_train_batches=2, limit_val_batches=1,
        callbacks=[mine])
    trainer.fit(Logs())
    for each in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert isinstance(each, Mine) and isinstance(each, first.Callback) and isinstance(each, pl.Callback)
        assert each.setups == 1 and each.state_key == "Mine"
(result,) = tune.Tuner(trainable, run_config=run).fit()
assert result.error is None, result.error
assert len(result.metrics_dataframe) == 2
"""


@pytest.mark.external
@pytest.mark.slow
@pytest.mark.parametrize("first", PACKAGES)
def test_the_users_package_counts_whichever_is_imported_first(first, tmp_path):  # row 1.41
    (package,) = set(INSTALLED) - {first}  # both are, in the environment that tests run in
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run_python(str(script), first, package, str(tmp_path))
