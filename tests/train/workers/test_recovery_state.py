"""What the workers go on with after a call that failed, and what an ended gang gives back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.operators import Digits
from tests.train.workers.killed_operator import KilledOperator, pid_of
from trainkit.errors import GangError
from trainkit.train import TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")


def trainer(operator: type[TrainingOperator], folder: Path, workers: int = 1, **options: Any) -> TorchTrainer:
    torch.manual_seed(7)
    folder.mkdir(exist_ok=True)
    (folder / "lives").touch()
    return TorchTrainer(
        training_operator_cls=operator,
        config={"at": "never", "rank": 0, "folder": str(folder), "samples": 60},
        num_workers=workers,
        use_gpu=False,
        **{"scheduler_step_freq": "epoch", **options},
    )


def kill(folder: Path, rank: int = 0) -> None:
    os.kill(pid_of(folder, rank), signal.SIGKILL)


class Refusing(KilledOperator):
    """Raises where a file of that name lies in its folder."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if batch_info["batch_idx"] == 3:
            self.refuse("train")
        return super().train_batch(batch, batch_info)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.refuse("restore")
        super().load_state_dict(state_dict)

    def refuse(self, what: str) -> None:
        if (Path(self.config["folder"]) / what).exists():
            raise LookupError(f"no {what}")


@pytest.mark.slow
def test_half_an_epoch_that_failed_is_not_undone_by_an_older_snapshot(tmp_path: Path) -> None:
    states = []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        with trainer(Refusing, folder) as gang:
            gang.train()
            (folder / "train").touch()
            with pytest.raises(LookupError, match="no train"):
                gang.train()
            (folder / "train").unlink()
            gang.validate(num_steps=1)
            if name == "killed":
                kill(folder)
            assert gang.train()["epoch"] == 2
            states.append(gang.state_dict())
    one, other = (state["models"][0] for state in states)
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert states[0]["global_step"] == states[1]["global_step"]


def test_workers_that_could_not_take_over_the_state_are_not_trained_from_nothing(tmp_path: Path) -> None:
    with trainer(Refusing, tmp_path) as gang:
        gang.train()
        (tmp_path / "restore").touch()
        kill(tmp_path)
        with pytest.raises(LookupError, match="no restore"):
            gang.train()
        (tmp_path / "restore").unlink()
        with pytest.raises(GangError, match=r"could not load the state\): make a new TorchTrainer"):
            gang.train()


class StepsInValidation(KilledOperator):
    def validate(self, val_iterator: Any, info: dict[str, Any]) -> Any:
        result = super().validate(val_iterator, info)
        self.scheduler.step()
        return result


def test_a_scheduler_that_was_stepped_in_validation_stays_so(tmp_path: Path) -> None:
    found = []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        with trainer(StepsInValidation, folder) as gang:
            gang.train()
            gang.validate()
            if name == "killed":
                kill(folder)
            loss = gang.train()["train_loss"]
            state = gang.state_dict()
            found.append((loss, state["schedulers"][0]["last_epoch"], state["optimizers"][0]["param_groups"]))
    assert found[0] == found[1]


class Closing(KilledOperator):
    def close(self) -> None:
        with (Path(self.config["folder"]) / "closed").open("a") as file:
            file.write(f"{self.world_rank}")


@pytest.mark.parametrize(("workers", "use_local"), [(1, False), (2, True)])
def test_an_operator_is_closed_once_in_order_and_never_by_force(
    use_local: bool, workers: int, tmp_path: Path
) -> None:
    for force in (True, False):
        gang = trainer(Closing, tmp_path, workers, use_local=use_local)
        gang.shutdown(force=force)
        gang.shutdown()
        closed = (tmp_path / "closed").read_text() if (tmp_path / "closed").exists() else ""
        assert sorted(closed) == ([] if force else [str(rank) for rank in range(workers)])


class Twice(Digits):
    """Goes over its batches two times."""

    def train_epoch(self, iterator: Any, info: Any, num_steps: Any = None, epoch_idx: int = 0) -> Any:
        batches = list(iterator)
        super().train_epoch(batches, info)
        return super().train_epoch(batches, info)


def test_a_loop_may_go_over_its_batches_again(tmp_path: Path) -> None:
    """60 samples, 32 a worker: one uneven batch, for which each worker's loss has a weight."""
    models = []
    for times, operator in ((2, Digits), (1, Twice)):
        with trainer(operator, tmp_path, 2, scheduler_step_freq=None) as gang:
            for _ in range(times):
                gang.train()
            models.append(gang.get_model())
    one, other = (model.state_dict() for model in models)
    assert all(torch.allclose(one[key], other[key], atol=1e-12) for key in one)
