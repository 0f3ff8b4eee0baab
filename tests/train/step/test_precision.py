"""Lower precision, compilation and losses that are no numbers, on trainers of one worker and of two."""

from __future__ import annotations

import logging
import shutil
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tests.train.operators import Digits, make_parts
from trainkit.errors import NonFiniteLossError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")

CONFIG: dict[str, Any] = {"samples": 96, BATCH_SIZE: 24, "shuffle": False, "dtype": torch.float32}


def trainer_of(cls: type[Any], **options: Any) -> TorchTrainer:
    config = {**CONFIG, **options.pop("config", {})}
    return TorchTrainer(training_operator_cls=cls, config=config, use_gpu=False, **options)


def autocast_losses(dtype: torch.dtype, steps: int) -> list[float]:
    """Of a plain loop by torch's own recipe."""
    model, optimizer, criterion, loader, _ = make_parts(CONFIG)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    losses: list[float] = []
    while len(losses) < steps:
        for features, target in loader:
            with torch.autocast("cpu", dtype=dtype):
                loss = criterion(model(features), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_lower_precision_is_torchs_own_autocast(precision: Any, dtype: torch.dtype) -> None:
    with trainer_of(Digits, precision=precision, use_local=True) as trainer:
        for _ in range(2):
            result = trainer.train()
        operator = trainer.get_local_operator()
        assert [loss for loss, _ in operator.steps] == autocast_losses(dtype, 8)  # type: ignore[attr-defined]
        assert {parameter.dtype for parameter in operator.model.parameters()} == {torch.float32}
        assert result["last_train_loss"] < result["train_loss"]
        assert trainer.validate()["val_loss"] < 2.4


class Overflowing(TrainingOperator):
    """On worker 1 alone, the second batch's loss overflows whatever the scale."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, criterion, train, _ = make_parts(config)
        scheduler = StepLR(optimizer, 1, gamma=0.5)
        self.register(models=model, optimizers=optimizer, criterion=criterion, schedulers=scheduler)
        self.register_data(train_loader=train)
        self.stepped: list[bool] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        with self.autocast():
            loss = self.criterion(self.model(batch[0]), batch[1])
        self.backward(loss * (float("inf") if (self.world_rank, batch_info["batch_idx"]) == (1, 1) else 1))
        self.stepped.append(self.optimizer_step())
        return {"train_loss": loss, "num_samples": len(batch[1])}


def what_came_of_it(operator: Any) -> Any:
    scale = operator._stepper.state()["scale"]
    weights = torch.cat([parameter.detach().flatten() for parameter in operator.model.parameters()])
    return operator.stepped, operator.scheduler.last_epoch, scale, weights.tolist()


def test_two_workers_leave_out_a_step_together() -> None:
    with trainer_of(Overflowing, precision="fp16", num_workers=2, scheduler_step_freq="batch") as trainer:
        trainer.train()
        one, other = trainer.apply_all_operators(what_came_of_it)
        assert one == other
        stepped, last_epoch, scale, weights = one
        assert (stepped, last_epoch, scale) == ([True, False, True, True], 3, 2.0**15)
        assert torch.tensor(weights).isfinite().all()
        assert trainer.state_dict()["scaler"]["scale"] == scale


class Looping(Digits):
    """A loop of the user's own, which knows nothing of precision."""

    def train_epoch(self, iterator: Any, info: Any, num_steps: Any = None, epoch_idx: int = 0) -> Any:
        for features, target in iterator:
            self.optimizer.zero_grad()
            self.criterion(self.model(features), target).backward()
            self.optimizer.step()
        return {"train_loss": float("nan") if "broken" in self.config else 0.0}


# -- losses that are no numbers ----------------------------------------------------------------


class Breaking(Digits):
    """On worker `config["rank"]`, losses are NaN from the third batch on."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        broken = self.world_rank == self.config["rank"] and batch_info["batch_idx"] >= 2
        loss = self.criterion(self.model(batch[0]), batch[1]) * (float("nan") if broken else 1)
        if not broken or self.config["applied"]:
            self.backward(loss)
            self.optimizer_step()
        return {"good": 1.0, "train_loss": loss, "num_samples": len(batch[1])}


def test_one_workers_nan_ends_all_if_asked_for() -> None:
    options: dict[str, Any] = {"config": {"rank": 1, "applied": True}, "num_workers": 2}
    with (
        trainer_of(Breaking, detect_nan=True, **options) as trainer,
        pytest.raises(NonFiniteLossError, match="the loss is nan on worker 1 at global_step 2"),
    ):
        trainer.train()


def test_otherwise_it_is_told_once_at_the_epochs_end(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"config": {"rank": 1, "applied": True}, "num_workers": 2}
    with caplog.at_level(logging.WARNING, "trainkit.train"), trainer_of(Breaking, **options) as trainer:
        result = trainer.train()
    assert result["train_loss"] != result["train_loss"]
    assert result["good"] == 1
    (record,) = caplog.records
    # Worker 0 has it a step later: it takes over worker 1's gradients.
    assert record.getMessage() == (
        "train: train_loss is NaN or infinite from batch_idx 2 on, first on worker 1; detect_nan=True stops "
        "training at the first such loss"
    )


def test_a_loop_of_the_users_own_is_warned_of_too(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"config": {"broken": True}, "use_local": True}
    with caplog.at_level(logging.WARNING, "trainkit.train"), trainer_of(Looping, **options) as trainer:
        trainer.train()
    (record,) = caplog.records
    assert record.getMessage().startswith("train: train_loss is NaN or infinite on worker 0;")


# -- compilation -------------------------------------------------------------------------------


class Compiled(Digits):
    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        torch._dynamo.utils.counters.clear()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs g++; it is not on PATH")
def test_compiled_models_give_the_same_numbers_under_the_same_names() -> None:
    """Also of torch's own classes, which `Module.compile()` passes over without a word."""
    with trainer_of(Digits, use_local=True) as trainer:
        plain = trainer.train()["train_loss"]
    with trainer_of(Compiled, compile=True, use_local=True) as trainer:
        assert trainer.train()["train_loss"] == pytest.approx(plain, abs=1e-5)
        stats = torch._dynamo.utils.counters["stats"]
        assert stats["calls_captured"] >= 3, "nothing was compiled"
        model = trainer.get_model(to_cpu=True)
        assert isinstance(model, nn.Sequential)
        assert sorted(trainer.state_dict()["models"][0]) == sorted(model.state_dict())
    # The copy runs by itself.
    assert model(torch.zeros(1, 64)).shape == (1, 10)
