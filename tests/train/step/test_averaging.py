"""Exponential moving averages of weights: those of torch's AveragedModel, however a model is spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.train.workers.test_recovery import identical
from trainkit.errors import ConfigError
from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.plugins.testing.strategy import (
    GLOBAL_BATCH,
    SAMPLES,
    Promised,
    StrategyRow,
    make_data,
    make_loaders,
    make_model,
    make_optimizer,
    make_trainer,
)
from trainkit.train import TorchTrainer
from trainkit.train.strategies.fsdp import FSDP
from trainkit.train.strategies.tensor import TensorParallel

pytestmark = pytest.mark.usefixtures("runtime")

DECAY = 0.8
STEPS = 7


def plain() -> tuple[nn.Module, AveragedModel, float]:
    """Model and average of a plain loop, and the loss of the average over the data."""
    model = make_model(torch.float64)
    optimizer = make_optimizer(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for (features, target), _ in zip(
        make_loaders(torch.float64, GLOBAL_BATCH)[0], range(STEPS), strict=False
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), target).backward()
        optimizer.step()
        average.update_parameters(model)
    features, target = make_data(torch.float64).tensors
    return model, average, nn.functional.cross_entropy(average(features), target).item()


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        StrategyRow("ddp", 2),
        StrategyRow("fsdp", 1),
        StrategyRow(FSDP(replicas=2), 4),
        StrategyRow(TensorParallel(degree=2, data="shard"), 4),
        StrategyRow(Pipeline(degree=2, tensor=TensorParallel(degree=2)), 4),
    ],
    ids=str,
)
def test_the_average_is_torchs(row: StrategyRow, tmp_path: Path) -> None:
    model, average, loss = plain()
    row.options["ema_decay"] = DECAY
    with make_trainer(row, torch.float64) as gang:
        gang.train(num_steps=STEPS)
        for _ in range(2):
            assert gang.validate()["val_loss"] == pytest.approx(loss, abs=1e-9)
        for expected, found in ((model, gang.get_model()), (average.module, gang.get_model(ema=True))):
            for name, value in expected.state_dict().items():
                torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=1e-9)
        gang.save(tmp_path / "c")
        state = gang.state_dict()
        assert state["ema"]["updates"] == STEPS
        with make_trainer(StrategyRow("single", 1, {"ema_decay": DECAY}), torch.float64) as alone:
            alone.load(tmp_path / "c")
            assert identical(alone.state_dict()["ema"], state["ema"])
            gang.train(num_steps=3)
            alone.train(num_steps=3)
            state = alone.state_dict()
            for name, value in gang.state_dict()["ema"]["models"][0].items():
                torch.testing.assert_close(state["ema"]["models"][0][name], value, rtol=0, atol=1e-9)
            gang.load_state_dict(state)
            assert identical(gang.state_dict()["ema"], state["ema"])


def test_a_state_without_averages_begins_them_with_its_weights(tmp_path: Path) -> None:
    with make_trainer(StrategyRow("single", 1), torch.float64) as without:
        without.train(num_steps=2)
        with pytest.raises(ConfigError, match="needs averages: pass ema_decay"):
            without.get_model(ema=True)
        without.save(tmp_path / "c")
    with make_trainer(StrategyRow("ddp", 2, {"ema_decay": DECAY}), torch.float64) as gang:
        gang.load(tmp_path / "c")
        assert identical(*(gang.get_model(ema=ema).state_dict() for ema in (False, True)))
        gang.train(num_steps=1)
        assert identical(*(gang.get_model(ema=ema).state_dict() for ema in (False, True)))


def test_accumulated_batches_are_one_update() -> None:
    options = {"ema_decay": DECAY, "grad_accumulation_steps": 3}
    with make_trainer(StrategyRow("ddp", 2, options), torch.float64) as gang:
        gang.train()
        assert gang.state_dict()["ema"]["updates"] == 3
        assert SAMPLES // GLOBAL_BATCH == 8


class Unstepped(Promised):
    """Steps its optimizer by itself."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        self.criterion(self.model(batch[0]), batch[1]).backward()
        self.optimizer.step()
        return {}


def test_a_step_that_could_not_be_noticed_is_refused() -> None:
    options = {"training_operator_cls": Unstepped, "config": {"dtype": torch.float64, "*batch_size": 8}}
    with (
        TorchTrainer(**options, ema_decay=DECAY, use_gpu=False, use_local=True) as alone,
        pytest.raises(ConfigError, match=r"did not call self.optimizer_step\(\), which ema_decay=0.8 needs"),
    ):
        alone.train()
    for wrong in (0, 1, 1.5, "0.9"):
        with pytest.raises(ConfigError, match=r"ema_decay must be between 0 and 1 or None, not "):
            TorchTrainer(**options, ema_decay=wrong)
