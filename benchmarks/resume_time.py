"""Time to continue within an epoch, and memory over many saves: `python -m benchmarks.resume_time`.

A trainer of two workers continues at several places of an epoch of a million samples, and is compared with a
trainer that starts. Prints a table, and its rows as one line of JSON.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainkit
from benchmarks.interleaved import in_turn
from benchmarks.rows import Report, Row, parser
from benchmarks.runtime_work import memory_mb
from trainkit.train import CheckpointConfig, TorchTrainer, TrainingOperator

WORKERS = 2
PLACES = (10, 50, 90)
"""Places in the epoch, in percent."""
FEATURES = 8


@dataclass(frozen=True)
class Sizes:
    """Amount of work."""

    samples: int = 1_000_000
    batches: int = 1_000
    rounds: int = 7
    saves: int = 1_000
    """Number of saves after which memory is compared with memory after a tenth of them."""


SMALL = Sizes(samples=1_000, batches=10, rounds=1, saves=10)


class Line(TrainingOperator):
    """Linear model that notes when its first step in this process ends."""

    def setup(self, config: dict[str, Any]) -> None:
        """Register the model and shuffled data."""
        sizes = config["sizes"]
        model = nn.Linear(FEATURES, 1)
        self.register(
            models=model, optimizers=torch.optim.SGD(model.parameters(), lr=1e-6), criterion=nn.MSELoss()
        )
        x = torch.ones(sizes.samples, FEATURES)
        data = TensorDataset(x, x[:, :1])
        self.register_data(
            train_loader=DataLoader(data, sizes.samples // sizes.batches // WORKERS, shuffle=True)
        )
        self.first: float | None = None

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        """Train, and note the time of the first step."""
        metrics = super().train_batch(batch, batch_info)
        self.first = self.first or time.monotonic()
        return metrics


def trainer(sizes: Sizes, **options: Any) -> Any:
    """Return a trainer of two workers, which share the CPUs."""
    return TorchTrainer(
        training_operator_cls=Line,
        config={"sizes": sizes},
        num_workers=WORKERS,
        num_cpus_per_worker=0.5,
        use_gpu=False,
        **options,
    )


def continue_times(sizes: Sizes) -> list[list[float]]:
    """Return the seconds from the making of a trainer to its first step: of a start, and at each place."""
    with tempfile.TemporaryDirectory() as folder:
        every = sizes.batches // 10
        with trainer(
            sizes, checkpoint_dir=folder, checkpoint_config=CheckpointConfig(every_steps=every)
        ) as first:
            first.train(num_steps=sizes.batches - 1)
        saved = sorted(Path(folder).glob("checkpoint_*"))

        def time_to_step(percent: int) -> float:
            begun = time.monotonic()
            with trainer(sizes) as later:
                if percent:
                    later.load(saved[percent // 10 - 1])
                # The number of steps includes those before the checkpoint.
                later.train(num_steps=percent * sizes.batches // 100 + 1, max_retries=0)
                return float(later.apply_all_operators(lambda operator: operator.first)[0]) - begun

        def side(percent: int) -> Callable[[], object]:
            return lambda: time_to_step(percent)

        return in_turn([side(percent) for percent in (0, *PLACES)], sizes.rounds, warm_up=1)


def memory_over_saves(sizes: Sizes) -> dict[str, float]:
    """Return the growth of memory, in MB, of the program and of the processes of its session."""
    held: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, trainer(SMALL) as saving:
        path = Path(folder, "saved")
        saving.train(num_steps=1)
        # Node, template and workers; a writer ends with its checkpoint.
        pids = [each.pid for each in psutil.Process().children(recursive=True)]
        for number in range(1, sizes.saves + 1):
            saving.train(num_steps=1)
            saving.save(path, wait=False)
            if number in (sizes.saves // 10, sizes.saves):
                saving.load(path)  # which waits for the write
                sizes_mb = [memory_mb(pid, "Rss") for pid in (os.getpid(), *pids)]
                held.append({"the program": sizes_mb[0], "its session": sum(sizes_mb[1:])})
    early, late = held
    return {name: late[name] - early[name] for name in early}


def main() -> None:
    """Measure and print the rows."""
    small = parser(__doc__).parse_args().small
    sizes = SMALL if small else Sizes()
    torch.set_num_threads(1)
    trainkit.init(num_cpus=2)
    with Report("resume_time", "a start", small=small) as report:
        start, *places = continue_times(sizes)
        for percent, took in zip(PLACES, places, strict=True):
            report.add(Row(f"to the first step at {percent} % of an epoch", "s").measured(took, start))
            beyond = [one - other for one, other in zip(took, start, strict=True)]
            report.add(Row(f"beyond a start at {percent} % of an epoch", "s").measured(beyond, plain=start))
        row = Row("to the first step at 90 % of an epoch, against 10 %", "s")
        report.add(row.measured(places[-1], places[0]))
        for name, grown in memory_over_saves(sizes).items():
            report.add(Row(f"{name} grows over many saves by", "MB").measured([grown]))
    trainkit.shutdown()


if __name__ == "__main__":
    sys.exit(main())
