"""Programs that train: an operator under each strategy, and a training function."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.kills.findings import of_kind
from benchmarks.kills.job import OWN, Job
from trainkit import train
from trainkit.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TorchTrainer,
    TrainingOperator,
)
from trainkit.train.torch import prepare_data_loader, prepare_model

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
    """Samples with random noise, which the process that loads a sample draws."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(SAMPLE_S)
        x = torch.full((4,), index / SAMPLES) + 0.01 * torch.rand(4)
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
        self.register_data(train_loader=loader, sample_seed=seed)


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
    return job.kept / "checkpoint"


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


def function(job: Job) -> None:
    """Train with a function on two workers, which reports each epoch with a checkpoint."""
    fit = TorchTrainer(
        partial(loop, job=job),
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="run",
            storage_path=str(job.kept),
            verbose=0,
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    if fit.checkpoint is None:
        return
    state = torch.load(os.path.join(fit.checkpoint.path, OWN))
    if state["epoch"] == EPOCHS:
        losses = dict(fit.metrics_dataframe[["epoch", "loss"]].values.tolist())
        weights = [tensor.tolist() for tensor in state["model"].values()]
        job.finish({"epoch": EPOCHS, "weights": weights, "losses": {int(at): losses[at] for at in losses}})


def loop(config: dict[str, Any], job: Job) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = prepare_data_loader(DataLoader(data, BATCH, shuffle=True, num_workers=1))
    plain, epoch = nn.Linear(4, 1), 0
    if (checkpoint := train.get_checkpoint()) is not None:
        state = torch.load(os.path.join(checkpoint.path, OWN))
        plain.load_state_dict(state["model"])
        epoch = state["epoch"]
    model = prepare_model(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rank = train.get_context().get_world_rank()
    if rank == 0:
        job.ack("resumed", epoch)
    while epoch < EPOCHS:
        loader.sampler.set_epoch(epoch)
        epoch += 1
        for features, target in loader:
            time.sleep(SAMPLE_S * BATCH)
            loss = nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory(dir=job.folder) as folder:
            if rank == 0:
                torch.save({"model": plain.state_dict(), "epoch": epoch}, os.path.join(folder, OWN))
            metrics = {"loss": loss.item(), "epoch": epoch}
            train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        if rank == 0:
            job.ack("epoch", epoch, metrics["loss"])
