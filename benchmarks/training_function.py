"""Job of `benchmarks.training_torchrun`, as a training function: `python -m benchmarks.training_function`.

With `--serve` the first line of the input is a number of steps; the answer is the seconds that they took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import trainkit

# This comes first, so that workers import their modules while this script imports the same modules.
trainkit.init(num_cpus=2, num_gpus=0, preload=["torch"])

from benchmarks import training_torchrun  # noqa: E402
from benchmarks.training_job import WARM_UP, train_epoch, train_steps  # noqa: E402
from trainkit import train  # noqa: E402
from trainkit.train import RunConfig, ScalingConfig  # noqa: E402
from trainkit.train.torch import TorchTrainer  # noqa: E402


def digits(config: dict[str, Any]) -> None:
    """Train for an epoch, or for `config["steps"]` steps; report the loss and the seconds."""
    model, optimizer, loader = training_torchrun.make_parts()
    if config["steps"]:
        train_steps(model, optimizer, loader, WARM_UP)
    start = time.perf_counter()
    if config["steps"]:
        loss = train_steps(model, optimizer, loader, config["steps"])
    else:
        loss = train_epoch(model, optimizer, loader)
    train.report({"loss": loss, "took": time.perf_counter() - start})


def fit(folder: str, steps: int = 0) -> dict[str, Any]:
    """Return the last report of the function."""
    run = RunConfig(storage_path=folder, verbose=0)
    two = ScalingConfig(num_workers=2)
    trainer = TorchTrainer(digits, train_loop_config={"steps": steps}, scaling_config=two, run_config=run)
    metrics: dict[str, Any] = trainer.fit().metrics
    return metrics


def main() -> None:
    """Run one epoch, and one of a second trainer with its seconds; with `--serve`, the requested steps."""
    with tempfile.TemporaryDirectory() as folder:
        if "--serve" in sys.argv:
            print(f"took {fit(folder, int(sys.stdin.readline()))['took']}", flush=True)
            return
        for done in ("first epoch done", "second trainer took"):
            start = time.perf_counter()
            loss = fit(folder)["loss"]
            print(f"{done} {time.perf_counter() - start}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
