"""Runs of the loops in `library_loops`: by a function trainer, and under torchrun."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import run_python
from tests.pages import ROOT
from trainkit.train import RunConfig, ScalingConfig
from trainkit.train.torch import TorchTrainer


def trainer(loop: Callable[..., Any], folder: Path, config: Any = None, **more: Any) -> TorchTrainer:
    """Return a trainer of two workers."""
    run = RunConfig(storage_path=str(folder), verbose=0, **more.pop("run", {}))
    scaling = ScalingConfig(num_workers=more.pop("workers", 2))
    return TorchTrainer(loop, train_loop_config=config or {}, scaling_config=scaling, run_config=run, **more)


def under_torchrun(folder: Path, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Return the reports of these loops, run by torchrun on two processes."""
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 -m tests.train.torch.library_loops"
    own = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"}
    run_python(*command.split(), str(folder), *names, cwd=ROOT, env=os.environ | own)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}


def column(reports: list[dict[str, Any]], name: str) -> list[Any]:
    return [report[name] for report in reports]
