"""Checkpoints that are written while training continues: real processes, real signals."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import trainkit
from tests.conftest import eventually, is_running, run_python
from tests.runtime.local.programs import Programs
from tests.train.checkpoint.held_operator import HeldOperator, writers
from tests.train.operators import Digits
from tests.train.strategies.test_fsdp import Stack
from tests.train.workers.killed_operator import KilledOperator
from tests.train.workers.test_recovery import identical
from trainkit.errors import CheckpointError
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.checkpoint import files

ROOT = Path(__file__).parents[3]


def trainer(operator: type[TrainingOperator] = HeldOperator, **options: Any) -> TorchTrainer:
    torch.manual_seed(7)
    arguments = {"num_workers": 2, "num_cpus_per_worker": 0.5, **options}
    if operator is KilledOperator:
        arguments["scheduler_step_freq"] = "epoch"
    return TorchTrainer(training_operator_cls=operator, use_gpu=False, **arguments)


def held_trainer(folder: Path, **options: Any) -> TorchTrainer:
    return trainer(config={"folder": str(folder), "samples": 60, **options.pop("config", {})}, **options)


def proceed(folder: Path) -> None:
    (folder / "continue").touch()


def is_of(path: Path, expected: dict[str, Any]) -> bool:
    """Whether a checkpoint has this state; the operator's own, which differs, is left out."""
    state, _ = files.read(path)
    return all(identical(state[name], expected[name]) for name in expected if name != "operator")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved" / "c"


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (KilledOperator, {}),
        (KilledOperator, {"num_workers": 1}),
        (KilledOperator, {"use_local": True}),
        (KilledOperator, {"num_workers": 1, "use_local": True}),
        pytest.param(KilledOperator, {"strategy": "pipeline"}, marks=pytest.mark.slow),
        (Stack, {"strategy": "fsdp", "ema_decay": 0.9}),
        pytest.param(Stack, {"strategy": "fsdp", "num_workers": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.usefixtures("runtime")
def test_what_is_written_is_the_state_of_the_call(
    operator: type[TrainingOperator], options: dict[str, Any], path: Path
) -> None:
    with trainer(operator, **options) as gang:
        for calls in (gang.train, gang.validate, lambda: gang.train(max_retries=0)):  # type: ignore[attr-defined]
            calls()
            expected = gang.state_dict()
            assert gang.save(path, wait=False) == path
            gang.train()
            gang.save(path.with_name("waiting"))
            gang.load(path)
            assert identical(gang.state_dict(), expected)
    _, header = files.read(path)
    assert (header.epoch, header.world_size) == (expected["epoch"], options.get("num_workers", 2))
    spread = options.get("strategy") is not None
    assert {file.name for file in path.iterdir()} == {"checkpoint.json", "state.pt"} | (
        {"shards"} if spread else set()
    )
    for strategy, workers in (("ddp", 1), ("fsdp", 2)) if spread else (("ddp", 1),):
        with trainer(operator, num_workers=workers, strategy=strategy) as other:
            other.load(path)
            found = other.state_dict()
            assert all(identical(found[name], expected[name]) for name in ("models", "optimizers", "epoch"))


@pytest.mark.usefixtures("runtime")
def test_training_continues_while_a_process_of_low_priority_writes(tmp_path: Path, path: Path) -> None:
    with held_trainer(tmp_path) as gang:
        gang.train()
        expected = gang.state_dict()
        gang.save(path, wait=False)
        assert gang.last_save is None
        assert gang.train()["epoch"] == 2
        assert not path.exists()
        assert eventually(lambda: len(writers(tmp_path)) == 1)
        (writer,) = map(psutil.Process, writers(tmp_path))
        assert writer.nice() == min(19, os.nice(0) + 19)
        assert writer.pid not in {os.getpid(), *gang.apply_all_workers(os.getpid)}
        proceed(tmp_path)
    assert gang.last_save is not None
    assert gang.last_save.path == path
    assert gang.last_save.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert gang.last_save.write_s > 0
    assert is_of(path, expected)
    assert eventually(lambda: not is_running(writer.pid))


@pytest.mark.parametrize("victim", ["writer", "worker"])
@pytest.mark.usefixtures("runtime")
def test_a_killed_process_costs_no_checkpoint(victim: str, tmp_path: Path, path: Path) -> None:
    with held_trainer(tmp_path) as gang:
        worker = gang.apply_all_workers(os.getpid)[0]
        gang.train()
        expected = gang.state_dict()
        gang.save(path, wait=False)
        assert eventually(lambda: bool(writers(tmp_path)))
        os.kill(writers(tmp_path)[0] if victim == "writer" else worker, signal.SIGKILL)
        assert gang.train()["epoch"] == 2
        assert eventually(lambda: len(writers(tmp_path)) == (2 if victim == "writer" else 1))
        proceed(tmp_path)
    assert is_of(path, expected)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("second", ["save", "save, wait=False", "load"])
@pytest.mark.usefixtures("runtime")
def test_a_later_save_or_load_waits_for_the_write(second: str, tmp_path: Path, path: Path) -> None:
    with held_trainer(tmp_path, config={"own": 1}) as gang:
        gang.train()
        gang.save(path, wait=False)
        gang.train()
        assert eventually(lambda: bool(writers(tmp_path)))
        threading.Timer(0.05, proceed, [tmp_path]).start()
        if second == "load":
            gang.load(path)
            assert gang.state_dict()["epoch"] == 1
            return
        gang.apply_all_operators(lambda operator: operator.config.update(own=2))
        if second == "save":
            with pytest.raises(CheckpointError, match=r"is a .*Held, which a checkpoint can't store"):
                gang.save(path)
        else:
            gang.save(path, wait=False)
        assert files.read(path)[0]["operator"] == {"held": "a plain value", "own": 1}
    expected = 1 if second == "save" else 2
    assert files.read(path)[0]["operator"]["own"] == expected


def foreign(path: Path) -> Any:
    path.mkdir(parents=True)
    (path / "thesis.tex").touch()
    return {"text": "exists and is not a checkpoint"}


def unwritable(path: Path) -> Any:
    path.parent.parent.joinpath("saved").touch()
    return {"text": "was not written"}


def not_plain(_: Path) -> Any:
    return {"text": r"\['own'\] is a random.Random", "config": {"own": random.Random()}}


@pytest.mark.parametrize("cause", [foreign, unwritable, not_plain])
@pytest.mark.usefixtures("runtime")
def test_a_failed_write_is_raised_by_the_next_call_once(
    cause: Callable[[Path], Any], tmp_path: Path, path: Path
) -> None:
    proceed(tmp_path)
    options = cause(path)
    text = rf"save\('{path}', wait=False\) failed after it had returned: .*{options.pop('text')}"
    with held_trainer(tmp_path, **options) as gang:
        gang.save(path, wait=False)
        with pytest.raises(CheckpointError, match=text):
            while True:
                gang.train(num_steps=1)
        assert gang.train(num_steps=1)["epoch"] > 1
        gang.save(path, wait=False)
        with pytest.raises(CheckpointError, match=text):
            gang.shutdown()
    with pytest.raises(CheckpointError, match=text), held_trainer(tmp_path, **options) as gang:
        gang.save(path, wait=False)
    with pytest.raises(ZeroDivisionError) as raised, held_trainer(tmp_path, **options) as gang:
        gang.save(path, wait=False)
        raise ZeroDivisionError
    assert "failed after it had returned" in raised.value.__notes__[0]


@pytest.mark.usefixtures("runtime")
def test_a_save_outlives_its_trainer(tmp_path: Path, path: Path) -> None:
    gang = held_trainer(tmp_path)
    gang.save(path, wait=False)
    del gang
    proceed(tmp_path)
    assert eventually(path.exists)
    assert files.read(path)[1].epoch == 0


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_fifty_saves_take_no_more_memory_than_a_few(path: Path) -> None:
    def held_bytes() -> int:
        return sum(row["size_bytes"] for row in trainkit.list_objects())

    with trainer(Wide) as gang:
        store, own = [], []
        for _ in range(50):
            gang.train(num_steps=1)
            gang.save(path, wait=False)
            store.append(held_bytes())
            own.append(psutil.Process().memory_info().rss)
        size = 3 * 4 * 512 * 512
        assert max(store) < 4 * size
    assert own[-1] - own[10] < 4 * size


class Wide(Digits):
    """A model whose state is large enough for the object store."""

    def setup(self, config: dict[str, Any]) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 512))
        self.register(
            models=model,
            optimizers=torch.optim.Adam(model.parameters()),
            criterion=torch.nn.CrossEntropyLoss(),
        )
        data = torch.utils.data.TensorDataset(torch.randn(4, 64), torch.randint(0, 10, (4,)))
        self.register_data(train_loader=torch.utils.data.DataLoader(data, 4))
        self.steps = []


