"""Trainers on real workers: they compute what a plain loop computes."""

from __future__ import annotations

import bdb
import os
import random
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset, random_split

from tests.train.operators import Digits, OwnSeeds, gang_losses, lose_patience, plain_losses
from trainkit.errors import CheckpointError, ConfigError, GangError, InfeasibleError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")


def trainer(operator: type[TrainingOperator] = Digits, **options: Any) -> TorchTrainer:
    return TorchTrainer(training_operator_cls=operator, use_gpu=False, **options)


# -- equal to a plain loop ---------------------------------------------------------------------


def test_workers_follow_the_plain_loop() -> None:
    # 500 is no multiple of 48: the 50 steps pass uneven last batches, too.
    config = {BATCH_SIZE: 48, "samples": 500, "dtype": torch.float64, "shuffle": True}
    with trainer(num_workers=3, config=config) as gang:
        result = gang.train(num_steps=50)
        losses = gang_losses(gang)
    expected = plain_losses(config, 50)
    assert result["batch_count"] == 50
    assert losses == pytest.approx(expected, abs=1e-9)
    assert result["last_train_loss"] == pytest.approx(expected[-1], abs=1e-9)


@pytest.mark.parametrize("samples", [1, 37])
def test_validation_does_not_depend_on_the_number_of_workers(samples: int) -> None:
    config = {BATCH_SIZE: 12, "samples": samples}
    results = []
    for workers in (1, 2):
        with trainer(num_workers=workers, use_local=True, config=config) as gang:
            gang.train()
            results.append(gang.validate())
    assert results[0]["num_samples"] == results[1]["num_samples"] == samples
    assert results[1] == pytest.approx(results[0], abs=1e-6)


def test_fewer_samples_than_workers() -> None:
    config = {BATCH_SIZE: 8, "samples": 3}
    with trainer(num_workers=4, config=config) as gang:
        result = gang.train(num_steps=5)
        assert result["num_samples"] == 15
        assert gang.validate()["num_samples"] == 3
        weights = gang.apply_all_operators(
            lambda operator: next(operator.model.parameters()).detach().clone()
        )
    with trainer(config=config, use_local=True) as one:
        assert one.train(num_steps=5)["train_loss"] == pytest.approx(result["train_loss"], abs=1e-9)
    assert all(torch.equal(weight, weights[0]) for weight in weights)


@pytest.fixture(scope="module")
def pair(runtime: None) -> Iterator[TorchTrainer]:
    """Two workers for tests that only look at them."""
    config = {"samples": 37, "batch_size": 10, BATCH_SIZE: 12}
    with trainer(
        num_workers=2, config=config, initialization_hook=lambda: os.environ.update(HOOK="ran")
    ) as gang:
        yield gang


# -- data --------------------------------------------------------------------------------------


class TooFew(Digits):
    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.register_data(train_loader=DataLoader(TensorDataset(torch.zeros(3, 1)), 8, drop_last=True))


def test_an_epoch_without_a_batch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with trainer(TooFew) as gang:
        assert gang.train() == {"epoch": 1, "batch_count": 0, "num_samples": 0}
    expected = (
        "train() has no metrics, because there was no batch: the data is empty, or too small for drop_last"
    )
    assert expected in caplog.text


class ByOneAlone(Digits):
    """Validates on worker 0 alone, in an order that the others are sent and do not ask for."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        data = TensorDataset(torch.zeros(16, 1))
        self.register_data(validation_loader=DataLoader(data, 4, shuffle=True))

    def validate(self, batches: Any, info: Any) -> dict[str, Any]:
        lose_patience()
        return {"batch_count": len(list(batches)) if self.world_rank == 0 else 1}


def test_an_order_that_another_worker_does_not_ask_for_is_told_by_the_call_that_sent_it() -> None:
    with (
        trainer(ByOneAlone, num_workers=2) as gang,
        pytest.raises(GangError, match=r"because its validate\(\) had ended"),
    ):
        gang.validate(max_retries=0)


class OwnSplit(Digits):
    """A split without a generator: it must be the same on all workers."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup({**config, "seed": torch.initial_seed()})
        train, _ = random_split(range(100), [60, 40])  # type: ignore[arg-type, var-annotated]
        self.split = list(train.indices)


def draw(operator: Any) -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def test_workers_set_up_alike_and_draw_apart() -> None:
    torch.manual_seed(5)
    with trainer(OwnSplit, num_workers=2) as gang:
        first, second = gang.apply_all_operators(lambda operator: operator.split)
        assert first == second
        draws = gang.apply_all_operators(draw)
        assert all(a != b for a, b in zip(*draws, strict=True))
    torch.manual_seed(5)
    with trainer(OwnSplit, num_workers=2) as again:
        assert again.apply_all_operators(draw) == draws


