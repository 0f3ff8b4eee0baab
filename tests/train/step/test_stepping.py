"""Optimizer steps of one operator, in this process: scaling, clipping, and what a step may not go past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from tests.train.operators import Digits, alone, make_parts, plain_loop, train_alone
from trainkit.errors import ConfigError, NonFiniteLossError
from trainkit.train import TrainingOperator

CONFIG: dict[str, Any] = {"samples": 96, "batch_size": 24, "shuffle": False, "dtype": torch.float32}

Body = Callable[[Any, Any, Any], Any]


def stepping(body: Body, **settings: Any) -> Any:
    """An operator of `Digits` whose train_batch is `body(operator, features, target)`."""

    class Own(Digits):
        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            body(self, *batch)
            return {}

    return alone(Own, CONFIG, **settings)


def loss_of(operator: Any, features: Any, target: Any) -> Any:
    return operator.criterion(operator.model(features), target)


def test_clipping_is_torchs_own_over_all_optimizers() -> None:
    class Two(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            model, _, criterion, train, _ = make_parts(config)
            optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]  # type: ignore[index]
            self.register(models=model, optimizers=optimizers, criterion=criterion)
            self.register_data(train_loader=train)

        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            with self.autocast():
                loss = loss_of(self, *batch)
            self.backward(loss)
            assert self.optimizer_step()
            return {"loss": loss}

    operator = alone(Two, CONFIG, max_grad_norm=0.01)
    train_alone(operator)
    model, _, criterion, loader, _ = make_parts(CONFIG)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain_loop(model, optimizer, criterion, loader, 4, max_norm=0.01)
    for one, other in zip(operator.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_optimizers_that_share_parameters_all_step_before_any_clears_gradients() -> None:
    class Shared(Digits):
        def setup(self, config: dict[str, Any]) -> None:
            model, _, criterion, train, _ = make_parts(config)
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
            self.register(models=model, optimizers=optimizers, criterion=criterion)
            self.register_data(train_loader=train)

        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            self.backward(loss_of(self, *batch))
            self.optimizer_step()
            return {}

    operator = alone(Shared, CONFIG, max_grad_norm=0.01)
    before = [parameter.detach().clone() for parameter in operator.model.parameters()]
    train_alone(operator, 1)
    moved = [one - other.detach() for one, other in zip(before, operator.model.parameters(), strict=True)]
    # Clipped once, to 0.01, and applied twice, 0.1 each.
    assert nn.utils.get_total_norm(moved) == pytest.approx(2 * 0.1 * 0.01, rel=1e-4)


def own_optimizer(operator: Any, features: Any, target: Any) -> None:
    with operator.autocast():
        loss = loss_of(operator, features, target)
    operator.optimizer.zero_grad()
    operator.backward(loss)
    operator.optimizer.step()


def own_backward(operator: Any, features: Any, target: Any) -> None:
    with operator.autocast():
        loss = loss_of(operator, features, target)
    loss.backward()
    operator.optimizer_step()


def own_precision(operator: Any, features: Any, target: Any) -> None:
    operator.backward(loss_of(operator, features, target))
    operator.optimizer_step()


def clearing(set_to_none: bool) -> Body:
    def body(operator: Any, features: Any, target: Any) -> None:
        operator.optimizer.zero_grad(set_to_none=set_to_none)
        operator.backward(loss_of(operator, features, target))
        operator.optimizer_step()

    return body


@pytest.mark.parametrize(
    ("body", "settings", "message"),
    [
        (own_optimizer, {"precision": "fp16"}, r"did not call self\.optimizer_step\(\)"),
        (own_optimizer, {"max_grad_norm": 1.0}, r"did not call self\.optimizer_step\(\)"),
        (own_optimizer, {"grad_accumulation_steps": 2}, r"did not call self\.optimizer_step\(\)"),
        (own_backward, {"precision": "fp16"}, r"did not call self\.backward\(loss\)"),
        (own_backward, {"grad_accumulation_steps": 2}, r"did not call self\.backward\(loss\)"),
        (own_backward, {"detect_nan": True}, r"did not call self\.backward\(loss\)"),
        (
            own_precision,
            {"precision": "bf16"},
            r"precision='bf16', but the step never entered self\.autocast",
        ),
        (
            own_precision,
            {"precision": "fp16"},
            r"precision='fp16', but the step never entered self\.autocast",
        ),
        (clearing(True), {"grad_accumulation_steps": 2}, r"leave out zero_grad\(\)"),
        (clearing(False), {"grad_accumulation_steps": 2}, r"leave out zero_grad\(\)"),
    ],
)
def test_nothing_that_was_asked_for_is_left_out_silently(body: Body, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_alone(stepping(body, **settings))


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        (own_optimizer, {}),
        (own_optimizer, {"precision": "bf16"}),
        (own_backward, {"max_grad_norm": 1.0}),
        (own_precision, {"grad_accumulation_steps": 2, "max_grad_norm": 1.0, "detect_nan": True}),
        (clearing(True), {"max_grad_norm": 1.0}),
    ],
)
def test_what_goes_without_is_let_be(body: Body, settings: Any) -> None:
    train_alone(stepping(body, **settings))


def test_accumulation_needs_the_default_loop() -> None:
    class Looping(Digits):
        def train_epoch(self, iterator: Any, info: Any, num_steps: Any = None, epoch_idx: int = 0) -> Any:
            return [self.train_batch(batch, {}) for batch in iterator][-1]

    with pytest.raises(ConfigError, match="needs the default train_epoch"):
        train_alone(alone(Looping, CONFIG, grad_accumulation_steps=2))


class Overflowing(TrainingOperator):
    """The second of four batches has a loss that no scale makes finite."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, criterion, train, _ = make_parts(config)
        scheduler = StepLR(optimizer, 1, gamma=0.5)
        self.register(models=model, optimizers=optimizer, criterion=criterion, schedulers=scheduler)
        self.register_data(train_loader=train)
        self.seen: list[Any] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        with self.autocast():
            loss = loss_of(self, *batch)
            assert self.model(batch[0]).dtype is torch.float16
        before = self.model[0].weight.detach().clone()
        self.backward(loss * (float("inf") if batch_info["batch_idx"] == 1 else 1))
        stepped = self.optimizer_step()
        changed = not torch.equal(before, self.model[0].weight)
        self.seen.append((stepped, changed, self.scheduler.last_epoch))
        return {}


