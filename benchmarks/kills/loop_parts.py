"""Programs with a loop of their own: a training function, and a script of `trainkit run`.

Both save after each epoch, and where `train.preempted()` says that the job ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.kills.job import OWN, Job
from benchmarks.kills.trainer_parts import BATCH, EPOCHS, Noisy
from trainkit import train
from trainkit.cli.main import main
from trainkit.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TorchTrainer,
)
from trainkit.train.torch import prepare_data_loader, prepare_model

WORKERS = 2
LOADERS = 2

State = dict[str, Any]


def run_of(job: Job) -> dict[str, Any]:
    """Return the arguments of a trainer for a run of two workers with a name, which survives its workers."""
    return {
        "scaling_config": ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 0.5}),
        "run_config": RunConfig(
            name="run",
            storage_path=str(job.kept),
            verbose=0,
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    }


def train_epochs(job: Job, rank: int, held: State | None, save: Callable[[State], bool]) -> None:
    """Train from a state, or from the begin.

    Args:
        job: place of the program.
        rank: rank of this process.
        held: state that `save` has received; None for the begin.
        save: function that saves the state of rank 0; returns False to end the loop.
    """
    job.enter("setup")
    torch.manual_seed(0)
    # Processes of a loader draw the same numbers again within an epoch only with seeds of the samples.
    loader = prepare_data_loader(
        DataLoader(Noisy(), BATCH // WORKERS, shuffle=True, num_workers=LOADERS), sample_seed=3
    )
    plain = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    parts = {"model": plain, "optimizer": optimizer, "loader": loader}
    state: State = {"epoch": 0, "step": 0, "losses": {}}
    if held is not None:
        state |= {name: held[name] for name in state}
        for name, part in parts.items():
            part.load_state_dict(held[name])
    model = prepare_model(plain)
    if rank == 0:
        job.ack("resumed", state["epoch"], state["step"])

    def saved() -> bool:
        return save(state | {name: part.state_dict() for name, part in parts.items()})

    for epoch in range(state["epoch"], EPOCHS):
        loader.sampler.set_epoch(epoch)
        for features, target in loader:
            job.enter("step")
            loss = nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state["step"] += 1
            state["losses"] |= {epoch + 1: loss.item()}
            job.step(rank, state["step"])
            if train.preempted() and not saved():
                return
        job.enter("validate")
        with torch.no_grad():
            for features, _ in DataLoader(Noisy(random=False), BATCH):
                plain(features)
        state["epoch"] += 1
        job.enter("save")
        if not saved():
            return
        if rank == 0:
            job.ack("epoch", epoch + 1, state["losses"][epoch + 1])


def outcome_of(state: State) -> dict[str, Any]:
    """Return the outcome of a program that has trained all epochs."""
    weights = [tensor.tolist() for tensor in state["model"].values()]
    return {
        "epoch": state["epoch"],
        "steps": state["step"],
        "losses": state["losses"],
        "weights": weights,
    }


def function(job: Job) -> None:
    """Train with a function on two workers, which reports its states."""
    fit = TorchTrainer(partial(loop, job=job), train_loop_config={}, **run_of(job)).fit()
    if fit.checkpoint is None:
        return
    state = torch.load(os.path.join(fit.checkpoint.path, OWN))
    if state["epoch"] == EPOCHS:
        job.finish(outcome_of(state))


def loop(config: dict[str, Any], job: Job) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    rank = train.get_context().get_world_rank()

    def save(state: State) -> bool:
        with tempfile.TemporaryDirectory(dir=job.folder) as folder:
            if rank == 0:
                torch.save(state, os.path.join(folder, OWN))
            metrics = {"loss": max(state["losses"].values()), "epoch": state["epoch"]}
            train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        return True

    held = train.get_checkpoint()
    state = None if held is None else torch.load(os.path.join(held.path, OWN))
    train_epochs(job, rank, state, save)


def run(job: Job) -> None:
    """Run this module as a script on two ranks."""
    flags = ["--workers", str(WORKERS), "--cpus-per-worker", "0.5"]
    if code := main(["run", *flags, "-m", "benchmarks.kills.loop_parts", str(job.folder)]):
        sys.exit(code)


def script() -> None:
    """Train on the ranks of `trainkit run`, which save their state themselves."""
    job = Job(Path(sys.argv[1]))
    train.preempted()  # from here on, a signal does not end this rank
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = job.kept / OWN

    def save(state: State) -> bool:
        if rank == 0:
            new = path.with_name(f"{OWN}.new")
            torch.save(state, new)
            new.replace(path)
        dist.barrier()
        return not train.preempted()

    train_epochs(job, rank, torch.load(path) if path.exists() else None, save)
    dist.barrier()
    if rank == 0:
        state = torch.load(path)
        if state["epoch"] == EPOCHS:
            job.finish(outcome_of(state))
    dist.destroy_process_group()


if __name__ == "__main__":
    script()
