"""Workers are lost, and the run goes on as if they had not been: real processes, real signals."""

from __future__ import annotations

import gc
import logging
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import trainkit
from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from tests.train.operators import Digits, lose_patience, plain_weights
from tests.train.workers.killed_operator import KilledOperator, pid_of
from trainkit.errors import ActorDiedError, GangError, InfeasibleError
from trainkit.runtime.scheduling import PlacementGroup
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.fsdp import FSDP
from trainkit.train.strategies.tensor import TensorParallel
from trainkit.train.workers import placement, recovery

pytestmark = pytest.mark.usefixtures("runtime")

EPOCHS = 3
FOUR = {"num_workers": 4, "num_cpus_per_worker": 0.25}


def trainer(operator: type[TrainingOperator] = KilledOperator, **options: Any) -> TorchTrainer:
    torch.manual_seed(7)
    arguments = {"num_workers": 2, "scheduler_step_freq": "epoch", **options}
    return TorchTrainer(training_operator_cls=operator, use_gpu=False, **arguments)


def run(gang: TorchTrainer, tmp_path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Each epoch's numbers, and the state after the last; a checkpoint is saved between two of them."""
    numbers = []
    for _ in range(EPOCHS):
        numbers += [gang.train(), gang.validate()]
        gang.save(tmp_path / "c")
    return numbers, gang.state_dict()


def identical(one: Any, other: Any) -> bool:
    """Bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)


_undisturbed: dict[str, Any] = {}


def undisturbed(tmp_path: Path, **options: Any) -> Any:
    key = str(options)
    if key not in _undisturbed:
        with trainer(config={}, **options) as gang:
            _undisturbed[key] = run(gang, tmp_path)
    return _undisturbed[key]


def mortal(at: str, rank: int, folder: Path, lives: int = 1, **options: Any) -> TorchTrainer:
    (folder / "lives").write_text("life\n" * lives)
    config = {"at": at, "rank": rank, "folder": str(folder), **options.pop("config", {})}
    return trainer(config=config, **options)


@pytest.mark.parametrize(
    ("at", "rank", "options"),
    [
        ("setup", 1, {}),
        ("train 1", 0, {}),
        ("train 5", 1, {}),
        ("validate 2", 0, {}),
        ("train 4", 2, {"num_workers": 3}),
        ("train 5", 1, {"use_local": True}),
        pytest.param("train 5", 0, {"strategy": "pipeline"}, marks=pytest.mark.slow),
        pytest.param("validate 1", 1, {"strategy": "pipeline"}, marks=pytest.mark.slow),
        pytest.param("train 5", 3, {"strategy": TensorParallel(degree=2), **FOUR}, marks=pytest.mark.slow),
        pytest.param("train 3", 1, {"strategy": FSDP(replicas=2), **FOUR}, marks=pytest.mark.slow),
        pytest.param("train 5", 1, {"strategy": "fsdp", "ema_decay": 0.8}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_killed_worker_changes_no_number(
    at: str, rank: int, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = undisturbed(tmp_path, **options)
    with caplog.at_level(logging.WARNING, "trainkit.train"), mortal(at, rank, tmp_path, **options) as gang:
        found = run(gang, tmp_path)
    assert identical(found, expected)
    assert not dist.is_initialized()
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"worker {rank} of {options.get('num_workers', 2)} died" in line
    what = at.split()[0].replace("setup", "TorchTrainer")
    resumes = "continues after the last snapshot" if what == "train" else "runs again from its start"
    assert line.endswith(f"restarting all workers; {what}() {resumes}")


@pytest.mark.parametrize("local", [False, True])
def test_a_killed_loader_process_changes_no_number(
    local: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"num_workers": 2, "use_local": local}
    loaders = {"loaders": 1}
    with trainer(config=loaders, **options) as gang:
        expected = run(gang, tmp_path)
    rank = 0 if local else 1
    with (
        caplog.at_level(logging.WARNING, "trainkit.train"),
        mortal("train 5", rank, tmp_path, config=loaders, **options) as gang,
    ):
        found = run(gang, tmp_path)
        with pytest.raises(GangError, match=f"worker {rank} of 2 lost a process that loads its data"):
            (tmp_path / "lives").write_text("life")
            gang.apply_all_operators(
                lambda operator: operator.config.update(at=f"train {operator.global_step}")
            )
            gang.train(max_retries=0)
    assert identical(found, expected)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "lost a process that loads its data: DataLoader worker (pid" in line
    assert line.endswith("restarting all workers; train() continues after the last snapshot")


def test_a_single_local_worker_keeps_its_model_where_a_loader_process_is_killed(tmp_path: Path) -> None:
    with mortal("train 11", 0, tmp_path, config={"loaders": 1}, num_workers=1, use_local=True) as gang:
        gang.train()
        before = gang.get_model(to_cpu=True).state_dict()
        operator = gang.get_local_operator()
        operator.config["at"] = f"train {operator.global_step}"
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            gang.train()
        assert gang.get_local_operator() is operator
        assert identical(gang.get_model(to_cpu=True).state_dict(), before)
        assert gang.train()["epoch"] == 2


class FailingOperator(Digits):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if self.config.pop("fails", False):
            self.failed = weakref.ref(batch[0])
            raise ValueError("too large")
        return super().train_batch(batch, batch_info)


def test_the_batch_of_a_failed_step_is_freed_with_its_error() -> None:
    with trainer(FailingOperator, config={"fails": True}, num_workers=1, use_local=True) as gang:
        gc.disable()
        try:
            gang.train()
        except ValueError as error:
            assert str(error) == "too large"
        finally:
            gc.enable()
        assert gang.get_local_operator().failed() is None
        assert gang.train()["epoch"] == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_in_save(rank: int, tmp_path: Path) -> None:
    """Worker 0 writes; the other one is killed by it while it does."""
    expected = undisturbed(tmp_path)
    with mortal("save", 0, tmp_path, lives=0, config={"kill_rank": rank}) as gang:
        numbers = []
        for epoch in range(EPOCHS):
            numbers += [gang.train(), gang.validate()]
            if epoch == 1:
                (tmp_path / "lives").write_text("life")
            assert gang.save(tmp_path / "c") == tmp_path / "c"
        state = gang.state_dict()
    assert identical((numbers, state), expected)
    assert (tmp_path / "lives").read_text() == "", "somebody was killed"
    with trainer(config={}) as gang:
        gang.load(tmp_path / "c")
        assert gang.train()["epoch"] == EPOCHS + 1


def test_what_was_done_between_epochs_is_not_lost(tmp_path: Path) -> None:
    def halve(operator: Any) -> None:
        operator.optimizer.param_groups[0]["lr"] /= 2

    def work(gang: TorchTrainer) -> Any:
        gang.train(num_steps=2)
        kept = gang.state_dict()
        gang.update_scheduler(3)
        gang.validate(num_steps=1)
        rates = [gang.apply_all_operators(rate)]
        first = gang.train(num_steps=2)
        gang.apply_all_operators(halve)
        rates.append(gang.apply_all_operators(rate))
        second = gang.train(num_steps=2)
        gang.load_state_dict(kept)
        return rates, first, second, gang.train(num_steps=2), gang.state_dict()

    def rate(operator: Any) -> float:
        return operator.optimizer.param_groups[0]["lr"]

    with trainer(config={}) as gang:
        expected = work(gang)
    # Twice in each: with the calls before still to be repeated, and with a snapshot of their own.
    for at in ("train 3", "train 5"):
        with mortal(at, 1, tmp_path, lives=2) as gang:
            assert identical(work(gang), expected)


def test_one_killed_between_two_calls(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    with mortal("never", 0, tmp_path) as gang:
        numbers = []
        for epoch in range(EPOCHS):
            numbers.append(gang.train())
            os.kill(pid_of(tmp_path, epoch % 2), signal.SIGKILL)
            numbers.append(gang.validate())
            gang.save(tmp_path / "c")
        assert identical((numbers, gang.state_dict()), expected)


class Impatient(KilledOperator):
    """Worker 0 does not wait for long in the sixth step, the first time."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        first = Path(self.config["folder"]) / "first"
        if self.world_rank == 0 and batch_info["global_step"] == 5 and not first.exists():
            first.touch()
            lose_patience()
        return super().train_batch(batch, batch_info)


def test_a_hung_worker_is_ended_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = undisturbed(tmp_path)
    stopped = {"signal": signal.SIGSTOP}
    with mortal("train 5", 1, tmp_path, config=stopped, operator=Impatient) as gang:
        assert identical(run(gang, tmp_path), expected)
    assert "worker 1 of 2 did not enter step 2 within timeout_s=1800, where worker 0 waited" in caplog.text


def test_without_retries_no_snapshot_is_taken(tmp_path: Path) -> None:
    with mortal("save", 0, tmp_path) as gang:
        gang.train(max_retries=0)
        gang.validate(max_retries=0)
        assert (tmp_path / "lives").read_text() == "life\n", "the operator was not asked for its state"
        with pytest.raises(GangError, match="worker 0 of 2 died"):
            gang.save(tmp_path / "c")
        with pytest.raises(GangError, match="make a new TorchTrainer"):
            gang.train()


def test_one_that_dies_every_time(tmp_path: Path) -> None:
    with mortal("train 0", 1, tmp_path, lives=9) as gang:
        with pytest.raises(GangError) as caught:
            gang.train(max_retries=2)
        lines = str(caught.value).splitlines()
        assert lines[0] == "train() lost workers in all 3 attempts (max_retries=2):"
        listed = [line.partition(":")[0] for line in lines if line[:1].isdigit()]
        assert listed == [f"{number}. worker 1 of 2 died" for number in (1, 2, 3)]
        assert isinstance(caught.value.__cause__, GangError)
        assert isinstance(caught.value.__cause__.__cause__, ActorDiedError)
        assert trainkit.available_resources()["CPU"] == 4, "its places are free again at once"
    assert len((tmp_path / "lives").read_text().splitlines()) == 6


def test_a_death_in_setting_up_again_counts_as_one(tmp_path: Path) -> None:
    with mortal("setup", 1, tmp_path, lives=0) as gang:
        gang.train()
        (tmp_path / "lives").write_text("one\ntwo")
        os.kill(pid_of(tmp_path, 0), signal.SIGKILL)
        assert gang.train(max_retries=3)["epoch"] == 2
        assert (tmp_path / "lives").read_text() == ""


class Picky(KilledOperator):
    def setup(self, config: dict[str, Any]) -> None:
        if (Path(config["folder"]) / "refuse").exists():
            raise LookupError("not again")
        super().setup(config)


def test_an_error_of_the_operator_while_it_is_set_up_again_is_shown(tmp_path: Path) -> None:
    with mortal("never", 0, tmp_path, operator=Picky) as gang:
        gang.train()
        (tmp_path / "refuse").touch()
        os.kill(pid_of(tmp_path, 1), signal.SIGKILL)
        with pytest.raises(LookupError, match="not again"):
            gang.train()
        assert eventually(lambda: trainkit.available_resources().get("CPU") == 4)


# -- other numbers of workers ------------------------------------------------------------------


def allow_for_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is room for is waited for, however long it takes to be granted."""
    monkeypatch.setattr(placement, "AT_ONCE_S", 60)


def test_fewer_workers_go_on_and_more_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CPUs are taken away, as a cluster's scheduler does it, and given back."""
    allow_for_a_slow_machine(monkeypatch)
    config = {BATCH_SIZE: 24, "samples": 120, "dtype": torch.float64}
    hooks = tmp_path / "hooks"

    def hook() -> None:
        with hooks.open("a") as file:
            file.write("x")

    options: dict[str, Any] = {"min_workers": 1, "initialization_hook": hook}
    with trainer(Digits, config=config, num_workers=3, **options) as gang:
        numbers = [len(gang.train(reduce_results=False))]
        monkeypatch.setattr(recovery, "REFORM_WAIT_S", 0.2)  # For what there is no room for.
        (own,) = trainkit.list_placement_groups()
        others = [trainkit.placement_group([{"CPU": 1}]) for _ in range(2)]
        trainkit.remove_placement_group(PlacementGroup(int(own["placement_group_id"], 16), own["bundles"]))
        assert all(other.wait(60) for other in others)
        numbers.append(len(gang.train(reduce_results=False)))
        for other in others:
            trainkit.remove_placement_group(other)
        assert eventually(lambda: trainkit.available_resources().get("CPU") == 2)
        numbers.append(len(gang.train(reduce_results=False)))
        model = gang.get_model()
    assert numbers == [3, 2, 3]
    assert len(hooks.read_text()) == sum(numbers)
    expected = plain_weights(config, 15)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-9, rtol=0)
    assert "2 of num_workers=3 workers train now, fewer than before (3)" in caplog.text
    assert "3 of num_workers=3 workers train now, more than before (2)" in caplog.text


