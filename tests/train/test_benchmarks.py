"""The benchmarks run: on the smallest sizes, without a look at their figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> dict[str, Any]:
    """The figures in a benchmark's last line."""
    done = run_python("-m", *arguments, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=500)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
def test_the_gpu_benchmark_runs_without_gpus() -> None:
    pytest.importorskip("torchvision")
    told = run("benchmarks.gpu", "--device", "cpu", "--small")
    assert [row["name"] for row in told["rows"]] == [
        "one device: a step",
        "two workers, DDP (torchrun): a step",
        "two workers, FSDP2: a step",
        "two workers, pipeline of two stages: a step",
        "one worker, layers on two devices: a step",
    ]
    assert list(told["skipped"]) == ["one device: high-water mark of memory"]
