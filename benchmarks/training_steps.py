"""Measurements of `benchmarks.training` that take turns in one run: epochs, steps of two workers, and the
overhead of an epoch beside its steps.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

import trainkit
from benchmarks.interleaved import LAUNCHER, Served, in_turn, timed
from benchmarks.training_data import make_data
from benchmarks.training_job import BATCH_SIZE, make_model, make_optimizer, train_epoch
from benchmarks.training_trainer import Digits
from trainkit.train import TorchTrainer

BARE: dict[str, Any] = {"max_retries": 0}
"""Arguments that turn off the recovery snapshot, which has a separate row."""


def epoch_times(epochs: int, cores: int) -> list[list[float]]:
    """Return the seconds of epochs in a trainer of one worker and in a plain loop, each on `cores` cores."""
    # The trainer's worker inherits the allowed cores from a session that begins with them.
    trainkit.shutdown()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, data = make_model(), make_data()
    optimizer, loader = make_optimizer(model), DataLoader(data, BATCH_SIZE, shuffle=True)

    def plain() -> None:
        train_epoch(model, optimizer, loader)

    try:
        with TorchTrainer(training_operator_cls=Digits, config={"data": data}, use_gpu=False) as trainer:
            return in_turn((lambda: timed(lambda: trainer.train(**BARE)), plain), epochs)
    finally:
        os.sched_setaffinity(0, allowed)
        trainkit.shutdown()


def two_worker_times(steps: int, rounds: int) -> list[list[float]]:
    """Return the seconds of `steps` steps of two workers: in a trainer, and under torchrun; both stay up."""
    with (
        Served([*LAUNCHER, "-m", "benchmarks.training_torchrun", "--serve", *sys.argv[1:]]) as theirs,
        TorchTrainer(
            training_operator_cls=Digits, config={"data": make_data()}, num_workers=2, use_gpu=False
        ) as trainer,
    ):
        ours = lambda: timed(lambda: trainer.train(num_steps=steps, **BARE))  # noqa: E731
        return in_turn((ours, lambda: theirs.steps(steps)), rounds)


class Timed(Digits):
    """Operator that records how long its last step took."""

    step_s = 0.0

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        start = time.perf_counter()
        metrics = super().train_batch(batch, batch_info)
        self.step_s = time.perf_counter() - start
        return metrics


def bookkeeping(workers: int, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Return seconds of overhead of a one-step epoch, of the recovery snapshot, and of making a batch.

    The overhead is the epoch's time without the step and its batch. Making a batch is the plain work.
    """
    data = make_data()
    loader = DataLoader(data, BATCH_SIZE, shuffle=True)
    with TorchTrainer(
        training_operator_cls=Timed, config={"data": data}, num_workers=workers, use_gpu=False
    ) as trainer:
        epochs, snapshots, batches = [], [], []
        for number in range(rounds + 5):
            took = timed(lambda: trainer.train(num_steps=1, **BARE))
            step_s = trainer.apply_all_operators(lambda operator: operator.step_s)[0]  # type: ignore[attr-defined]
            batch_s = timed(lambda: next(iter(loader)))
            # After an epoch without a snapshot, the next one also takes a snapshot before it begins.
            trainer.train(num_steps=1)
            with_snapshot = timed(lambda: trainer.train(num_steps=1))
            if number >= 5:
                epochs.append(took - step_s - batch_s)
                snapshots.append(with_snapshot - took)
                batches.append(batch_s)
    return epochs, snapshots, batches


def held_bytes(operator: Any) -> int:
    """Return the bytes of parameters and optimizer state that a worker holds."""
    tensors = list(operator.model.parameters())
    for optimizer in operator.optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def memory(strategy: str) -> float:
    """Return the larger `held_bytes` of two workers after a step, in KB."""
    with TorchTrainer(
        training_operator_cls=Digits,
        config={"data": make_data()},
        num_workers=2,
        strategy=strategy,
        use_gpu=False,
    ) as trainer:
        trainer.train(num_steps=1)
        return max(trainer.apply_all_operators(held_bytes)) / 1e3