def test_batch_size_is_each_workers_and_the_starred_one_is_shared(pair: TorchTrainer) -> None:
    each = {"samples": 37, "batch_size": 10, BATCH_SIZE: 6}
    assert pair.apply_all_operators(lambda operator: operator.config) == [each] * 2


# -- what a trainer offers ---------------------------------------------------------------------


def test_results_by_worker(pair: TorchTrainer) -> None:
    results = pair.train(reduce_results=False)
    assert [result["num_samples"] for result in results] == [19, 18]
    assert [result["epoch"] for result in results] == [1, 1]
    assert all(type(result) is dict for result in results)


@pytest.mark.parametrize(("workers", "use_local"), [(1, False), (2, True)])
def test_state_model_and_checkpoint(workers: int, use_local: bool, tmp_path: Path) -> None:
    config = {BATCH_SIZE: 40, "samples": 100}
    with trainer(num_workers=workers, use_local=use_local, config=config) as gang:
        gang.train()
        assert gang.save(tmp_path / "c") == tmp_path / "c"
        state = gang.state_dict()
        before = gang.validate()
        model = gang.get_model(to_cpu=True)
        assert isinstance(model, nn.Sequential)
        gang.train()
        assert gang.validate()["val_loss"] != before["val_loss"]
        gang.load_state_dict(state)
        assert gang.validate() == before
        after = gang.train()
        assert after["epoch"] == 2
    # On another number of workers, the run goes on as it would have.
    with trainer(num_workers=3 - workers, config=config) as other:
        other.load(tmp_path / "c")
        assert other.validate() == pytest.approx(before, abs=1e-9)
        assert other.train()["epoch"] == 2
        assert torch.equal(model[0].weight, state["models"][0]["0.weight"])


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    with trainer(OwnSeeds, use_local=True) as other:
        other.save(tmp_path / "c")
    with trainer(use_local=True, config={"samples": 5}) as gang:
        with pytest.raises(CheckpointError, match="has 2 models, but 1 are registered"):
            gang.load(tmp_path / "c")
        assert gang.train()["epoch"] == 1


class Stateful(Digits):
    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.seen = 0

    def train_epoch(self, iterator: Any, info: Any, num_steps: int | None = None, epoch_idx: int = 0) -> Any:
        self.seen += 1
        result = super().train_epoch(iterator, info, num_steps, epoch_idx)
        return {**result, "seen": torch.tensor(self.seen), "tag": info.get("tag", "none"), "idx": epoch_idx}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def test_the_users_own_loop_and_state(tmp_path: Path) -> None:
    config = {"samples": 20}
    with trainer(Stateful, num_workers=2, config=config) as gang:
        gang.train()
        result = gang.train(info={"tag": "warm-up"})
        assert (result["seen"], result["tag"], result["idx"]) == (2.0, "warm-up", 1)
        gang.save(tmp_path / "c")
    with trainer(Stateful, use_local=True, config=config) as one:
        one.load(tmp_path / "c")
        assert one.get_local_operator().seen == 2  # type: ignore[attr-defined]
        assert one.train()["seen"] == 3


def scheduled(make: Any) -> type[TrainingOperator]:
    class Scheduled(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            self.register(
                models=model,
                optimizers=optimizer,
                criterion=nn.CrossEntropyLoss(),
                schedulers=make(optimizer),
            )
            data = TensorDataset(torch.randn(8, 2), torch.zeros(8, dtype=torch.int64))
            self.register_data(train_loader=DataLoader(data, 1))

    return Scheduled


def rates(gang: TorchTrainer) -> list[float]:
    return gang.apply_all_operators(lambda operator: operator.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("frequency", "rate"), [("epoch", 0.5), ("batch", 0.5**8), ("manual", 1.0)])
def test_schedulers_step_when_they_are_told(frequency: str, rate: float) -> None:
    make = scheduled(lambda optimizer: StepLR(optimizer, 1, gamma=0.5))
    with trainer(make, use_local=True, scheduler_step_freq=frequency) as gang:
        gang.train()
        assert rates(gang) == [rate]


def test_update_scheduler_passes_the_metric() -> None:
    make = scheduled(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0))
    with trainer(make, num_workers=2, scheduler_step_freq="manual") as gang:
        gang.train()
        gang.update_scheduler(1.0)
        gang.update_scheduler(2.0)
        assert rates(gang) == pytest.approx([0.1, 0.1])


