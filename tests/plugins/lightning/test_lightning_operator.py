"""Operators of Lightning modules by themselves, without a trainer: what they do, and what they refuse."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from tests.plugins.lightning.lightning_modules import (
    Diary,
    Points,
    PointsData,
    TwoParts,
    WithRate,
    points,
)
from trainkit.errors import CheckpointError, ConfigError, MissingDependencyError, TrainingError
from trainkit.plugins.lightning.fit import whole_batches
from trainkit.plugins.lightning.operator import PACKAGES, arguments_of_step, package_of
from trainkit.train import TrainingOperator
from trainkit.train.distributed.process_group import ProcessGroup
from trainkit.train.strategies.base import StepSettings


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
    ticks = operator._validation_feed.batches(0, 1)
    assert operator.validate(ticks, {})["batch_count"] == 1
    operator.register_data(train_loader=[1])  # as for a call with data of its own
    with pytest.raises(ConfigError, match=r"train\(\) takes no dataset= with Lightning"):
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
    with pytest.raises(TrainingError, match=r"ended by error or shutdown.*load\(\) a checkpoint or make"):
        operator.train_epoch((), {})
    with pytest.raises(CheckpointError, match="after Lightning's fit had failed"):
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
    with pytest.raises(CheckpointError, match="can't load this state"):
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
    with pytest.raises(MissingDependencyError, match=r"pip install 'trainkit-ml\[lightning\]'"):
        TrainingOperator.from_ptl(torch.nn.Linear)


def test_both_packages_are_known() -> None:
    unified = type("LightningModule", (torch.nn.Module,), {"__module__": "lightning.pytorch.core.module"})
    assert package_of(type("Mine", (unified,), {}), "LightningModule") == "lightning.pytorch"
    assert package_of(Points, "LightningModule") == "pytorch_lightning"
    assert package_of(Points, "Callback") is None


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (Points, {"datamodule": PointsData, "val_dataloader": [1]}, "either train_dataloader="),
        (Points, {"datamodule": 3}, "LightningDataModule of pytorch_lightning"),
        (Points, {"callbacks": [3]}, "callbacks of pytorch_lightning"),
        (Points, {"trainer_args": {"max_steps": 5, "devices": 2}}, "max_steps: .*devices: pass num_workers="),
        (torch.nn.Linear, {}, "needs a LightningModule class"),
        (WithRate(), {}, r"from_ptl\(\) needs a LightningModule class, not an object of WithRate"),
    ],
    ids=str,
)
def test_wrong_arguments_are_told_at_once(module: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingOperator.from_ptl(module, **arguments)


def test_what_is_said_twice_or_lacks_in_the_configuration_is_named() -> None:
    given = {"gradient_clip_val": 0.5, "logger": True}
    with pytest.raises(ConfigError, match=r"contains gradient_clip_val, .*max_grad_norm\) also set"):
        arguments_of_step(StepSettings(max_grad_norm=1.0), given)
    with pytest.raises(ConfigError, match="needs lr, but config has"):
        TrainingOperator.from_ptl(TwoParts, datamodule=PointsData)({})


class Returning(Points):
    """Returns what it measures rather than log it, as modules for RaySGD do."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss, "train_first": float(len(batch[0]))}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        features, target = batch
        output = self.net(features)
        return {"val_loss": cross_entropy(output, target), "size": len(target), "output": output, "name": "x"}


class ReturningALoss(Returning):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return cross_entropy(self.net(batch[0]), batch[1])


def test_what_steps_return_counts_by_samples() -> None:
    operator = alone(TrainingOperator.from_ptl(Returning), samples=50)
    trained = operator.train_epoch((), {})
    validated = operator.validate((), {})
    module = operator.get_model()
    features, target = module.data.tensors
    expected = float(cross_entropy(module.net(features), target).detach())
    assert validated["val_loss"] == pytest.approx(expected)
    assert validated["size"] == pytest.approx((20 * 20 + 20 * 20 + 10 * 10) / 50)
    assert not {"output", "name", "last_name"} & validated.keys()
    # Lightning validates at the end of an epoch, so that a trial's result has it.
    assert trained["val_loss"] == pytest.approx(expected)
    assert (trained["num_samples"], trained["batch_count"]) == (50, 3)
    assert trained["train_first"] == validated["size"]
    assert "loss" in trained
    operator.close()


def test_a_loss_returned_by_itself_is_val_loss() -> None:
    operator = alone(TrainingOperator.from_ptl(ReturningALoss), samples=50)
    module = operator.get_model()
    features, target = module.data.tensors
    expected = float(cross_entropy(module.net(features), target).detach())
    assert operator.validate((), {})["val_loss"] == pytest.approx(expected)
    operator.close()


def test_a_stream_to_predict_is_refused() -> None:
    class Pair(ProcessGroup):
        world_size = 2

    class Numbers(IterableDataset[int]):
        """A stream."""

        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    with pytest.raises(ConfigError, match="a DataLoader over a stream can't be shared among 2 workers"):
        whole_batches(DataLoader(Numbers(), 2), Pair())
