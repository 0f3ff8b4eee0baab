"""Models split over workers compute what whole ones do; what can't be split is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from tests.train.operators import Digits, cpu_trainer, gang_losses, plain_loop
from tests.train.strategies.transformers import PLAN, Decoder, loss_of
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.strategies.gradients import GradientAverage, SharedScaler, clip
from trainkit.train.strategies.tensor import TensorParallel

pytestmark = pytest.mark.usefixtures("runtime")

BATCH = 6
SAMPLES = 20


def make_parts(foreach: bool | None = None) -> tuple[nn.Module, Any, DataLoader[Any]]:
    torch.manual_seed(0)
    model = Decoder(depth=1).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=foreach)
    tokens = torch.randint(0, 11, (SAMPLES, 6))
    return model, optimizer, DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), BATCH, shuffle=True)


class Translator(TrainingOperator):
    """A transformer on random tokens, with its own step if asked."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, loader = make_parts(config.get("foreach"))
        loader = DataLoader(loader.dataset, BATCH // config["copies"], shuffle=True)
        self.register(models=model, optimizers=optimizer, criterion=loss_of)
        self.register_data(train_loader=loader, validation_loader=loader)
        self.steps: list[tuple[float, int]] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if self.config.get("own_step"):
            tokens, target = batch
            loss = self.criterion(self.model(tokens), target)
            # Not self.backward: gradients come together with any backward pass.
            (loss * self._train_feed.weight).backward()  # type: ignore[union-attr]
            self.optimizer_step()
            metrics: Any = {"train_loss": loss.detach(), "num_samples": len(target)}
        else:
            metrics = super().train_batch(batch, batch_info)
        counted = metrics["num_samples"] if self._train_feed.weight else 0  # type: ignore[union-attr]
        self.steps.append((float(metrics["train_loss"]), counted))
        return metrics

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        tokens, target = batch
        return {"val_loss": loss_of(self.model(tokens), target), "num_samples": len(target)}


def plain(steps: int, **options: Any) -> list[float]:
    """Losses of a plain loop."""
    model, optimizer, loader = make_parts()
    return plain_loop(model, optimizer, loss_of, loader, steps, **options)


def translator(workers: int, strategy: Any, copies: int, **options: Any) -> TorchTrainer:
    config = {"copies": copies, **options.pop("config", {})}
    return cpu_trainer(Translator, workers, config, num_cpus_per_worker=0.25, strategy=strategy, **options)


# -- equal to a plain loop ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_transformer_over_a_mesh_clips_and_accumulates() -> None:
    # Attention by heads, tied embeddings, optimizers that update many tensors at once, uneven last batches.
    expected = plain(12, every=2, max_norm=0.5)
    with translator(
        4,
        TensorParallel(degree=2, plan=PLAN, data="shard"),
        copies=2,
        config={"foreach": True},
        grad_accumulation_steps=2,
        max_grad_norm=0.5,
    ) as gang:
        gang.train(num_steps=12)
        assert gang_losses(gang) == pytest.approx(expected, abs=1e-9)
        of_a_worker = gang.apply_all_operators(projected)
        assert of_a_worker == [4] * 4
        whole = gang.get_model()
        assert whole.layers[0].attention.q_proj.weight.shape == (16, 16)
        assert whole.head.weight is whole.embed.weight
        validated = gang.validate()["val_loss"]
        tokens, target = map(torch.stack, zip(*make_parts()[2].dataset, strict=True))
        assert loss_of(whole(tokens), target).item() == pytest.approx(validated, abs=1e-9)


def projected(operator: Any) -> int:
    """Return the units of queries that a worker holds: one head of four, as they are sharded twice."""
    return len(operator.model.layers[0].attention.q_proj.weight.to_local())


@pytest.mark.slow
def test_a_step_of_the_users_own(tmp_path: Path) -> None:
    expected = plain(12)
    with translator(4, TensorParallel(degree=2, plan=PLAN), copies=2, config={"own_step": True}) as gang:
        gang.train(num_steps=8)
        for one, two, unused in gang.apply_all_operators(partly_used):
            # Of what copies 0 and 1 find: 1 and 3, nothing and 4, nothing.
            assert (one, two, unused) == (2.0, 2.0, None)
        gang.save(tmp_path / "four")
        with translator(2, TensorParallel(plan=PLAN), copies=1) as pair:
            pair.load(tmp_path / "four")
            state, ours = pair.state_dict(), gang.state_dict()
            for name, value in state["models"][0].items():
                assert torch.equal(value, ours["models"][0][name]), name
            # The 8 steps ended two batches into a pass.
            gang.train(num_steps=4)
            assert gang_losses(gang)[:8] == pytest.approx(expected[:8], abs=1e-9)


def partly_used(operator: Any) -> list[float | None]:
    """Averages of gradients, where copies of a model use different parameters."""
    strategy = operator._context.strategy
    parameters = [nn.Parameter(torch.zeros(())) for _ in range(3)]
    average = GradientAverage(parameters, strategy._mesh["data"].get_group())
    one, two, _ = parameters
    if strategy.data.rank == 0:
        one.backward()
    else:
        (one * 3 + two * 4).backward()
    # Added to and averaged again, which changes no mean.
    average.active = False
    (one * 0).backward()
    average.active = True
    (one * 0).backward()
    average.leave()
    return [None if parameter.grad is None else float(parameter.grad) for parameter in parameters]


# -- what each worker holds --------------------------------------------------------------------


class Dropping(Digits):
    """Dropout where the model is whole, and normal numbers drawn by the operator."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10), nn.Dropout(0.1))
        model = model.double()
        # Worker 0's values stand.
        with torch.no_grad():
            model[3].bias.add_(self.world_rank)
        frozen = nn.Linear(3, 3).requires_grad_(False)
        self.register(
            models=[model, frozen],
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            criterion=nn.CrossEntropyLoss(),
        )
        data = TensorDataset(torch.randn(30, 64).double(), torch.randint(0, 10, (30,)))
        self.register_data(train_loader=DataLoader(data, 8, shuffle=True))
        self.steps = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        features, target = batch
        output = self.models[0](features)
        loss = self.criterion(output, target)
        self.backward(loss)
        self.optimizer_step()
        self.steps.append((loss.item(), float(output.detach().sum())))
        return {"train_loss": loss.detach(), "num_samples": len(target)}


def held(operator: Any) -> dict[str, Any]:
    model = operator.models[0]
    parameters = dict(model.named_parameters())
    bytes_ = sum((p.to_local() if isinstance(p, DTensor) else p).nbytes for p in parameters.values())
    return {
        "steps": operator.steps,
        "drawn": torch.rand(3).tolist(),
        "bytes": bytes_,
        "bias": parameters["3.bias"].full_tensor().detach(),
        "placements": {n: str(p.placements) for n, p in parameters.items() if isinstance(p, DTensor)},
        "norm": float(_clipped(operator)),
        "scaled": _overflow(operator),
    }


def _gradients(operator: Any) -> list[Any]:
    parameters = list(operator.models[0].parameters())
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.zeros_like(parameter)
        local = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
        local.fill_(number + 1)
    return parameters


def _clipped(operator: Any) -> torch.Tensor:
    parameters = _gradients(operator)
    norm = clip(parameters, 1.0, operator.device)
    assert float(clip(parameters, 1.0, operator.device)) == pytest.approx(1.0, abs=1e-5)
    return norm


def _overflow(operator: Any) -> float:
    """The scale after one worker found an infinite gradient."""
    parameters = _gradients(operator)
    scaler = SharedScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    if operator.world_rank == 1:
        parameters[0].grad.to_local()[0] = math.inf
    before = parameters[2].detach().to_local().clone()
    scaler.step(operator.optimizer)
    scaler.update()
    assert torch.equal(parameters[2].detach().to_local(), before)
    return float(scaler.get_scale())


def test_workers_of_one_model_draw_alike_and_share_it() -> None:
    with cpu_trainer(Dropping, strategy="tensor") as gang:
        gang.train(num_steps=6)
        one, two = gang.apply_all_operators(held)
    assert one["steps"] == two["steps"]
    assert one["drawn"] == two["drawn"]
    assert torch.equal(one["bias"], two["bias"])
    assert one["placements"] == {
        "1.weight": "(Shard(dim=0),)",
        "1.bias": "(Shard(dim=0),)",
        "3.weight": "(Shard(dim=1),)",
        "3.bias": "(Replicate(),)",
    }
    # Half of both matrices and of one bias.
    assert one["bytes"] == two["bytes"] == 8 * (64 * 4 + 4 + 4 * 10 + 10)
    sizes = (64 * 8, 8, 8 * 10, 10)
    assert one["norm"] == pytest.approx(math.sqrt(sum((n + 1) ** 2 * size for n, size in enumerate(sizes))))
    assert one["norm"] == two["norm"]
    assert one["scaled"] == two["scaled"] == 2.0


# -- plans -------------------------------------------------------------------------------------


def planned(plan: Any, workers: int = 2) -> TorchTrainer:
    return cpu_trainer(Digits, workers, {"samples": 100}, strategy=TensorParallel(plan=plan))


def by_function(model: nn.Module, mesh: Any) -> Any:
    assert mesh.size() == 2
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def test_a_plan_may_be_patterns_or_a_function() -> None:
    results = []
    for plan in ({"[0]": ColwiseParallel(), "2": RowwiseParallel()}, by_function):
        with planned(plan) as gang:
            gang.train(num_steps=5)
            results.append(gang.state_dict()["models"][0])
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"fc*": ColwiseParallel()}, r"no module matches 'fc\*'; the modules are 0, 1, 2"),
        (
            {"2": ColwiseParallel(output_layouts=None)},
            "10 units, which can't be split evenly among 3 workers",
        ),
        (lambda model, mesh: "layers", "must return a dict or the split model, not a str"),
    ],
    ids=["name", "width", "function"],
)
def test_a_plan_that_does_not_fit(plan: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message), planned(plan, workers=3):
        pass


def test_nothing_to_split_says_to_give_a_plan() -> None:
    with (
        pytest.raises(ConfigError, match=r"no module of Sequential was split over 3 workers.*plan="),
        planned(None, workers=3),
    ):
        pass