class Quits(Digits):
    def train_batch(self, batch: Any, batch_info: Any) -> Any:
        raise bdb.BdbQuit  # as a debugger does that is left


def test_the_error_of_a_local_worker_shows_the_users_frames_alone() -> None:
    with (
        TorchTrainer(training_operator_cls=Quits, config={"samples": 40}, use_local=True) as trainer,
        pytest.raises(bdb.BdbQuit) as caught,
    ):
        trainer.train()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames == ["test_the_error_of_a_local_worker_shows_the_users_frames_alone", "call", "train_batch"]


def test_functions_for_all_workers(pair: TorchTrainer) -> None:
    pids = pair.apply_all_workers(os.getpid)
    assert len({*pids, os.getpid()}) == 3
    assert pair.apply_all_workers(lambda: os.environ["HOOK"]) == ["ran", "ran"]
    seats = pair.apply_all_operators(lambda op: (op.world_rank, op.local_rank, op.world_size, op.device.type))
    assert seats == [(0, 0, 2, "cpu"), (1, 1, 2, "cpu")]
    assert pair.apply_all_workers(torch.get_num_threads) == [1, 1]


def test_without_ddp_the_models_are_the_users_own() -> None:
    with trainer(num_workers=2, config={"samples": 40}, wrap_ddp=False) as gang:
        gang.train()
        assert gang.apply_all_operators(lambda operator: type(operator.model).__name__) == ["Sequential"] * 2
        assert gang.apply_all_workers(dist.get_world_size) == [2, 2]


# -- mistakes ----------------------------------------------------------------------------------


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        TorchTrainer(
            training_operator_cls=Digits(),  # type: ignore[arg-type]
            num_workers=0,
            backend="mpi",
            scheduler_step_freq="often",
        )
    for text in (
        "must be a TrainingOperator class or from_ptl(LightningModule), not",
        "num_workers must be a positive integer, not 0",
        "backend must be one of ('auto', 'gloo', 'nccl'), not 'mpi'",
        "scheduler_step_freq must be one of ('batch', 'epoch', 'manual') or None, not 'often'",
    ):
        assert text in str(caught.value)


def test_too_many_workers_are_told_how_to_share() -> None:
    with pytest.raises(InfeasibleError, match="not enough CPU") as caught:
        trainer(num_workers=10_000)
    assert str(caught.value).startswith(
        "TorchTrainer(num_workers=10000): the placement group asks for 10000 CPU"
    )
    assert "num_cpus_per_worker=1: to share CPUs, pass a fraction such as 0.25" in caught.value.__notes__[0]


def test_calls_that_cannot_be_answered() -> None:
    class NoData(Digits):
        def register_data(self, **loaders: Any) -> None:
            pass

    with trainer(NoData, config={"samples": 4}) as gang:
        with pytest.raises(ConfigError, match=r"no train data: call register_data\(train_loader"):
            gang.train()
        with pytest.raises(ConfigError, match="no validation data"):
            gang.validate()
        for wrong in (0, 2.5, True, "all"):
            with pytest.raises(ConfigError, match=rf"train\(\): num_steps must be .* not {wrong!r}"):
                gang.train(num_steps=wrong)  # type: ignore[arg-type]
        for wrong in (-1, 1.5, True, "many"):
            for method in (gang.train, gang.validate):
                with pytest.raises(
                    ConfigError, match=f"max_retries must be a non-negative integer, not {wrong!r}"
                ):
                    method(max_retries=wrong)  # type: ignore[operator]
        with pytest.raises(ConfigError, match="needs use_local=True"):
            gang.get_local_operator()
    with pytest.raises(
        RuntimeError, match=r"have ended \(the trainer was shut down\)"
    ) as caught:  # as in RaySGD
        gang.train()
    assert type(caught.value) is GangError
    gang.shutdown()


class OfRaySGD(Digits):
    """An operator that takes its ranks as RaySGD gave them."""

    def __init__(self, config: Any, world_rank: int, *, is_distributed: bool, **kwargs: Any) -> None:
        self.given = (world_rank, is_distributed, kwargs["add_dist_sampler"], kwargs["scheduler_step_freq"])
        super().__init__(config)


def test_a_constructor_is_given_what_raysgd_gave_by_name(runtime: None) -> None:
    with TorchTrainer(training_operator_cls=OfRaySGD, num_workers=2, use_gpu=False) as trainer:
        given = trainer.apply_all_operators(lambda operator: (operator.given, operator.world_size))
        assert given == [((rank, True, True, None), 2) for rank in range(2)]
        trainer.train(num_steps=1)
