"""Pains of users of other trainers, as docs/promises.md numbers them, and what happens here instead."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import trainkit
from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from tests.runtime.local.victims import Victim
from tests.train.operators import Digits
from trainkit import tune
from trainkit.errors import GangError
from trainkit.runtime.local.system import process
from trainkit.train import BATCH_SIZE, TorchTrainer
from trainkit.train.strategies.ddp import DDP

RANKS = 2


@pytest.fixture(scope="module", autouse=True)
def four_cards() -> Iterator[None]:
    """A session with four graphics cards that need not be there, to see how they are given out."""
    trainkit.init(num_cpus=4, num_gpus=4)
    yield
    trainkit.shutdown()


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if process.exists(pid)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnTheCPU(DDP):
    """Data-parallel on the CPU, whatever cards the workers were given."""

    def build(self, place: Any) -> Any:
        return super().build(dataclasses.replace(place, devices=(torch.device("cpu"),)))


def no_card() -> None:
    torch.cuda.set_device = lambda device: None  # type: ignore[assignment]


class Witness(Digits):
    """Each of its workers writes down, at the start of each epoch, who and where it is."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        atexit.register(self.note, "exit", {})

    def note(self, what: str, facts: dict[str, Any]) -> None:
        name = f"{self.config['trial']}-{self.world_rank}.{what}"
        folder = Path(self.config["folder"])
        (folder / f"{name}.new").write_text(json.dumps(facts))
        (folder / f"{name}.new").rename(folder / name)

    def train_epoch(self, iterator: Any, info: Any, num_steps: int | None = None, epoch_idx: int = 0) -> Any:
        me = psutil.Process()
        sockets = me.net_connections(kind="inet")
        facts = {
            "pid": me.pid,
            "listens": [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN],
            "cards": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "config": {name: self.config[name] for name in ("trial", "lr")},
            "epochs": epoch_idx + 1,
        }
        self.note("facts", facts)
        return super().train_epoch(iterator, info, num_steps, epoch_idx)


def facts(folder: Path, trial: int) -> list[dict[str, Any]]:
    """What the workers of a trial wrote down last, by rank."""
    return [json.loads((folder / f"{trial}-{rank}.facts").read_text()) for rank in range(RANKS)]


def options(folder: Path) -> dict[str, Any]:
    config = {"samples": 80, "folder": str(folder)}
    return {"training_operator_cls": Witness, "num_workers": RANKS, "config": config, "use_gpu": False}


def tuner(trainable: Any, folder: Path, trials: int) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        param_space={
            "trial": tune.grid_search(list(range(trials))),
            "lr": tune.sample_from(lambda spec: [0.3, 0.1][spec.config.trial]),
        },
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(
            name="gangs", storage_path=str(folder), verbose=0, stop={"training_iteration": 1}
        ),
    )


def test_1_1_1_44_a_trainer_that_was_made_is_tuned(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        training_operator_cls=Digits,
        config={"samples": 60, BATCH_SIZE: 20, "width": {"a": 1}},
        num_workers=RANKS,
        num_cpus_per_worker=2,
        use_gpu=False,
    )
    assert trainer.apply_all_workers(torch.get_num_threads) == [2, 2]
    grid = tuner(trainer, tmp_path, 1).fit()
    assert grid.num_errors == 0
    assert grid[0].metrics["num_samples"] == 60
    with pytest.raises(GangError, match="the trainer was shut down"):
        trainer.train()


class Parent(Digits):
    """Worker 1 has descendants, one of which has left its session."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        folder = Path(config["folder"])
        if self.world_rank == 1 and not (folder / "family").exists():
            (folder / "family").write_text(" ".join(map(str, [os.getpid(), *Victim().spawn_family()])))


def family(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "family").read_text().split()]


def test_1_3_descendants_end_with_their_worker(tmp_path: Path) -> None:
    config = {"samples": 40, "folder": str(tmp_path)}
    with TorchTrainer(training_operator_cls=Parent, config=config, num_workers=2, use_gpu=False) as trainer:
        trainer.train()
        pids = family(tmp_path)
        assert alive(pids) == pids
        os.kill(pids[0], signal.SIGKILL)
        assert trainer.train()["epoch"] == 2, "another worker has taken its place"
        assert eventually(lambda: not alive(pids))


def test_1_3_descendants_end_with_the_driver(programs: Programs, tmp_path: Path) -> None:
    source = f"""