def test_a_first_gang_may_be_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_for_a_slow_machine(monkeypatch)
    monkeypatch.setattr(recovery, "REFORM_WAIT_S", 0.2)
    held = trainkit.placement_group([{"CPU": 3}])
    assert held.wait(60)
    with trainer(Digits, config={"samples": 20}, num_workers=2, min_workers=1) as gang:
        assert len(gang.train(reduce_results=False)) == 1
    trainkit.remove_placement_group(held)
    with trainer(Digits, config={"samples": 20}, num_workers=9, min_workers=3) as gang:
        assert len(gang.validate(reduce_results=False)) == 4, "the machine never has room for 9"
    with pytest.raises(InfeasibleError, match="not enough CPU"):
        trainer(Digits, config={"samples": 20}, num_workers=9, min_workers=5)


INTERRUPTED = """
import os, signal, time
from pathlib import Path

import trainkit
from tests.train.operators import Digits
from trainkit.train import TorchTrainer

class Slow(Digits):
    def setup(self, config):
        if Path("again").exists():
            Path("setting_up").touch()
            time.sleep(600)
        with open("pids", "a") as file:
            file.write(f"{os.getpid()} ")
        super().setup(config)

if __name__ == "__main__":
    trainkit.init(num_cpus=2)
    trainer = TorchTrainer(training_operator_cls=Slow, config={"samples": 40}, num_workers=2, use_gpu=False)
    trainer.train()
    pids = Path("pids").read_text().split()
    Path("again").touch()
    os.kill(int(pids[-1]), signal.SIGKILL)
    try:
        trainer.train()
    except KeyboardInterrupt:
        print("interrupted")
    while trainkit.available_resources().get("CPU", 0) < 2:
        time.sleep(0.01)
    print(trainkit.available_resources()["CPU"])
    Path("again").unlink()
    print(trainer.train()["epoch"])
"""


@pytest.mark.external
def test_ctrl_c_while_workers_are_formed_again(programs: Programs) -> None:
    program = programs.begin(INTERRUPTED)
    assert eventually((programs.folder / "setting_up").exists, 300)
    program.send_signal(signal.SIGINT)
    output, err = program.communicate(timeout=300)
    assert output == "interrupted\n2.0\n2\n", err
    assert programs.nothing_is_left(120)
