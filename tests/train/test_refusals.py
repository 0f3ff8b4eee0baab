"""A call that is refused or interrupted leaves the trainer as it was."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import trainkit
from tests.conftest import run_python
from tests.train.operators import Digits, cpu_trainer
from trainkit.errors import CheckpointError, ConfigError, GangError, InfeasibleError
from trainkit.train import TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")


class Small(TrainingOperator):
    """Two models and a scheduler on four samples, without validation data."""

    def setup(self, config: dict[str, Any]) -> None:
        models = [nn.Linear(2, 2), nn.Linear(2, 2)]
        optimizer = torch.optim.SGD(models[0].parameters(), lr=1.0, momentum=0.9)
        self.register(
            models=models,
            optimizers=optimizer,
            criterion=nn.MSELoss(),
            schedulers=ReduceLROnPlateau(optimizer, patience=0),
        )
        self.register_data(train_loader=DataLoader(TensorDataset(torch.ones(4, 2)), 2))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        loss = self.models[0](batch[0]).square().mean()
        self.optimizer.zero_grad()
        self.backward(loss)
        self.optimizer.step()
        return {"train_loss": loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("refused_by") in ("all", self.world_rank):
            raise LookupError("the operator won't have it")


def small(workers: int, **options: Any) -> TorchTrainer:
    return cpu_trainer(Small, workers, scheduler_step_freq="manual", **options)


def test_refused_calls_end_nobody(tmp_path: Path) -> None:
    with small(2) as trainer:
        with pytest.raises(CheckpointError, match="is not a complete checkpoint") as caught:
            trainer.load(tmp_path / "nothing")
        assert caught.value.__notes__ == ["raised by worker 0 of 2"]
        with pytest.raises(
            CheckpointError, match="not a trainer's state: it lacks epoch, global_step, models"
        ):
            trainer.load_state_dict({})
        apart = trainer.state_dict()
        apart["workers"][1]["data"]["train"]["position"] = {"taken": 2}
        with pytest.raises(CheckpointError, match=r"different numbers of batches .* \(\[0, 2\], by rank\)"):
            trainer.load_state_dict(apart)
        with pytest.raises(ValueError, match="high"):
            trainer.update_scheduler("high")  # type: ignore[arg-type]
        assert trainer.train()["epoch"] == 1


def test_data_registered_after_setup_is_found() -> None:
    def add(operator: Any) -> None:
        operator.register_data(validation_loader=DataLoader(TensorDataset(torch.ones(4, 2)), 2))
        operator.validate_batch = lambda batch, info: {"val_loss": 1.0, "num_samples": len(batch[0])}

    with small(1) as trainer:
        assert not trainer.has_validation
        trainer.apply_all_operators(add)
        assert trainer.has_validation
        assert trainer.validate()["num_samples"] == 4


def test_workers_that_no_longer_hold_the_same_are_ended() -> None:
    with small(2) as trainer:
        state = {**trainer.state_dict(), "operator": {"refused_by": 1}}
        with pytest.raises(LookupError, match="won't have it"):
            trainer.load_state_dict(state)
        with pytest.raises(GangError, match=r"have ended \(worker 1 failed\)"):
            trainer.train()


def misshapen(state: dict[str, Any]) -> None:
    state["models"][1]["weight"] = torch.zeros(3, 3)


def without_groups(state: dict[str, Any]) -> None:
    state["optimizers"][0] = {"state": {}, "param_groups": 3}


def no_scheduler(state: dict[str, Any]) -> None:
    state["schedulers"][0] = None


def no_list(state: dict[str, Any]) -> None:
    state["optimizers"] = None


def refused(state: dict[str, Any]) -> None:
    state["operator"] = {"refused_by": "all"}


@pytest.mark.parametrize("spoil", [misshapen, without_groups, no_scheduler, no_list, refused])
def test_a_refused_state_changes_nothing(spoil: Callable[[dict[str, Any]], None]) -> None:
    with small(1, use_local=True) as trainer:
        trainer.train()
        before = trainer.state_dict()
        other = copy.deepcopy(before)
        for model in other["models"]:
            model["bias"] += 1
        other["optimizers"][0]["param_groups"][0]["lr"] = 7.0
        spoil(other)
        with pytest.raises((CheckpointError, LookupError)):
            trainer.load_state_dict(other)
        after = trainer.state_dict()
        assert str(after) == str(before)


def test_an_error_of_a_single_worker_is_told_as_it_is() -> None:
    def fail() -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    with small(1) as trainer, pytest.raises(RuntimeError, match="Connection closed") as caught:
        trainer.apply_all_workers(fail)
    assert not isinstance(caught.value, GangError)


class Slow(Digits):
    """In its second epoch each worker hangs, once."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        mark = Path(self.config["marks"], str(self.world_rank))
        if batch_info["epoch_idx"] == 1 and not mark.exists():
            mark.touch()
            time.sleep(600)
        return super().train_batch(batch, batch_info)