PROGRAM = """
import sys, trainkit
from pathlib import Path
from tests.train.checkpoint.test_background_saves import held_trainer

folder, how = Path(sys.argv[1]), sys.argv[2]
gang = held_trainer(folder)
gang.train()
gang.save(folder / "saved" / "c", wait=False)
print("saved", flush=True)
if how == "trains":
    with gang:
        while True:
            gang.train(num_steps=1)
if how == "with":
    with gang:
        pass
if how == "session":
    trainkit.shutdown()
print("end", flush=True)
"""


def begin(programs: Programs, path: Path, how: str) -> Any:
    """Start a program that saves epoch 1 over a checkpoint of epoch 0; its writer waits."""
    files.write(path, {"earlier": True}, files.CheckpointMetadata(0, 0, 1))
    program = programs.begin(PROGRAM, str(programs.folder), how)
    assert program.stdout is not None
    assert program.stdout.readline() == "saved\n"
    assert eventually(lambda: bool(writers(programs.folder)))
    return program


@pytest.mark.slow
@pytest.mark.parametrize("how", ["with", "session", "falls off its end"])
def test_a_program_ends_when_its_checkpoint_is_written(programs: Programs, path: Path, how: str) -> None:
    program = begin(programs, path, how)
    proceed(programs.folder)
    assert program.stdout.read() == "end\n"
    assert program.wait(60) == 0
    assert files.read(path)[1].epoch == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["c"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_signal_ends_training_and_waits_for_the_write(programs: Programs, path: Path, number: int) -> None:
    program = begin(programs, path, "trains")
    program.send_signal(number)
    threading.Timer(0.3, proceed, [programs.folder]).start()
    assert program.wait(60) == (143 if number == signal.SIGTERM else -signal.SIGINT)
    assert files.read(path)[1].epoch == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=str)
def test_a_program_that_ends_while_it_waits_leaves_the_earlier_checkpoint(
    programs: Programs, path: Path, number: int
) -> None:
    program = begin(programs, path, "with")
    program.send_signal(number)
    assert program.wait(60) == -number
    assert files.read(path)[1].epoch == 0
    assert eventually(lambda: not any(map(is_running, writers(programs.folder))))


SMALL_STORE = """
import sys, trainkit
from pathlib import Path
from tests.train.checkpoint.test_background_saves import Wide, trainer
from trainkit.train.checkpoint import files

path = Path(sys.argv[1])
trainkit.init(num_cpus=2, object_store_memory=1 << 20, object_spilling_directory=False)
with trainer(Wide) as gang:
    gang.train(max_retries=0)
    gang.save(path, wait=False)
    print(files.read(path)[1].epoch)
"""


@pytest.mark.slow
def test_a_save_without_room_for_a_copy_waits_and_says_so(path: Path) -> None:
    done = run_python("-c", SMALL_STORE, path, cwd=ROOT)
    assert done.stdout == "1\n"
    text = f"save('{path}', wait=False) waits until the checkpoint is written, because a copy of the state"
    assert done.stderr.count(text) == 1
