"""Lightning modules: what `from_ptl` trains is what Lightning by itself trains."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping

from tests.train.lightning_modules import Diary, Points, PointsData, TwoParts, plain
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

PRELOAD = ("torch", "pytorch_lightning")  # It takes seconds to import, in each worker.

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    # Of Lightning's own, in the runs that it is compared with.
    pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*treespec, LeafSpec"),
]


def trainer(operator: type[TrainingOperator], **options: Any) -> TorchTrainer:
    return TorchTrainer(training_operator_cls=operator, use_gpu=False, **{"timeout_s": 60, **options})


def step_losses(gang: TorchTrainer) -> list[float]:
    """Loss of each step over all workers."""
    per_worker = gang.apply_all_operators(lambda operator: operator.model.steps)
    return [
        math.fsum(loss * count for loss, count in step) / sum(count for _, count in step)
        for step in zip(*per_worker, strict=True)
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_epochs_are_lightnings_own(workers: int, tmp_path: Path) -> None:
    # 101 samples: the last batch is a single one, which one worker has and the other one stands in for.
    config = {BATCH_SIZE: 20, "samples": 101}
    expected = Points(config)
    metrics = plain(expected, 4).callback_metrics
    operator = TrainingOperator.from_ptl(Points)
    with trainer(operator, config=config, num_workers=workers) as gang:
        assert gang.has_validation
        for _ in range(3):
            result = gang.train()
        assert result["epoch"] == 3
        assert (result["batch_count"], result["num_samples"]) == (6, 101)
        again = gang.validate()
        assert again["num_samples"] == 101
        for name in ("val_loss", "val_accuracy"):
            assert again[name] == pytest.approx(result[name], abs=1e-9)
        gang.save(tmp_path / "checkpoint")
        last = gang.train()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
        assert last["num_samples"] == 101
        for name in ("loss", "loss_epoch", "val_loss", "val_accuracy", "val_seen", "most", "counted"):
            assert last[name] == pytest.approx(float(metrics[name]), abs=1e-9), name
        assert last["train_loss"] == pytest.approx(last["loss"], abs=1e-9)
        model = gang.get_model()
    assert type(model) is Points
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=1e-9)

    # Optimizer, schedulers, loops, generators: a new trainer goes on as if there had been no break.
    with trainer(operator, config={**config, "seed": 5}, num_workers=workers) as gang:
        gang.load(tmp_path / "checkpoint")
        assert gang.train() == last


def test_manual_optimization_a_data_module_and_hyperparameters_by_name() -> None:
    config = {"lr": 0.05, "batch_size": 10, "samples": 55, "unused": object}
    expected = TwoParts(lr=0.05)
    plain(expected, 2, datamodule=PointsData(batch_size=10, samples=55))
    operator = TrainingOperator.from_ptl(TwoParts, datamodule=PointsData)
    with trainer(operator, config={**config, "batch_size": 5}, num_workers=2) as gang:
        assert not gang.has_validation
        with pytest.raises(ConfigError, match="no validation data"):
            gang.validate()
        gang.train()
        result = gang.train()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
        assert set(result) == {"epoch", "batch_count", "num_samples", "should_stop"}  # It logs nothing.
        saved = gang.state_dict()["operator"]["lightning"]
        assert len(saved["optimizer_states"]) == 2
        assert saved["global_step"] == 12


def test_lightning_accumulates_clips_and_finds_unused_parameters() -> None:
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    expected = Points({BATCH_SIZE: 20, "samples": 101})
    plain(expected, 2, **options)
    operator = TrainingOperator.from_ptl(
        Points, trainer_args={"gradient_clip_val": 0.5, "strategy": "ddp_find_unused_parameters_true"}
    )
    with trainer(
        operator, config={BATCH_SIZE: 20, "samples": 101}, num_workers=2, grad_accumulation_steps=2
    ) as gang:
        gang.train()
        result = gang.train()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
    assert result["train_loss"] == pytest.approx(result["loss"], abs=1e-9)


def test_hooks_run_once_and_the_end_is_told(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    operator = TrainingOperator.from_ptl(Points, callbacks=[Diary(diary)])
    with trainer(operator, config={"samples": 40}) as gang:
        gang.train()
        gang.validate()
        gang.train(num_steps=1)
    assert diary.read_text().splitlines() == [
        "setup fit",
        "fit start",
        "train start",
        "validation in fit",
        "epoch 0 end",
        "validation in validate",
        "validation in fit",
        "epoch 1 end",
        "train end",
        "fit end",
        "teardown fit",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler_step_freq": "epoch", "compile": True}, "scheduler_step_freq: .*compile: "),
        ({"wrap_ddp": False, "num_workers": 2}, "wrap_ddp=False"),
    ],
    ids=str,
)
def test_what_lightning_does_itself_is_not_asked_of_the_trainer(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(TrainingOperator.from_ptl(Points), **options)


# -- recovery -----------------------------------------------------------------------------------


class Fragile(Points):
    """Worker 1 is killed in the middle of an epoch, once, if there is a file of its life; it drops units."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.net.insert(1, torch.nn.Dropout(0.2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        life = Path(self.config["life"])
        if (self.global_rank, self.current_epoch, batch_idx) == (1, 1, 2) and life.exists():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def survive(life: Path) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(7)
    with TorchTrainer(
        training_operator_cls=TrainingOperator.from_ptl(Fragile),
        config={BATCH_SIZE: 20, "life": str(life)},
        num_workers=2,
        use_gpu=False,
        timeout_s=60,
    ) as gang:
        numbers = [gang.train(), gang.validate(), gang.train(), gang.train()]
        return numbers, gang.get_model().state_dict()


def test_a_killed_worker_changes_no_number(tmp_path: Path) -> None:
    life = tmp_path / "life"
    numbers, weights = survive(life)
    life.touch()
    again, same = survive(life)
    assert not life.exists()
    assert again == numbers
    assert all(torch.equal(value, same[name]) for name, value in weights.items())


# -- tuning ------------------------------------------------------------------------------------


def test_trials_end_in_order(tmp_path: Path) -> None:
    stopping = EarlyStopping("val_loss", patience=0, min_delta=100.0)
    operator = TrainingOperator.from_ptl(Points, callbacks=[stopping, Diary(tmp_path / "diary")])
    trainable = TorchTrainer.as_trainable(
        training_operator_cls=operator, num_workers=2, config={"samples": 60}, use_gpu=False
    )
    grid = tune.Tuner(
        trainable,
        param_space={"lr": tune.grid_search([0.1, 0.2])},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(name="points", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert grid.num_errors == 0
    assert [result.metrics["epoch"] for result in grid] == [2, 2]  # The second one is no better.
    written = (tmp_path / "diary").read_text().splitlines()
    assert written.count("fit end") == written.count("teardown fit") == 4  # Two workers each.
    assert written.count("validation in fit") == 8
