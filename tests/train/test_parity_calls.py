"""What RaySGD's users do with an operator and a trainer, done here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.train.operators import Digits, cpu_trainer, digits, gang_losses, make_parts, plain_losses
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.keys import NUM_STEPS
from trainkit.train.step.timers import TimerCollection, TimerStat
from trainkit.util.sgd.utils import AverageMeterCollection


def local(operator_cls: Any, config: dict[str, Any], **arguments: Any) -> TorchTrainer:
    return TorchTrainer(
        training_operator_cls=operator_cls, config=config, use_gpu=False, use_local=True, **arguments
    )


# -- registering -------------------------------------------------------------------------------


class Adversaries(TrainingOperator):
    """Two models with an optimizer and a scheduler each, as tuples; a step of its own."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        models = (nn.Linear(4, 1), nn.Linear(2, 4))
        optimizers = tuple(torch.optim.Adam(model.parameters(), lr=0.01) for model in models)
        decay = torch.optim.lr_scheduler.ExponentialLR
        schedulers = [decay(optimizer, gamma=0.5) for optimizer in optimizers]
        self.models, self.optimizers, self.criterion, self.schedulers = self.register(
            models=models,
            optimizers=optimizers,
            criterion=nn.BCEWithLogitsLoss(),
            schedulers=schedulers,
            ddp_args={"find_unused_parameters": True},
            apex_args={},
        )
        assert isinstance(self.models, tuple) and isinstance(self.optimizers, tuple)
        assert isinstance(self.schedulers, list)
        self.register_data(
            train_loader=DataLoader(TensorDataset(torch.randn(24, 4)), 6), validation_loader=None
        )

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        discriminator, generator = self.models
        real = batch[0].to(self.device)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        discriminator.zero_grad()
        fake = generator(torch.randn(len(real), 2))
        error = self.criterion(discriminator(real), ones)
        error = error + self.criterion(discriminator(fake.detach()), zeros)
        error.backward()
        self.optimizers[0].step()
        generator.zero_grad()
        fooled = self.criterion(discriminator(fake), ones)
        fooled.backward()
        self.optimizers[1].step()
        return {"loss_d": error.item(), "loss_g": fooled.item(), "num_samples": len(real)}


def test_several_models_optimizers_and_schedulers(runtime: None) -> None:
    with cpu_trainer(Adversaries, scheduler_step_freq="epoch") as trainer:
        result = trainer.train()
        assert {"loss_d", "last_loss_g"} <= set(result) and result["num_samples"] == 24
        found = trainer.apply_all_operators(
            lambda operator: (
                type(operator.models[0]).__name__,
                operator.models[0].find_unused_parameters,
                [optimizer.param_groups[0]["lr"] for optimizer in operator.optimizers],
                float(sum(parameter.sum() for parameter in operator.models[0].parameters())),
            )
        )
        assert found[0][:3] == ("DistributedDataParallel", True, [0.005, 0.005])
        assert found[0] == found[1]
        assert [type(model) for model in trainer.get_model()] == [nn.Linear, nn.Linear]


# -- creators ----------------------------------------------------------------------------------


def parts(index: int) -> Any:
    return lambda *arguments: make_parts(arguments[-1])[index]


def optimizer_for(model: Any, config: dict[str, Any]) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_an_operator_of_creator_functions_trains_as_the_plain_loop(runtime: None) -> None:
    operator_cls = TrainingOperator.from_creators(
        parts(0),
        optimizer_for,
        data_creator=lambda config: make_parts(config)[3:],
        loss_creator=nn.CrossEntropyLoss,
        scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    )

    class Recording(operator_cls):  # type: ignore[misc, valid-type]
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            self.steps: list[tuple[float, int]] = []

        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            metrics = super().train_batch(batch, batch_info)
            self.steps.append((float(metrics["train_loss"]), metrics["num_samples"]))
            return metrics

    config = {"samples": 60, BATCH_SIZE: 20, "shuffle": False}
    with cpu_trainer(Recording, 2, config, scheduler_step_freq="epoch") as trainer:
        assert trainer.train()["num_samples"] == trainer.validate()["num_samples"] == 60
        assert gang_losses(trainer) == pytest.approx(plain_losses(config, 3), abs=1e-9)
        assert trainer.apply_all_operators(lambda it: it.scheduler.get_last_lr()) == [[0.05]] * 2


def test_creators_that_return_what_cannot_be_taken() -> None:
    make = TrainingOperator.from_creators
    with pytest.raises(ConfigError, match="needs functions, not model_creator=3, data_creator='x'"):
        make(3, optimizer_for, data_creator="x")  # type: ignore[arg-type]
    wrong = make(
        parts(0), optimizer_for, data_creator=lambda config: (1, 2, 3), serialize_data_creation=False
    )
    with pytest.raises(
        ConfigError, match=r"data_creator returned \(1, 2, 3\): it must return a train loader"
    ):
        wrong({})
    alone = make(parts(0), optimizer_for, loss_creator=lambda config: config["loss"])({"loss": nn.L1Loss()})
    assert isinstance(alone.criterion, nn.L1Loss)
    assert alone._train_feed is alone._validation_feed is None


# -- calling -----------------------------------------------------------------------------------


class Timed(Digits):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        self.info = batch_info
        with self.timers.record("mine"):
            return super().train_batch(batch, batch_info)


