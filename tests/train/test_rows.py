"""Pains of users of other systems that concern trainers, numbered as in docs/promises.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.operators import Digits
from trainkit import tune
from trainkit.errors import GangError
from trainkit.train import BATCH_SIZE, TorchTrainer

# Four trials of two processes each, two at a time, in a program that has used torch and is in no file.
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import trainkit
from trainkit import tune
from trainkit.train import TorchTrainer, TrainingOperator

print("main body", torch.ones(64, 64).matmul(torch.ones(64, 64)).sum().item())

class Line(TrainingOperator):
    def setup(self, config):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 40).unsqueeze(1)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        loader = DataLoader(TensorDataset(x, 3 * x), batch_size=5)
        self.register_data(train_loader=loader, validation_loader=loader)

def step(trainer, info):
    trainer.train()
    seen = trainer.apply_all_operators(lambda it: (it.world_rank, it.world_size, it.config["lr"]))
    return {**trainer.validate(), "ranks": len(seen), "rates": len({lr for _, _, lr in seen})}

trainkit.init(num_cpus=4)
grid = tune.Tuner(
    TorchTrainer.as_trainable(
        training_operator_cls=Line, num_workers=2, use_gpu=False, override_tune_step=step
    ),
    param_space={"lr": tune.grid_search([0.1, 0.3, 1e-6, 1e-7])},
    tune_config=tune.TuneConfig(
        metric="val_loss", mode="min",
        scheduler=tune.schedulers.ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
    ),
    run_config=tune.RunConfig(name="trials", storage_path=FOLDER, verbose=0),
).fit()
print("errors", grid.num_errors, "terminated", grid.num_terminated)
print("best", grid.get_best_result().config["lr"] >= 0.1)
print("pruned", min(result.metrics["training_iteration"] for result in grid) < 4)
print("ranks", {(result.metrics["ranks"], result.metrics["rates"]) for result in grid})
print("actors", sum(actor["state"] == "ALIVE" for actor in trainkit.list_actors()))
"""


def test_row_1_1_1_18_1_20_2_5_trials_of_two_ranks_in_one_program(tmp_path: Path) -> None:
    code = PROGRAM.replace("FOLDER", repr(str(tmp_path / "results")))
    done = subprocess.run(
        [sys.executable, "-"],
        input=code,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        "main body 262144.0",
        "errors 0 terminated 4",
        "best True",
        "pruned True",
        "ranks {(2, 1)}",
        "actors 0",
    ]


def test_row_1_1_a_trainer_that_was_made_is_tuned(runtime: None, tmp_path: Path) -> None:
    trainer = TorchTrainer(
        training_operator_cls=Digits,
        config={"samples": 60, BATCH_SIZE: 20, "width": {"a": 1}},
        num_workers=2,
        num_cpus_per_worker=2,
        use_gpu=False,
    )
    assert trainer.apply_all_workers(torch.get_num_threads) == [2, 2]  # row 1.44
    grid = tune.Tuner(
        trainer,
        param_space={"lr": 0.2},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(
            name="made", storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 1}
        ),
    ).fit()
    assert grid.num_errors == 0 and grid[0].metrics["num_samples"] == 60
    with pytest.raises(GangError, match="it was shut down"):
        trainer.train()