def test_fp16_leaves_out_a_step_that_overflows_and_its_schedulers_too() -> None:
    operator = alone(Overflowing, CONFIG, precision="fp16", scheduler_step_freq="batch")
    train_alone(operator)
    assert operator.seen == [(True, True, 0), (False, False, 1), (True, True, 1), (True, True, 2)]
    assert operator.scheduler.last_epoch == 3
    state = operator._stepper.state()
    assert state["scale"] == 2.0**15

    again = alone(Overflowing, CONFIG, precision="fp16", scheduler_step_freq="batch")
    again._stepper.load_state(state)
    assert again._stepper.state() == state
    # Another precision has no scaler, and leaves the state of one.
    plain = alone(Digits, CONFIG)
    plain._stepper.load_state(state)
    assert plain._stepper.state() == {}


def test_a_step_without_gradients_is_no_error_in_fp16() -> None:
    def skipping(operator: Any, features: Any, target: Any) -> None:
        if operator.global_step != 1:
            with operator.autocast():
                loss = loss_of(operator, features, target)
            operator.backward(loss)
        assert operator.optimizer_step() is (operator.global_step != 1)

    train_alone(stepping(skipping, precision="fp16"))


def test_a_loss_that_is_not_finite_is_named_with_worker_and_step() -> None:
    def broken(operator: Any, features: Any, target: Any) -> None:
        loss = loss_of(operator, features, target)
        operator.backward(loss * (float("nan") if operator.global_step == 2 else 1))
        operator.optimizer_step()

    operator = stepping(broken, detect_nan=True)
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan on worker 0 at global_step 2"):
        train_alone(operator)
    assert all(bool(parameter.isfinite().all()) for parameter in operator.model.parameters())


class Convolving(nn.Module):
    """Keeps the memory formats that it met."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.met: list[bool] = []

    def forward(self, images: Any, scales: Any) -> Any:
        output = self.layer(images)
        formats = (images, self.layer.weight, output)
        self.met.append(all(one.is_contiguous(memory_format=torch.channels_last) for one in formats))
        return output.mean(dim=(2, 3)) * scales


class Pictures(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = Convolving()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.register(models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss())
        data = TensorDataset(torch.randn(8, 3, 6, 6), torch.ones(8, 1), torch.randint(0, 4, (8,)))
        self.register_data(train_loader=DataLoader(data, 4), validation_loader=DataLoader(data, 4))


def test_channels_last_is_for_images_and_convolutions() -> None:
    last, first = alone(Pictures, {}, channels_last=True), alone(Pictures, {})
    results = [train_alone(operator)["train_loss"] for operator in (last, first)]
    assert last.model.met == [True, True]
    assert first.model.met == [False, False]
    assert results[0] == pytest.approx(results[1], rel=1e-5)