def slow(folder: Path, **options: Any) -> TorchTrainer:
    (folder / "marks").mkdir()
    config = {"samples": 8, "batch_size": 2, "marks": str(folder / "marks")}
    return TorchTrainer(training_operator_cls=Slow, config=config, num_workers=2, use_gpu=False, **options)


def interrupted(call: Callable[[], Any], marks: Path) -> None:
    """Let Ctrl-C come to `call` once both workers hang in it."""

    def interrupt() -> None:
        while len(list(marks.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        call()


@pytest.mark.parametrize(
    ("call", "use_local"),
    [(TorchTrainer.train, True), (TorchTrainer.lr_find, False)],
)
def test_after_ctrl_c_the_trainer_goes_on_from_the_state_before(
    call: Callable[[TorchTrainer], Any], use_local: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with slow(tmp_path, use_local=use_local) as trainer:
        trainer.train()
        before = trainer.state_dict()
        interrupted(lambda: call(trainer), tmp_path / "marks")
        assert "ended" not in repr(trainer)
        trainer.save(tmp_path / "checkpoint")
        assert str(trainer.state_dict()) == str(before)
        assert trainer.train()["epoch"] == 2
        after = str(trainer.state_dict())
    assert f"{call.__name__}() was interrupted" in caplog.text
    with slow(tmp_path / "checkpoint", use_local=use_local) as trainer:
        for rank in "01":
            (tmp_path / "checkpoint" / "marks" / rank).touch()
        trainer.load(tmp_path / "checkpoint")
        trainer.train()
        assert str(trainer.state_dict()) == after


def test_an_interrupted_epoch_without_a_snapshot_ends_the_trainer(tmp_path: Path) -> None:
    with slow(tmp_path) as trainer:
        trainer.train(max_retries=0)
        interrupted(lambda: trainer.train(max_retries=0), tmp_path / "marks")
        why = r"train\(\) was interrupted by KeyboardInterrupt, and no snapshot.*max_retries=0.*load\(\)"
        with pytest.raises(GangError, match=why):
            trainer.save(tmp_path / "checkpoint")


def save_while_another_trainer_holds_all(folder: Path) -> None:
    """Interrupt a trainer, and train while a second trainer has all CPUs: a program of its own."""
    trainkit.init(num_cpus=4)
    with slow(folder, num_cpus_per_worker=2) as trainer:
        trainer.train()
        interrupted(trainer.train, folder / "marks")
        with small(2, num_cpus_per_worker=2) as other:
            with pytest.raises(InfeasibleError, match="a TorchTrainer that was interrupted asks for"):
                trainer.train()
            trainer.save(folder / "checkpoint")  # needs no workers
            assert other.train()["epoch"] == 1
        assert trainer.train()["epoch"] == 2


@pytest.mark.external
def test_an_interrupted_trainer_waits_for_no_place_that_its_own_program_holds(tmp_path: Path) -> None:
    """In a program of its own: beside a thread of an earlier test, which might free them, it waits."""
    name = save_while_another_trainer_holds_all.__name__
    code = f"import pathlib, sys; from tests.train.test_refusals import *; {name}(pathlib.Path(sys.argv[1]))"
    run_python("-c", code, tmp_path, cwd=Path(__file__).parents[2])
    assert (tmp_path / "checkpoint").exists()


def test_a_dropped_trainer_leaves_its_process_group() -> None:
    for _ in range(2):
        trainer = small(2, use_local=True)
        assert trainer.train()["epoch"] == 1
        with pytest.raises(ConfigError, match=r"already in a torch\.distributed group"):
            small(2, use_local=True)
        assert trainer.train()["epoch"] == 2
        del trainer
    assert not dist.is_initialized()


def test_a_gpu_asked_for_by_a_number_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    options = TorchTrainer.as_trainable(
        training_operator_cls=Digits, use_gpu=1, backend="gloo", num_workers=2
    ).plan.options
    assert options.use_gpu is True
    assert options.bundle == {"CPU": 1, "GPU": 1}


HELD = """
import trainkit
from tests.train.test_refusals import small
from trainkit.errors import InfeasibleError

trainkit.init(num_cpus=2)
earlier = small(2)
trainkit.shutdown()
trainkit.init(num_cpus=2)
trainer = small(2)
try:
    trainer = small(5)
except InfeasibleError as error:
    print("REFUSED", "asked for 5 workers" in "".join(error.__notes__))
print("GOES ON", trainer.train()["batch_count"])
earlier.shutdown()
trainer.shutdown()
"""


@pytest.mark.external
def test_only_a_request_that_can_be_met_closes_a_trainer_and_one_of_an_ended_session_holds_nothing() -> None:
    done = run_python("-c", HELD, cwd=Path(__file__).parents[2])
    assert done.stdout.splitlines() == ["REFUSED True", "GOES ON 1"], done.stderr
