"""What a trial's configuration sets goes before what its checkpoint holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from tests.train.operators import Digits, make_parts
from trainkit import tune
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.checkpoint.state import differ, overridden, read_hyperparameters, write_hyperparameters
from trainkit.train.tune import initial_hyperparameters, override_operator
from trainkit.tune.schedulers import PopulationBasedTraining


@pytest.mark.parametrize(
    ("loaded", "then", "now", "expected"),
    [
        (0.1, 0.1, 0.5, 0.5),
        (0.05, 0.1, 0.5, 0.25),  # halved by a schedule
        (0.05, 0.1, 0.1, 0.05),
        (0.3, 0.0, 0.2, 0.2),
        ((0.9, 0.999), (0.9, 0.999), (0.8, 0.999), (0.8, 0.999)),
        (10, 10, 20, 20),
        (20, 10, 20, 40),
        (True, True, False, False),
        (
            [{"last": 3, "base": [0.1]}],
            [{"last": 0, "base": [0.1]}],
            [{"last": 0, "base": [0.2]}],
            [{"last": 3, "base": [0.2]}],
        ),
    ],
)
def test_what_a_value_becomes(loaded: Any, then: Any, now: Any, expected: Any) -> None:
    assert overridden(loaded, then, now) == expected


def schedules(optimizer: Any, config: dict[str, Any]) -> Any:
    kind = config.get("schedule", "steps")
    if kind == "steps":
        return lr_scheduler.StepLR(optimizer, step_size=1, gamma=config.get("gamma", 0.5))
    if kind == "milestones":
        return lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2], gamma=0.5)
    if kind == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    if kind == "one cycle":
        return lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=20)
    warm_up = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, lr_scheduler.ExponentialLR(optimizer, 0.9)], [2])


class Scheduled(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        model, _, criterion, train, validation = make_parts(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config.get("momentum", 0.9))
        self.register(
            models=model, optimizers=optimizer, criterion=criterion, schedulers=schedules(optimizer, config)
        )
        self.register_data(train_loader=train, validation_loader=validation)


def trained(epochs: int, **config: Any) -> TorchTrainer:
    """A trainer in this process, after so many epochs."""
    trainer = TorchTrainer(
        training_operator_cls=Scheduled,
        config={"samples": 20, **config},
        scheduler_step_freq="epoch",
        use_gpu=False,
        use_local=True,
    )
    for _ in range(epochs):
        trainer.train()
    return trainer


def taken_over(donor: TorchTrainer, receiver: TorchTrainer, folder: Path) -> None:
    """As a trial does it, between the two lines that a donor's `setup` and checkpoint are."""
    then = trained(0, **donor.get_local_operator().config).apply_all_operators(initial_hyperparameters)
    now = receiver.apply_all_operators(initial_hyperparameters)
    donor.save(str(folder / "c"))
    write_hyperparameters(str(folder / "c"), then)
    receiver.load(str(folder / "c"))
    then = read_hyperparameters(str(folder / "c"))
    receiver.apply_all_operators(partial(override_operator, then=then, now=now))


def rate(trainer: TorchTrainer, name: str = "lr") -> float:
    found: float = trainer.get_local_operator()._registered.optimizers[0].param_groups[0][name]
    return found


@pytest.mark.parametrize("schedule", ["steps", "milestones", "cosine", "one cycle", "sequence"])
def test_a_schedule_goes_on_from_the_new_rate(schedule: str, tmp_path: Path) -> None:  # row 1.13
    fresh, receiver = (trained(epochs, lr=0.4, schedule=schedule) for epochs in (3, 0))
    taken_over(trained(3, lr=0.1, schedule=schedule), receiver, tmp_path)
    for _ in range(3):
        assert rate(receiver) == pytest.approx(rate(fresh))
        fresh.train()
        receiver.train()


def test_what_the_configuration_leaves_alone_is_loaded(tmp_path: Path) -> None:
    receiver = trained(0, lr=0.1, momentum=0.5)
    taken_over(trained(1, lr=0.1), receiver, tmp_path)
    assert (rate(receiver), rate(receiver, "momentum")) == (0.05, 0.5)


def test_a_checkpoint_of_before_there_was_such_changes_nothing(tmp_path: Path) -> None:
    assert not differ(
        read_hyperparameters(str(tmp_path)), trained(0, lr=0.1).apply_all_operators(initial_hyperparameters)
    )


class Rates(Digits):
    def train_epoch(self, iterator: Any, info: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        metrics = super().train_epoch(iterator, info, *args, **kwargs)
        return {**metrics, "lr_used": self.optimizer.param_groups[0]["lr"]}


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_trainers_as_a_population(tmp_path: Path) -> None:  # row 1.13
    """After an exploit a member trains with the rate that it was given, from the weights of another."""
    cls = TorchTrainer.as_trainable(
        training_operator_cls=Rates, config={"samples": 100, "batch_size": 20}, use_gpu=False
    )
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        resample_probability=0.0,
        hyperparam_mutations={"lr": tune.loguniform(1e-6, 1.0)},
        synch=True,
    )
    results = tune.Tuner(
        cls,
        param_space={"lr": tune.grid_search([1e-5, 0.3])},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min", scheduler=pbt),
        run_config=tune.RunConfig(
            name="population", storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 4}
        ),
    ).fit()
    assert not results.errors
    poor, good = results
    assert [report["lr_used"] for report in good.history] == [0.3] * 4
    rates = [report["lr_used"] for report in poor.history]
    assert rates == [report["config"]["lr"] for report in poor.history]
    assert rates[:2] == [1e-5] * 2 and rates[2] in (pytest.approx(0.36), pytest.approx(0.24))
    assert [report["training_iteration"] for report in poor.history] == [1, 2, 3, 4]
    assert poor.history[2]["val_loss"] < good.history[1]["val_loss"] < poor.history[1]["val_loss"]
    assert [(stretch.trial_id, stretch.last) for stretch in poor.lineage()] == [
        (good.trial_id, 2),
        (poor.trial_id, 4),
    ]
