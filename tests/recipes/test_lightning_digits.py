"""The recipe for Lightning modules, in short form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def test_it_tunes_trains_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    options = "--tune 2 --epochs 2 --limit 600".split()
    done = subprocess.run(
        [sys.executable, "-m", "recipes.lightning_digits", "--output", str(tmp_path), *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    epochs = re.findall(r"epoch +(\d+)  loss ([\d.]+)  accuracy ([\d.]+)%", done.stdout)
    assert [epoch for epoch, _, _ in epochs] == ["1", "2"], done.stdout
    assert float(epochs[1][1]) < float(epochs[0][1])
    assert float(epochs[1][2]) > 40
    (width,) = re.findall(r"best configuration: lr=\S+, width=(\d+)", done.stdout)
    weights = torch.load(tmp_path / "checkpoint" / "state.pt", weights_only=True)["models"][0]
    assert len(weights["net.0.weight"]) == int(width)
