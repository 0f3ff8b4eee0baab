"""Checkpoints that all workers write: whole or not at all, also after a kill, a full disk or damage."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import eventually, is_running
from tests.train.checkpoint.test_checkpoint import Trap
from tests.train.strategies.test_fsdp import Stack, trainer
from tests.train.workers.test_recovery import identical
from trainkit.errors import CheckpointError, GangError
from trainkit.train import BATCH_SIZE, TrainingOperator
from trainkit.train.checkpoint import files

pytestmark = pytest.mark.usefixtures("runtime")

ROOT = Path(__file__).parents[3]
CONFIG = {BATCH_SIZE: 48, "samples": 200}


def trained(gang: Any) -> dict[str, Any]:
    state = gang.state_dict()
    return {name: state[name] for name in ("models", "optimizers", "epoch", "global_step")}


class Averaged(Stack):
    """Keeps averages of the weights, which are as sharded as these."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.averages = {name: value.clone() for name, value in self.model.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self.averages, "note": ("plain", 1)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict


@pytest.mark.slow
def test_an_operators_own_state_may_be_sharded_too(tmp_path: Path) -> None:
    with trainer(Averaged, config=CONFIG) as gang:
        gang.save(tmp_path / "c")
        weights = gang.state_dict()["models"][0]
        gang.load(tmp_path / "c")
        for loaded in gang.apply_all_operators(lambda operator: operator.loaded):
            assert loaded["note"] == ("plain", 1)
            assert identical(loaded["averages"], dict(weights))
        assert identical(gang.state_dict()["operator"]["averages"], dict(weights))


def sabotage(rank: int, name: str, replacement: Callable[..., Any]) -> Callable[[TrainingOperator], None]:
    """Replaces a function of the named module, "module:function", in the worker `rank`."""

    def carry_out(operator: TrainingOperator) -> None:
        import importlib

        module, _, function = name.partition(":")
        home = importlib.import_module(module)
        if operator.world_rank == rank:
            vars(home)[f"before_{function}"] = getattr(home, function)
            setattr(home, function, replacement)

    return carry_out


def die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "where"),
    [(0, "trainkit.train.checkpoint.files:fill"), (1, "trainkit.train.checkpoint.shards:save")],
)
def test_a_worker_killed_while_saving_leaves_the_previous_checkpoint(
    tmp_path: Path, rank: int, where: str
) -> None:
    with trainer(config=CONFIG) as gang:
        gang.train(num_steps=1)
        gang.save(tmp_path / "c")
        expected = trained(gang)
        gang.train(num_steps=1)
        gang.apply_all_operators(sabotage(rank, where, die))
        with pytest.raises(GangError, match=f"worker {rank} of 2 died"):
            gang.save(tmp_path / "c")
    state, header = files.read(tmp_path / "c")
    assert header.epoch == 1
    with trainer(strategy="single", num_workers=1, config=CONFIG) as gang:
        gang.load(tmp_path / "c")
        assert identical(trained(gang), expected)
        gang.save(tmp_path / "c")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"], "what the killed writers left is gone"
    assert state["epoch"] == 1


DRIVER = """
import os, sys
from tests.train.strategies.test_fsdp import Stack, trainer
if __name__ == "__main__":
    with trainer(config={"*batch_size": 48, "samples": 200}) as gang:
        print(*gang.apply_all_workers(os.getpid), flush=True)
        while True:
            gang.train(num_steps=1)
            gang.save(sys.argv[1])
            print(gang.train(num_steps=1)["epoch"] - 1, flush=True)
"""


@pytest.mark.external
def test_a_driver_killed_while_its_workers_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    where = tmp_path / "c"
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(where)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as driver:
        assert driver.stdout is not None
        workers = [int(pid) for pid in driver.stdout.readline().split()]
        acknowledged = int(driver.stdout.readline())
        assert eventually(lambda: any(tmp_path.glob(".c.writing-*"))), "the next one begins"
        driver.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, driver.stdout.read().split())])
    assert eventually(lambda: not any(map(is_running, workers))), "they end with it"
    assert files.read(where)[1].epoch >= acknowledged
    with trainer(config=CONFIG) as gang:
        gang.load(where)
        gang.save(where)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"], "what they left beside it is removed"


