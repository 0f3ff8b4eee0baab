"""Programs that train an operator, under each strategy, and save it themselves."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.kills.findings import of_kind
from benchmarks.kills.job import Job
from trainkit.train import TorchTrainer, TrainingOperator

EPOCHS = 5
SAMPLES, BATCH = 48, 8
SAMPLE_S = 0.01
"""Seconds that a sample takes, so that faults hit the middle of an epoch."""
TIMEOUT_S = 20


def strategy(name: str) -> dict[str, Any]:
    """Return the arguments of the trainer for a strategy, and import nothing that it does not need."""
    if name == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        from trainkit.train.strategies.tensor import TensorParallel

        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return {"num_workers": 2, "strategy": TensorParallel(degree=2, plan=plan)}
    if name == "pipeline":
        from trainkit.plugins.pipeline.pipeline import Pipeline

        return {"num_workers": 2, "strategy": Pipeline(degree=2)}
    if name == "background":
        return {"num_workers": 2}
    config = {"loaders": 1} if name == "ddp" else {}
    return {"num_workers": 1 if name == "single" else 2, "strategy": name, "config": config}


class Noisy(Dataset[Any]):
    """Samples with random noise, which the process that loads a sample draws.

    Args:
        random: False for samples without noise.
    """

    def __init__(self, *, random: bool = True) -> None:
        self._random = random

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(SAMPLE_S)
        x = torch.full((4,), index / SAMPLES)
        if self._random:
            x += 0.01 * torch.rand(4)
        return x, x.sum().reshape(1) ** 2


class Curve(TrainingOperator):
    """Small network, with everything whose state must survive: Adam, dropout, shuffling, noise."""

    def setup(self, config: dict[str, Any]) -> None:
        """Register the network and its data."""
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 1)
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        loaders = config.get("loaders", 0)
        # Processes of a loader draw the same numbers again within an epoch only with seeds of the samples.
        seed = 3 if loaders else None
        loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=loaders)
        # Validation draws no random numbers, because it is left out if the program ends after the epoch.
        plain = DataLoader(Noisy(random=False), BATCH, generator=torch.Generator())
        held_out = plain if config.get("validates") else None
        self.register_data(train_loader=loader, validation_loader=held_out, sample_seed=seed)


def operator(job: Job, name: str) -> None:
    """Train with the strategy of this name, and acknowledge each epoch and each place that is saved."""
    with _trainer(name) as trainer:
        epoch = _resume(job, trainer)
        with _saved_at_signals(job, trainer):
            while epoch < EPOCHS:
                result = trainer.train()
                epoch = result["epoch"]
                trainer.save(_path(job))
                job.ack("epoch", epoch, result["train_loss"])
        outcome = _outcome(trainer)
    _finish(job, outcome)


def background(job: Job) -> None:
    """Train while another process writes the checkpoints, and acknowledge each epoch once it is written."""
    written: list[tuple[int, float]] = []

    def acknowledge() -> None:
        while written:
            job.ack("epoch", *written.pop())

    with _trainer("background") as trainer:
        epoch = _resume(job, trainer)
        with _saved_at_signals(job, trainer):
            while epoch < EPOCHS:
                result = trainer.train()
                epoch = result["epoch"]
                trainer.save(_path(job), wait=False)
                acknowledge()  # this save has waited for the previous one
                written.append((epoch, result["train_loss"]))
        outcome = _outcome(trainer)
    acknowledge()
    _finish(job, outcome)


def _trainer(name: str) -> Any:
    torch.manual_seed(7)
    return TorchTrainer(
        training_operator_cls=Curve,
        use_gpu=False,
        timeout_s=TIMEOUT_S,
        num_cpus_per_worker=0.5,
        **strategy(name),
    )


def _path(job: Job) -> Path:
    return job.kept / "saved"


def _saved(job: Job) -> tuple[int, int]:
    """Return the epoch and the step of the checkpoint."""
    found = json.loads((_path(job) / "checkpoint.json").read_text())
    return found["epoch"], found["global_step"]


def _resume(job: Job, trainer: Any) -> int:
    """Load the checkpoint if there is one, and return its epoch."""
    epoch = step = 0
    if _path(job).exists():
        trainer.load(_path(job))
        epoch, step = _saved(job)
    job.ack("resumed", epoch, step)
    return epoch


@contextlib.contextmanager
def _saved_at_signals(job: Job, trainer: Any) -> Iterator[None]:
    """Save the place in the epoch at SIGTERM and SIGINT, and acknowledge it."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        trainer.save(_path(job))
        job.ack("place", _saved(job)[1])
        raise


def _outcome(trainer: Any) -> dict[str, Any]:
    state = trainer.state_dict()
    weights = [parameter.tolist() for parameter in trainer.get_model().parameters()]
    return {"epoch": state["epoch"], "steps": state["global_step"], "weights": weights}


def _finish(job: Job, outcome: dict[str, Any]) -> None:
    job.finish({**outcome, "losses": dict(of_kind(job.lines(), "epoch"))})
