"""What the trainer costs, and what it saves: `python -m benchmarks.training`.

Prints a small table and one line of JSON. Both sides of each ratio take turns in the same run, one
thread a process, medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import trainkit
from benchmarks.training_data import make_data
from benchmarks.training_job import BATCH_SIZE, make_model, make_optimizer, train_epoch
from benchmarks.training_trainer import Digits
from trainkit.train import TorchTrainer

HERE = Path(__file__).resolve().parent
EPOCHS = 31
STARTS = 5
DONE = "first epoch done"


def epoch_times() -> tuple[list[float], list[float], list[float]]:
    """Seconds of an epoch: in a plain loop, in a trainer of one worker, and in the plain loop once more."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_model()
    data = make_data()
    optimizer, loader = make_optimizer(model), DataLoader(data, BATCH_SIZE, shuffle=True)
    sides: tuple[list[float], list[float], list[float]] = ([], [], [])
    with TorchTrainer(training_operator_cls=Digits, config={"data": data}, use_gpu=False) as trainer:
        plain = lambda: train_epoch(model, optimizer, loader)  # noqa: E731
        epochs = (plain, trainer.train, plain)
        for number in range(EPOCHS + 2):
            # The order turns, so that neither side always follows the other.
            for side in [(0, 1, 2), (2, 1, 0)][number % 2]:
                start = time.perf_counter()
                epochs[side]()
                if number >= 2:
                    sides[side].append(time.perf_counter() - start)
    trainkit.shutdown()
    return sides


def first_epoch(command: list[str]) -> float:
    """Seconds from starting `command` until it says that its first epoch is done."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE.parent
    ) as process:
        assert process.stdout is not None
        took = next((time.perf_counter() - start for line in process.stdout if DONE in line), None)
        _, errors = process.communicate(timeout=60)
    if took is None:
        raise RuntimeError(f"{command} did not finish an epoch:\n{errors}")
    return took


def main() -> None:
    """Measure and print."""
    plain, ours, plain_again = map(statistics.median, epoch_times())
    speed, noise = plain / ours, plain / plain_again
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    starts: dict[str, list[float]] = {"torchrun": [], "trainer": []}
    for _ in range(STARTS):
        starts["torchrun"].append(first_epoch([*launcher, str(HERE / "training_torchrun.py")]))
        starts["trainer"].append(first_epoch([sys.executable, str(HERE / "training_trainer.py")]))
    theirs_s, ours_s = statistics.median(starts["torchrun"]), statistics.median(starts["trainer"])

    print(f"{'work':<58}{'plain':>10}{'trainkit':>10}{'ratio':>8}{'aim':>8}")
    times = f"{plain * 1e3:>7.1f} ms{ours * 1e3:>7.1f} ms"
    print(f"{'an epoch on one worker, speed':<58}{times}{speed:>8.3f}{'0.98':>8}")
    print(f"{'  the plain loop against itself':<58}{'':>20}{noise:>8.3f}{'1.00':>8}")
    print(
        f"{'from nothing to the first epoch of two workers, time':<58}{theirs_s:>8.2f} s{ours_s:>8.2f} s"
        f"{ours_s / theirs_s:>8.2f}{'0.65':>8}"
    )
    print(
        json.dumps(
            {
                "benchmark": "training",
                "cores": os.cpu_count(),
                "epochs": EPOCHS,
                "plain_epoch_s": round(plain, 5),
                "trainer_epoch_s": round(ours, 5),
                "speed_of_plain": round(speed, 4),
                "plain_against_itself": round(noise, 4),
                "torchrun_first_epoch_s": [round(value, 2) for value in starts["torchrun"]],
                "trainer_first_epoch_s": [round(value, 2) for value in starts["trainer"]],
                "time_of_torchrun": round(ours_s / theirs_s, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
