"""What a trial's configuration sets in a Lightning module, and mistakes in it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugins.lightning.lightning_modules import Points, WithRate
from trainkit.plugins.lightning.operator import untaken
from trainkit.train import TorchTrainer, TrainingOperator


class AnyKeyword:
    def __init__(self, **hyperparameters: Any) -> None: ...


def test_keys_that_no_module_takes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    operator = TrainingOperator.from_ptl(WithRate)
    config = {"lr": 0.1, "learning_rate": 0.2}
    with caplog.at_level(logging.WARNING):
        TorchTrainer(training_operator_cls=operator, config=config, use_gpu=False, use_local=True).shutdown()
    assert (
        "ignoring 'learning_rate' in config, because WithRate has no parameter with that name" in caplog.text
    )
    assert untaken(config, [Points]) == []  # it takes the whole of it, as `config`
    assert untaken(config, [WithRate, AnyKeyword]) == []


def lightning_trial(**config: Any) -> Any:
    """A trial in this process, where Lightning is imported once."""
    trainable = TorchTrainer.as_trainable(
        training_operator_cls=TrainingOperator.from_ptl(Points),
        config={"samples": 40},
        use_gpu=False,
        use_local=True,
    )
    return trainable(config=config)


def lightning_rates(operator: Any) -> tuple[float, float, list[float]]:
    trainer = operator.lightning_trainer
    (group,) = trainer.optimizers[0].param_groups
    return group["lr"], group["initial_lr"], trainer.lr_scheduler_configs[0].scheduler.base_lrs


def lightning_momenta(operator: Any) -> list[Any]:
    return [state["momentum_buffer"] for state in operator.lightning_trainer.optimizers[0].state.values()]


def test_a_lightning_module_takes_over_weights_and_not_rates(tmp_path: Path) -> None:  # row 1.13
    """What it makes of its own configuration holds, and where that is the same all is as it was saved."""
    donor, heir, last = (lightning_trial(lr=lr) for lr in (0.2, 0.05, 0.05))
    donor.train()
    heir.restore(donor.save(str(tmp_path / "donor")))
    ((lr, initial, base),) = donor.trainer.apply_all_operators(lightning_rates)
    assert (initial, base) == (0.2, [0.2]) and lr < 0.2, "a schedule has moved it"
    (seen,) = heir.trainer.apply_all_operators(lightning_rates)
    assert seen == (pytest.approx(lr / 4), 0.05, [0.05])
    (donors,), (heirs,) = (trial.trainer.apply_all_operators(lightning_momenta) for trial in (donor, heir))
    assert donors and all(map(torch.equal, donors, heirs)), "the rest of the state is the donor's"
    heir.train()
    before = heir.trainer.apply_all_operators(lightning_rates)
    last.restore(heir.save(str(tmp_path / "heir")))
    assert last.trainer.apply_all_operators(lightning_rates) == before
    for trial in (donor, heir, last):
        trial.stop()


def test_a_lightning_module_that_was_never_trained_is_taken_over(tmp_path: Path) -> None:
    """Lightning has made no optimizers by then, so there is nothing to take over but weights."""
    donor, heir = lightning_trial(lr=0.2, seed=1), lightning_trial(lr=0.05)
    heir.restore(donor.save(str(tmp_path / "donor")))
    heir.train()
    ((_, initial, _),) = heir.trainer.apply_all_operators(lightning_rates)
    assert initial == 0.05
    for trial in (donor, heir):
        trial.stop()
