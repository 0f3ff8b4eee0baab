"""Pipelines whose stages are split over several workers: with the numbers of a plain loop, and no other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset

from tests.plugins.pipeline.test_pipeline import Toy
from tests.train.operators import cpu_trainer, plain_loop
from tests.train.strategies.test_cutting import Skips
from tests.train.strategies.transformers import PLAN, Decoder, loss_of
from tests.train.workers.test_recovery import identical
from trainkit.errors import ConfigError
from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.fsdp import FSDP
from trainkit.train.strategies.tensor import TensorParallel

pytestmark = pytest.mark.usefixtures("runtime")

SAMPLES = 28
BATCH = 8


def make_parts(size: int) -> tuple[nn.Module, Any, DataLoader[Any]]:
    torch.manual_seed(0)
    model = Decoder(tied=False).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(0, 11, (SAMPLES, 6))
    return model, optimizer, DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), size, shuffle=True)


class Translator(TrainingOperator):
    """A transformer on random tokens."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, loader = make_parts(config[BATCH_SIZE])
        self.register(models=model, optimizers=optimizer, criterion=loss_of)
        self.register_data(train_loader=loader, validation_loader=loader)
        self.steps: list[tuple[float, int]] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        metrics = super().train_batch(batch, batch_info)
        if "train_loss" in metrics:
            self.steps.append((float(metrics["train_loss"]), metrics["num_samples"]))
        return metrics

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        result = self.forward([batch[0]], batch[1])
        counted = {"num_samples": len(batch[1])}
        return counted if result is None else {"val_loss": result[1], **counted}


def translator(workers: int, strategy: Any, **options: Any) -> TorchTrainer:
    config = {BATCH_SIZE: BATCH}
    return cpu_trainer(Translator, workers, config, num_cpus_per_worker=0.25, strategy=strategy, **options)


def plain(steps: int, **options: Any) -> tuple[list[float], nn.Module]:
    """Losses of a plain loop, and its model."""
    model, optimizer, loader = make_parts(BATCH)
    return plain_loop(model, optimizer, loss_of, loader, steps, **options), model


def losses_of(trainer: TorchTrainer) -> list[float]:
    held = trainer.apply_all_operators(lambda operator: operator.steps)  # type: ignore[attr-defined]
    return [
        math.fsum(loss * count for loss, count in step) / sum(count for _, count in step)
        for step in zip(*filter(None, held), strict=True)
    ]


def held(operator: Any) -> tuple[int, int]:
    """Numbers that this worker holds, and the units of queries among them."""
    here = {name: p for name, p in operator._registered.models[0].whole.named_parameters() if not p.is_meta}
    parts = {name: p.to_local() if hasattr(p, "to_local") else p for name, p in here.items()}
    return sum(p.numel() for p in parts.values()), sum(len(p) for n, p in parts.items() if "q_proj.w" in n)


@pytest.mark.slow
def test_a_transformer_in_three_dimensions_clips_and_accumulates(tmp_path: Path) -> None:
    options: dict[str, Any] = {"grad_accumulation_steps": 2, "max_grad_norm": 0.5}
    expected, model = plain(12, every=2, max_norm=0.5)
    tensor = TensorParallel(degree=2, plan=PLAN)
    split = ["layers.1"]
    with translator(8, Pipeline(split=split, tensor=tensor), **options) as gang:
        gang.train(num_steps=12)
        assert losses_of(gang) == pytest.approx(expected, abs=1e-9)
        # Of 5200 numbers, and in its layer two heads of four.
        assert gang.apply_all_operators(held) == [(1420, 8), (1420, 8), (1452, 8), (1452, 8)] * 2
        whole = gang.get_model()
        for name, value in whole.state_dict().items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-9)
        tokens, target = map(torch.stack, zip(*make_parts(1)[2].dataset, strict=True))
        assert loss_of(whole(tokens), target).item() == pytest.approx(gang.validate()["val_loss"], abs=1e-9)

        gang.save(tmp_path / "eight")
        state, loss = gang.state_dict(), gang.train(num_steps=4)["train_loss"]
        others = (
            (4, Pipeline(degree=2, split=split, tensor=TensorParallel(plan=PLAN))),
            (2, Pipeline(split=split)),
            (2, tensor),
            (2, FSDP()),
        )
        for workers, strategy in others:
            with translator(workers, strategy, **options) as other:
                other.load(tmp_path / "eight")
                loaded = other.state_dict()
                for part in ("models", "optimizers"):
                    assert identical(loaded[part], state[part])
                assert other.train(num_steps=4)["train_loss"] == pytest.approx(loss, abs=1e-9)
        gang.load_state_dict(loaded)
        assert gang.train(num_steps=4)["train_loss"] == pytest.approx(loss, abs=1e-9)


class Replacing(Toy):
    """A forward of its own, with a parameter that no module has."""

    def make(self) -> nn.Module:
        return Skips().double()


def replacing(model: Any, mesh: Any) -> nn.Module:
    """Split two layers, one in each stage, and put another parameter in the place of the model's own."""
    model.shift = nn.Parameter(model.shift.detach().clone())
    plan = {name: ColwiseParallel(output_layouts=None) for name in ("blocks.0", "blocks.1")}
    for style in plan.values():
        style.output_layouts = (torch.distributed.tensor.Replicate(),)
    parallelize_module(model, mesh, plan)
    return model


def toy(operator: type[Toy], strategy: Any, workers: int) -> TorchTrainer:
    return cpu_trainer(operator, workers, num_cpus_per_worker=0.25, strategy=strategy)


def test_a_plan_may_replace_a_parameter_that_no_module_has() -> None:
    strategy = Pipeline(split=["blocks.1"], tensor=TensorParallel(plan=replacing))
    with toy(Replacing, "single", 1) as alone, toy(Replacing, strategy, 4) as gang:
        for _ in range(2):
            assert gang.train()["train_loss"] == pytest.approx(alone.train()["train_loss"], abs=1e-9)
        expected = alone.state_dict()["models"][0]
        for name, value in gang.state_dict()["models"][0].items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9)


class Nested(Toy):
    """A layer in a module that is cut into two stages."""

    def make(self) -> nn.Module:
        inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))
        return nn.Sequential(inner, nn.Linear(8, 3)).double()


@pytest.mark.parametrize(
    ("operator", "plan", "message"),
    [
        (
            Nested,
            {"0.0": ColwiseParallel(), "0": PrepareModuleInput()},
            "plan: 0 is split by hooks on its calls, but a pipeline calls only parts of this module",
        ),
        (Toy, {"0": ColwiseParallel(use_local_output=False)}, "stage 0 of the pipeline returned DTensor"),
    ],
    ids=["hooks", "DTensor"],
)
def test_plans_that_do_not_fit(operator: type[Toy], plan: Any, message: str) -> None:
    strategy = Pipeline(degree=2, split=["1"], tensor=TensorParallel(plan=plan))
    if operator is Nested:
        strategy = Pipeline(split=["0.2"], tensor=TensorParallel(plan=plan))
    with pytest.raises(ConfigError, match=message), toy(operator, strategy, 4) as gang:
        gang.train()