import time
import trainkit
from tests.train.test_promises import Parent
from trainkit.train import TorchTrainer
trainkit.init(num_cpus=2)
config = {{"samples": 40, "folder": {str(tmp_path)!r}}}
trainer = TorchTrainer(training_operator_cls=Parent, config=config, num_workers=2, use_gpu=False)
trainer.train()
print("trained", flush=True)
time.sleep(600)
"""
    driver = programs.begin(source)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "trained\n"
    everyone = [child.pid for child in psutil.Process(driver.pid).children(recursive=True)]
    driver.kill()
    assert eventually(lambda: not alive([*family(tmp_path), *everyone]))


class Together(Witness):
    """Its epoch ends once the workers of both trials have begun theirs."""

    def train_epoch(self, iterator: Any, info: Any, num_steps: int | None = None, epoch_idx: int = 0) -> Any:
        result = super().train_epoch(iterator, info, num_steps, epoch_idx)
        folder = Path(self.config["folder"])
        everyone = [folder / f"{trial}-{rank}.facts" for trial in (0, 1) for rank in range(RANKS)]
        assert eventually(lambda: all(path.exists() for path in everyone))
        return result


def test_1_18_trials_side_by_side_share_no_port_and_no_card(tmp_path: Path) -> None:
    arguments = {**options(tmp_path), "training_operator_cls": Together, "use_gpu": True, "backend": "gloo"}
    arguments["strategy"] = OnTheCPU()
    trainable = TorchTrainer.as_trainable(**arguments, initialization_hook=no_card)
    grid = tuner(trainable, tmp_path, 2).fit()
    assert grid.num_errors == 0
    workers = [worker for trial in (0, 1) for worker in facts(tmp_path, trial)]
    addresses, ports = zip(*(at for worker in workers for at in worker["listens"]), strict=True)
    assert {ip_address(address).is_loopback for address in addresses} == {True}
    assert len(set(ports)) == len(ports), "no two listen at one port"
    assert sorted(worker["cards"] for worker in workers) == ["0", "1", "2", "3"]
    for trial in (0, 1):
        first, second = facts(tmp_path, trial)
        assert first["config"] == second["config"] == {"trial": trial, "lr": [0.3, 0.1][trial]}


# Four trials of two processes each, two at a time, in a program that has used torch before: a good pair and a
# bad one, so that, whoever comes when, the bad ones are stopped at the first rung.
SCRIPT = """
import os
from pathlib import Path

import torch

with open("main", "a") as file:
    file.write(f"{os.getpid()}\\n")
torch.ones(64, 64).matmul(torch.ones(64, 64))

import trainkit
from trainkit import tune
from trainkit.train import TorchTrainer
from trainkit.tune.schedulers import ASHAScheduler
from tests.train.test_promises import Witness

if __name__ == "__main__":
    trainkit.init(num_cpus=4)
    config = {"samples": 80, "folder": str(Path.cwd())}
    arguments = {"training_operator_cls": Witness, "config": config, "num_workers": 2, "use_gpu": False}
    grid = tune.Tuner(
        TorchTrainer.as_trainable(**arguments),
        param_space={
            "trial": tune.grid_search([0, 1, 2, 3]),
            "lr": tune.sample_from(lambda spec: [0.3, 0.1, 1e-6, 1e-7][spec.config.trial]),
        },
        tune_config=tune.TuneConfig(
            metric="val_loss", mode="min", scheduler=ASHAScheduler(max_t=2, reduction_factor=2)
        ),
        run_config=tune.RunConfig(verbose=0),
    ).fit()
    alive = [actor for actor in trainkit.list_actors() if actor["state"] == "ALIVE"]
    print(grid.get_best_result().config["trial"], len(alive))
    print(grid.num_errors, grid.num_terminated, *(it.metrics["training_iteration"] for it in grid))
"""


def test_1_1_1_18_1_20_2_5_several_ranks_are_an_ordinary_trial_in_one_script(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = programs.folder
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(folder))
    script = programs.begin(SCRIPT)
    output, err = script.communicate(timeout=400)
    assert script.returncode == 0, err
    best, actors, errors, terminated, *epochs = map(int, output.split())
    assert (errors, terminated, actors) == (0, 4, 0)
    assert best in (0, 1)
    assert max(epochs[:2]) == 2
    assert epochs[2:] == [1, 1], "the bad ones were pruned"
    assert (folder / "main").read_text() == f"{script.pid}\n", "the script's body ran once"
    for trial in range(4):
        first, second = facts(folder, trial)
        assert first["config"] == second["config"]
        assert first["epochs"] == second["epochs"] == epochs[trial], "the ranks agree"
        for rank in range(RANKS):
            assert (folder / f"{trial}-{rank}.exit").exists(), "it ended as a program does"
