"""Lightning modules: what `from_ptl` trains is what Lightning by itself trains."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch.utils.data import DataLoader

from tests.train.lightning_modules import Diary, Points, PointsData, TwoParts, plain, points
from trainkit import tune
from trainkit.errors import CheckpointError, ConfigError, MissingDependencyError, TrainingError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.lightning_plan import PACKAGES, package_of

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


# -- in this process ---------------------------------------------------------------------------


def alone(operator: type[TrainingOperator], **config: Any) -> Any:
    """An operator by itself, without a trainer."""
    return operator({"samples": 60, **config})


def test_a_limited_epoch_is_an_epoch() -> None:
    operator = alone(TrainingOperator.from_ptl(Points))
    counts = [operator.train_epoch((), {}, num_steps=steps)["batch_count"] for steps in (1, None, 2, 9, None)]
    assert counts == [1, 3, 2, 3, 3]
    assert operator.lightning_trainer.current_epoch == 5
    # The plateau's rate falls after each epoch but the first: validation ran in each.
    assert operator.lightning_trainer.lr_scheduler_configs[1].scheduler.num_bad_epochs == 0
    ticks = operator.validation_feed.batches(0, 1)
    assert operator.validate(ticks, {})["batch_count"] == 1
    operator.register_data(train_loader=[1])  # as for a call with data of its own
    with pytest.raises(ConfigError, match=r"train\(dataset=\) is not for Lightning modules"):
        operator.train_epoch((), {})
    operator.close()


def test_early_stopping_is_told_and_not_enforced() -> None:
    stopping = EarlyStopping("val_loss", patience=1, min_delta=100.0)
    operator = alone(TrainingOperator.from_ptl(Points, callbacks=[stopping]))
    told = [operator.train_epoch((), {})["should_stop"] for _ in range(4)]
    assert told == [0.0, 1.0, 1.0, 1.0]
    assert operator.lightning_trainer.current_epoch == 4
    assert stopping.wait_count == 0  # The worker's is a copy.
    operator.validate((), {})
    wait_count = operator.state_dict()["lightning"]["callbacks"][stopping.state_key]["wait_count"]
    assert wait_count == 3  # A validation of its own doesn't count.
    operator.close()


def test_max_epochs_ends_training_but_nothing_else(tmp_path: Path) -> None:
    made = TrainingOperator.from_ptl(Points, trainer_args={"max_epochs": 2})
    operator = alone(made)
    assert [operator.train_epoch((), {})["should_stop"] for _ in range(2)] == [0.0, 1.0]
    state = operator.state_dict()
    with pytest.raises(ConfigError, match="max_epochs"):
        operator.train_epoch((), {})
    operator.close()
    again = alone(made, seed=3)
    again.load_state_dict(state)
    loss = again.validate((), {})["val_loss"]
    with pytest.raises(ConfigError, match="max_epochs"):
        again.train_epoch((), {})
    assert again.validate((), {})["val_loss"] == loss
    again.close()


class SeveralLoaders(Points):
    """Validates on more than one."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Clumsy(Points):
    """Raises where its configuration says so."""

    def on_train_batch_end(self, *args: Any) -> None:
        if self.config.get("fault") is not None and self.trainer.current_epoch == 1:
            raise self.config["fault"]


