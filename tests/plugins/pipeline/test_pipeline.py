"""Pipelines: models in stages on real workers, with the numbers of a plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainkit.errors import CheckpointError, ConfigError
from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.train import TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")


def trainer(
    operator: type[TrainingOperator], strategy: Pipeline, num_workers: int, **options: Any
) -> TorchTrainer:
    return TorchTrainer(
        training_operator_cls=operator,
        strategy=strategy,
        num_workers=num_workers,
        use_gpu=False,
        **{"num_cpus_per_worker": 0.25, **options},
    )


# -- on workers --------------------------------------------------------------------------------


class Toy(TrainingOperator):
    """Two small layers and what a test changes of them."""

    samples = 22

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def data(self) -> TensorDataset:
        torch.manual_seed(1)
        dtype = next(self.built.parameters()).dtype
        return TensorDataset(torch.randn(self.samples, 6, dtype=dtype), torch.randint(0, 3, (self.samples,)))

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.built = self.make()
        self.register(
            models=self.built,
            optimizers=self.optimizers_of(self.built),
            criterion=nn.CrossEntropyLoss(),
        )
        size = config.get("batch_size", 4)
        self.register_data(
            train_loader=DataLoader(self.data(), size), validation_loader=DataLoader(self.data(), size)
        )

    def optimizers_of(self, model: nn.Module) -> Any:
        return torch.optim.Adam(model.parameters(), lr=0.05)


def plain(operator: type[Toy], **options: Any) -> TorchTrainer:
    """One worker, in this process."""
    return TorchTrainer(training_operator_cls=operator, use_local=True, use_gpu=False, **options)


def compare(
    operator: type[Toy], strategy: Pipeline, workers: int, batch_size: int, **options: Any
) -> dict[str, Any]:
    """Train as one worker does, for two passes, and assert the same numbers; returns the pipeline's state."""
    copies = workers // strategy.for_workers(workers).model_ways
    with (
        plain(operator, config={"batch_size": batch_size}, **options) as alone,
        trainer(operator, strategy, workers, config={"batch_size": batch_size // copies}, **options) as gang,
    ):
        for _ in range(2):
            expected, found = alone.train(), gang.train()
            assert found["num_samples"] == expected["num_samples"]
            assert found["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-9)
        expected, found = alone.validate(), gang.validate()
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, abs=1e-9), name
        state, other = gang.state_dict(), alone.state_dict()
        for name, value in other["models"][0].items():
            torch.testing.assert_close(state["models"][0][name], value, rtol=0, atol=1e-9)
        assert sorted(state["optimizers"][0]["state"]) == sorted(other["optimizers"][0]["state"])
        # And back: what either has, the other one goes on with.
        alone.load_state_dict(state)
        gang.load_state_dict(alone.state_dict())
        assert gang.train()["train_loss"] == pytest.approx(alone.train()["train_loss"], abs=1e-9)
        return state


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_uneven_batches_clipping_and_accumulation_over_two_pipelines(steps: int) -> None:
    # 22 samples in batches of 8: of the last one each pipeline gets 3, which are 3 or 1 microbatches.
    options: dict[str, Any] = {"max_grad_norm": 0.5, "grad_accumulation_steps": steps}
    compare(Toy, Pipeline(degree=2), 4, 8, **options)


class Branches(nn.Module):
    """Passes on two tensors, one of them of whole numbers, and skips a parameter now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(value).tanh(), value.argmax(dim=1)


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 8)
        self.outer = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, value: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self.outer(value + self.table(place))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Branches()
        self.second = Join()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.second(*self.first(value))

    def stages(self) -> list[nn.Module]:
        return [self.first, self.second]


class Several(Toy):
    """Values of two types between stages, an optimizer for each stage, one of them with a frozen group."""

    def make(self) -> nn.Module:
        model = Branching().double()
        model.first.inner.bias.requires_grad_(False)
        return model

    def optimizers_of(self, model: nn.Module) -> Any:
        return [
            torch.optim.Adam(model.get_submodule("first").parameters(), lr=0.05),
            torch.optim.AdamW(model.get_submodule("second").parameters(), lr=0.05, weight_decay=0.1),
        ]

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        loss = self.forward_backward([batch[0]], batch[1])
        self.optimizer_step()
        return {"num_samples": len(batch[1])} | ({} if loss is None else {"train_loss": loss})


@pytest.mark.slow
def test_several_values_between_stages_and_several_optimizers() -> None:
    state = compare(Several, Pipeline(), 2, 4, max_grad_norm=0.5)
    # A parameter that no worker used has no gradient, so weight decay leaves it alone as in a plain loop.
    assert sorted(state["optimizers"][1]["state"]) == [0, 1, 2]
    compare(Several, Pipeline(degree=2), 4, 8)


class Normed(Toy):
    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()


def test_batch_norm_sees_each_microbatch_once() -> None:
    state = compare(Normed, Pipeline(split=["1"], microbatches=1), 2, 8)
    assert state["models"][0]["1.num_batches_tracked"] == 6


class Own(Toy):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {"train_loss": self.model(batch[0]).sum()}


class Raises(Toy):
    """Its second stage fails in the middle of an epoch."""

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), Fails(), nn.Linear(8, 3)).double()


class Fails(nn.Module):
    calls = 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 7:
            raise ArithmeticError("the seventh microbatch")
        return value


@pytest.mark.parametrize(
    ("operator", "error", "message"),
    [
        (Own, ConfigError, r"call self.forward_backward\(features, target\)"),
        (Raises, ArithmeticError, "the seventh microbatch"),
    ],
)
def test_what_a_stage_raises_reaches_the_user(
    operator: type[Toy], error: type[Exception], message: str
) -> None:
    with trainer(operator, Pipeline(split=["1"]), 2) as gang, pytest.raises(error, match=message):
        gang.train()


def test_each_worker_holds_its_stage_alone() -> None:
    def held(operator: Any) -> tuple[int, int]:
        whole = operator.built
        return (
            sum(parameter.numel() for parameter in whole.parameters() if not parameter.is_meta),
            sum(
                parameter.numel()
                for group in operator.optimizer.param_groups
                for parameter in group["params"]
            ),
        )

    with trainer(Toy, Pipeline(split=["2"]), 2) as gang:
        gang.train()
        assert gang.apply_all_operators(held) == [(56, 56), (27, 27)]
        state = gang.state_dict()
        before = {name: value.clone() for name, value in state["models"][0].items()}
        state["models"][0]["0.weight"] = torch.zeros(3, 3)
        with pytest.raises(CheckpointError, match=r"0.weight of model 0 has shape \(8, 6\)"):
            gang.load_state_dict(state)
        del state["models"][0]["0.weight"]
        with pytest.raises(CheckpointError, match=r"model 0 lacks 0\.weight"):
            gang.load_state_dict(state)
        after = gang.state_dict()["models"][0]
        assert all(torch.equal(value, after[name]) for name, value in before.items())


class Overflows(Toy):
    """A step's gradient is too large for half precision on the last stage only."""

    samples = 16

    def make(self) -> nn.Module:
        self.moved: list[bool] = []
        return super().make().float()

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        loss = self.forward_backward([batch[0]], batch[1])
        if batch_info["batch_idx"] == 1 and self.world_rank == 1:
            next(self.model.parameters()).grad[0] = float("inf")
        self.optimizer_step()
        moved = any(
            not torch.equal(old, new) for old, new in zip(before, self.model.parameters(), strict=True)
        )
        self.moved.append(moved)
        return {} if loss is None else {"train_loss": loss}


def test_one_stage_that_overflows_makes_all_leave_out_the_step() -> None:
    with trainer(Overflows, Pipeline(), 2, precision="fp16") as gang:
        gang.train()
        assert gang.apply_all_operators(lambda operator: operator.moved) == [[True, False, True, True]] * 2
        assert gang.state_dict()["scaler"]["scale"] == 2.0**15


class Thaws(Toy):
    """Its first stage is frozen at first, so that no gradient is asked of the second one."""

    def make(self) -> nn.Module:
        model = super().make()
        model[0].requires_grad_(False)  # type: ignore[index]
        return model


def test_a_frozen_stage_is_left_alone_and_one_set_free_is_noticed() -> None:
    state = compare(Thaws, Pipeline(split=["1"]), 2, 4)
    assert sorted(state["optimizers"][0]["state"]) == [2, 3]
    with trainer(Thaws, Pipeline(split=["1"]), 2) as gang:
        gang.train(num_steps=1)
        gang.apply_all_operators(lambda operator: operator.built.requires_grad_(True) and None)
        with pytest.raises(ConfigError, match="unfrozen, save a checkpoint and load it into a new trainer"):
            gang.train(num_steps=1)


def test_with_fewer_workers_there_are_fewer_stages() -> None:
    # There is room for two of three.
    with trainer(Toy, Pipeline(), 3, min_workers=2, num_cpus_per_worker=2) as gang:
        gang.train()
        held = gang.apply_all_operators(lambda operator: len(list(operator.model.parameters())))
        assert held == [2, 2]


class Denoiser(TrainingOperator):
    """Its targets are images."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1)]
        model = nn.Sequential(*layers).double()
        clean = torch.randn(16, 3, 5, 5).double()
        noisy = clean + torch.randn_like(clean)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        self.register_data(train_loader=DataLoader(TensorDataset(noisy, clean), 4))


def losses(**options: Any) -> list[float]:
    with TorchTrainer(
        training_operator_cls=Denoiser, use_gpu=False, num_cpus_per_worker=0.25, **options
    ) as trainer:
        return [trainer.train()["train_loss"] for _ in range(2)]


@pytest.mark.slow
def test_channels_last_targets_arrive_as_they_were_sent() -> None:
    """They are in another order in memory where they are received than the sender sends them in."""
    piped = losses(num_workers=2, strategy="pipeline", channels_last=True)
    assert piped == pytest.approx(losses(), abs=1e-9)