def no_space(*args: Any) -> None:
    raise OSError(28, "No space left on device")


def elsewhere(path: Path, writer: int, host: int) -> Path:
    return path.with_name("on-another-machine")


def test_what_one_worker_cannot_write_replaces_nothing(tmp_path: Path) -> None:
    def step() -> int:
        assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
        return files.read(tmp_path / "c")[1].global_step

    with trainer(config=CONFIG) as gang:
        gang.train(num_steps=1)
        gang.save(tmp_path / "c")
        for rank in (0, 1):
            gang.apply_all_operators(sabotage(rank, "os:fsync", no_space))
            with pytest.raises(
                CheckpointError,
                match=r"was not written.*No space left.*an earlier checkpoint there is unchanged",
            ):
                gang.save(tmp_path / "c")
            gang.apply_all_operators(
                lambda operator: setattr(os, "fsync", getattr(os, "before_fsync", os.fsync))
            )
            assert step() == rank + 1
            # The trainer goes on.
            gang.train(num_steps=1)
            gang.save(tmp_path / "c")
            assert step() == rank + 2
        gang.apply_all_operators(sabotage(1, "trainkit.train.checkpoint.files:aside_of", elsewhere))
        with pytest.raises(CheckpointError, match=r"worker 1 can't see .* the folder.*shared file system"):
            gang.save(tmp_path / "c")
        assert step() == 3
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter1.tex").touch()
        with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
            gang.save(tmp_path / "thesis")


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file, and say in the header that it was always so."""
    (folder / name).write_bytes(content)
    header = json.loads((folder / "checkpoint.json").read_text())
    header["files"][name] = files.fingerprint(folder / name)
    header.pop("crc32", None)
    (folder / "checkpoint.json").write_text(json.dumps(header))


def test_damage_is_found_and_reading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = tmp_path / "c"
    with trainer(config=CONFIG) as gang:
        gang.save(where)
        before = trained(gang)
        shard = where / "shards" / "__1_0.distcp"
        content = shard.read_bytes()
        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointError, match=r"is damaged: shards/__1_0.distcp has a wrong size"):
            gang.load(where)
        shard.unlink()
        with pytest.raises(CheckpointError, match=r"__1_0.distcp is missing"):
            gang.load(where)
        shard.write_bytes(content)
        index = (where / "shards" / ".metadata").read_bytes()
        for trap in (Trap(), {"a": eval}):
            rewrite(where, "shards/.metadata", pickle.dumps(trap))
            with pytest.raises(CheckpointError, match="an index of tensors must not contain"):
                gang.load(where)
        rewrite(where, "shards/.metadata", index.replace(b"__0_0.distcp", b"../evil.dist"))
        with pytest.raises(CheckpointError, match="outside of the checkpoint"):
            gang.load(where)
        rewrite(where, "shards/.metadata", index)
        gang.load(where)
        gang.train(num_steps=1)
        after = trained(gang)
        state = gang.state_dict()
        state["models"][0]["first.bias"] = torch.zeros(7)
        state["models"][0]["first.weight"] *= 0
        with pytest.raises(CheckpointError, match=r"first.bias of model 0 has shape \(32,\), not .*\(7,\)"):
            gang.load_state_dict(state)
        del state["models"][0]["first.bias"]
        with pytest.raises(CheckpointError, match=r"the state of model 0 lacks first.bias"):
            gang.load_state_dict(state)
        assert identical(trained(gang), after)
        gang.load(where)
        assert identical(trained(gang), before)
    assert not (tmp_path / "trapped").exists()