def test_what_a_hook_raises_is_seen_and_a_checkpoint_goes_on(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    operator = alone(TrainingOperator.from_ptl(Clumsy, callbacks=[Diary(diary)]), fault=ValueError("clumsy"))
    operator.train_epoch((), {})
    state = operator.state_dict()
    with pytest.raises(ValueError, match="clumsy"):
        operator.train_epoch((), {})
    assert diary.read_text().splitlines()[-1] == "exception ValueError"
    with pytest.raises(TrainingError, match="has ended, by an error"):
        operator.train_epoch((), {})
    with pytest.raises(CheckpointError, match="after Lightning's fit had ended"):
        operator.load_state_dict(operator.state_dict())
    operator.load_state_dict(state)
    operator.model.config["fault"] = None
    assert operator.train_epoch((), {})["batch_count"] == 3
    assert operator.lightning_trainer.current_epoch == 2
    operator.close()


def test_what_fails_before_the_first_epoch_may_be_tried_again() -> None:
    made = TrainingOperator.from_ptl(Points, trainer_args={"strategy": "fsdp"})
    with pytest.raises(ConfigError, match=r"trainer_args\['strategy'\]='fsdp'"):
        alone(made).train_epoch((), {})
    operator = alone(TrainingOperator.from_ptl(Points))
    operator.model.configure_optimizers = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        operator.train_epoch((), {})
    assert operator.state_dict() == {}
    del operator.model.configure_optimizers
    assert operator.train_epoch((), {})["batch_count"] == 3
    operator.close()


def test_what_the_last_hook_raises_is_told(caplog: pytest.LogCaptureFixture) -> None:
    operator = alone(TrainingOperator.from_ptl(Points))
    operator.train_epoch((), {})
    operator.model.on_fit_end = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        operator.close()
    assert "hooks at the end of the fit failed" in caplog.text
    operator.close()  # There is nothing left to end.


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    operator = alone(TrainingOperator.from_ptl(Points))
    operator.train_epoch((), {})
    other = operator.state_dict()
    other["lightning"]["optimizer_states"] = [{"state": {}, "param_groups": []}]
    with pytest.raises(CheckpointError, match="does not take this state"):
        operator.load_state_dict(other)
    operator.train_epoch((), {})
    assert operator.lightning_trainer.current_epoch == 2
    operator.close()


def test_ctrl_c_stays_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGINT)
    operator = alone(TrainingOperator.from_ptl(Clumsy), fault=KeyboardInterrupt())
    operator.train_epoch((), {})
    with pytest.raises(KeyboardInterrupt):
        operator.train_epoch((), {})
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_is_written_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    operator = alone(TrainingOperator.from_ptl(Points))
    operator.train_epoch((), {})
    operator.close()
    assert list(tmp_path.iterdir()) == []


def test_several_loaders_given_beside_the_module() -> None:
    first, second = DataLoader(points(30), 10), DataLoader(points(50), 20)
    made = TrainingOperator.from_ptl(SeveralLoaders, first, [first, second])
    operator = alone(made)
    result = operator.train_epoch((), {}, num_steps=2)
    assert result["num_samples"] == 20
    names = {f"val_loss/dataloader_idx_{index}" for index in (0, 1)}
    assert names <= set(result)
    again = operator.validate((), {})
    assert (again["batch_count"], again["num_samples"]) == (6, 80)
    assert {name: again[name] for name in names} == {name: result[name] for name in names}
    operator.close()


def test_without_lightning_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'trainkit\[lightning\]'"):
        TrainingOperator.from_ptl(torch.nn.Linear)


def test_both_packages_are_known() -> None:
    unified = type("LightningModule", (torch.nn.Module,), {"__module__": "lightning.pytorch.core.module"})
    assert package_of(type("Mine", (unified,), {}), "LightningModule") == "lightning.pytorch"
    assert package_of(Points, "LightningModule") == "pytorch_lightning"
    assert package_of(Points, "Callback") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datamodule": PointsData, "val_dataloader": [1]}, "not both"),
        ({"datamodule": 3}, "LightningDataModule of pytorch_lightning"),
        ({"callbacks": [3]}, "callbacks of pytorch_lightning"),
        ({"trainer_args": {"max_steps": 5, "devices": 2}}, "max_steps: .*devices: num_workers="),
    ],
    ids=str,
)
def test_wrong_arguments_are_told_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingOperator.from_ptl(Points, **arguments)


def test_only_a_lightning_module_will_do() -> None:
    with pytest.raises(ConfigError, match="give a subclass of LightningModule"):
        TrainingOperator.from_ptl(torch.nn.Linear)
    with pytest.raises(ConfigError, match="needs lr, but config has"):
        TrainingOperator.from_ptl(TwoParts, datamodule=PointsData)({})


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
