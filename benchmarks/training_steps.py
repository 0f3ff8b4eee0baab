"""The measurements of `benchmarks.training` that take turns in one run: epochs, steps of two workers, and
what an epoch costs beside its steps.
"""

from __future__ import annotations

import inspect
import statistics
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.interleaved import LAUNCHER, Served, in_turn, timed
from benchmarks.training_data import make_data
from benchmarks.training_job import BATCH_SIZE, make_model, make_optimizer, train_epoch
from benchmarks.training_trainer import Digits
from trainkit.train import TorchTrainer

# Without the recovery snapshot, which has a row by itself.
BARE: dict[str, Any] = (
    {"max_retries": 0} if "max_retries" in inspect.signature(TorchTrainer.train).parameters else {}
)


def epoch_times(epochs: int) -> list[list[float]]:
    """Seconds of an epoch: in a plain loop, in a trainer of one worker, and in the plain loop once more."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, data = make_model(), make_data()
    optimizer, loader = make_optimizer(model), DataLoader(data, BATCH_SIZE, shuffle=True)

    def plain() -> None:
        train_epoch(model, optimizer, loader)

    with TorchTrainer(training_operator_cls=Digits, config={"data": data}, use_gpu=False) as trainer:
        return in_turn((plain, lambda: timed(lambda: trainer.train(**BARE)), plain), epochs)


def two_worker_times(steps: int, rounds: int) -> list[list[float]]:
    """Seconds of `steps` steps of two workers: under torchrun, and in a trainer; both are up all the time."""
    with (
        Served([*LAUNCHER, "-m", "benchmarks.training_torchrun", "--serve"]) as theirs,
        TorchTrainer(
            training_operator_cls=Digits, config={"data": make_data()}, num_workers=2, use_gpu=False
        ) as trainer,
    ):
        ours = lambda: timed(lambda: trainer.train(num_steps=steps, **BARE))  # noqa: E731
        return in_turn((lambda: theirs.steps(steps), ours), rounds)


class Timed(Digits):
    """Knows how long its last step took."""

    step_s = 0.0

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        start = time.perf_counter()
        metrics = super().train_batch(batch, batch_info)
        self.step_s = time.perf_counter() - start
        return metrics


def bookkeeping(workers: int, rounds: int) -> tuple[float, float | None]:
    """Seconds of an epoch of one step less the step and its batch; and what the recovery snapshot adds.

    The second is None if this trainer takes none.
    """
    data = make_data()
    loader = DataLoader(data, BATCH_SIZE, shuffle=True)
    with TorchTrainer(
        training_operator_cls=Timed, config={"data": data}, num_workers=workers, use_gpu=False
    ) as trainer:
        epochs, snapshots = [], []
        for number in range(rounds + 5):
            took = timed(lambda: trainer.train(num_steps=1, **BARE))
            step_s = trainer.apply_all_operators(lambda operator: operator.step_s)[0]  # type: ignore[attr-defined]
            batch_s = timed(lambda: next(iter(loader)))
            if number >= 5:
                epochs.append(took - step_s - batch_s)
            if BARE:
                # An epoch that was run without one leaves the next to take one before, too.
                trainer.train(num_steps=1)
                with_snapshot = timed(lambda: trainer.train(num_steps=1))
                if number >= 5:
                    snapshots.append(with_snapshot - took)
    return statistics.median(epochs), statistics.median(snapshots) if snapshots else None


def held_bytes(operator: Any) -> int:
    """Bytes of parameters and optimizer state that a worker holds."""
    tensors = list(operator.model.parameters())
    for optimizer in operator.optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def memory(strategy: str) -> int | None:
    """The largest `held_bytes` of two workers after a step; None if there is no such strategy."""
    from trainkit.train.strategies.base import STRATEGIES

    if strategy not in STRATEGIES.own_names():
        return None
    with TorchTrainer(
        training_operator_cls=Digits,
        config={"data": make_data()},
        num_workers=2,
        strategy=strategy,
        use_gpu=False,
    ) as trainer:
        trainer.train(num_steps=1)
        return max(trainer.apply_all_operators(held_bytes))