def test_a_profile_of_the_parts_of_a_step() -> None:
    with local(Timed, {"samples": 60, "batch_size": 20}) as trainer:
        assert "profile" not in trainer.train(1)
        result = trainer.train(None, True)
        times = result.pop("profile")
        assert set(times) == {f"mean_{part}_s" for part in ("fwd", "grad", "apply", "mine", "train_epoch")}
        inner = times["mean_fwd_s"] + times["mean_grad_s"] + times["mean_apply_s"]
        assert 0 < inner <= times["mean_mine_s"] <= times["mean_train_epoch_s"] / 3
        times = trainer.validate(profile=True, reduce_results=False)[0]["profile"]
        assert set(times) == {"mean_eval_fwd_s", "mean_validation_s"}
        assert "profile" not in trainer.validate()


def test_what_a_step_is_told() -> None:
    with local(Timed, {"samples": 60, "batch_size": 20}) as trainer:
        trainer.train(num_steps=1, info={"num_epochs": 7})
        trainer.train(num_steps=2)
        operator = trainer.get_local_operator()
        assert operator.info == {  # type: ignore[attr-defined]
            "batch_idx": 1,
            "global_step": 2,
            "epoch_idx": 1,
            "__num_steps__": 2,
            "__use_fp16__": False,
        }


class Stream(IterableDataset[Any]):
    """Batches of twos, as many as `length`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        yield from [[torch.full((2, 64), 2.0, dtype=torch.float64), torch.tensor([0, 1])]] * self.length


def test_other_data_for_one_call(runtime: None) -> None:
    config = {"samples": 30, BATCH_SIZE: 10}
    with TorchTrainer(training_operator_cls=Digits, config=config, num_workers=2, use_gpu=False) as trainer:
        made = trainer.train(dataset=lambda config: DataLoader(digits(20, torch.float64), config[BATCH_SIZE]))
        assert (made["num_samples"], made["batch_count"]) == (20, 2)
        assert trainer.train(dataset=Stream(3))["num_samples"] == 2 * 6
        result = trainer.train()
        assert (result["num_samples"], result["epoch"]) == (30, 3)
        with pytest.raises(ConfigError, match=r"train_loader must be a DataLoader .* not a TensorDataset"):
            trainer.train(dataset=digits(20, torch.float64))


def test_a_whole_loop_of_the_users_own_with_raysgds_meters() -> None:
    class Loop(Digits):
        def train_epoch(self, iterator: Any, info: Any, num_steps: Any = None, epoch_idx: int = 0) -> Any:
            meters = AverageMeterCollection()
            self.model.train()
            for features, target in iterator:
                loss = self.criterion(self.model(features), target)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                meters.update({"loss": loss.item()}, n=len(target))
            return meters.summary()

    config = {"samples": 50, "batch_size": 20}
    losses = plain_losses(config, 3)
    with local(Loop, config) as trainer:
        result = trainer.train()
    assert result["loss"] == pytest.approx((losses[0] * 20 + losses[1] * 20 + losses[2] * 10) / 50)
    assert (result["last_loss"], result["num_samples"], result["batch_count"]) == (losses[2], 50, 3)


class OfVersion12(Digits):
    def train_epoch(self, iterator: Any, info: Any) -> Any:  # type: ignore[override]
        return {**super().train_epoch(iterator, info), "told": (info["epoch_idx"], info[NUM_STEPS])}


class StepsOnly(Digits):
    def train_epoch(self, iterator: Any, info: Any, num_steps: Any = -1) -> Any:  # type: ignore[override]
        return {**super().train_epoch(iterator, info), "told": num_steps}


class Anything(Digits):
    def train_epoch(self, *args: Any, **more: Any) -> Any:
        return {**super().train_epoch(*args, **more), "told": sorted(more)}


@pytest.mark.parametrize(
    ("operator_cls", "told"),
    [(OfVersion12, (0, 1)), (StepsOnly, 1), (Anything, ["epoch_idx", "num_steps"])],
)
def test_an_epoch_of_any_version_is_given_the_arguments_that_it_takes(
    operator_cls: Any, told: Any, runtime: None
) -> None:
    with local(operator_cls, {"samples": 20, "batch_size": 10}) as trainer:
        result = trainer.train(num_steps=1)
        assert (result["told"], result["batch_count"]) == (told, 1)


def test_one_bar_with_the_loss(runtime: None, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    config = {"samples": 40, BATCH_SIZE: 10}
    with cpu_trainer(Digits, 2, config, use_tqdm=True, use_local=True) as trainer:
        trainer.train(info={"num_epochs": 3})
        last = trainer.get_local_operator().steps[-1][0]  # type: ignore[attr-defined]
        trainer.validate()
    shown = capfd.readouterr().err
    assert "train 1/3: 100%" in shown and "validation 1: 100%" in shown
    assert f"loss={last:.3g}" in shown
    assert "train-worker-1" not in shown


def test_timers_by_themselves() -> None:
    timers = TimerCollection()
    with timers.record("off"):
        pass
    assert timers.stats() == {} and not timers.enabled
    timers.enable()
    with timers.record("on"):
        pass
    timers.record("on")
    assert set(timers.stats(last=True)) == {"mean_on_s", "last_on_s"}
    with pytest.raises(ConfigError, match="already running"), timers.record("on"), timers.record("on"):
        pass
    stat = TimerStat()
    for seconds in (1.0, 2.0, 6.0):
        stat.push(seconds)
    assert (stat.mean, stat.median, stat.sum, stat.max, stat.first, stat.last, stat.count) == (
        3,
        2,
        9,
        6,
        1,
        6,
        3,
    )
