"""A trial that the tests of several trackers log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainkit import tune


@pytest.fixture
def fails_twice(tmp_path: Path) -> Callable[[dict[str, Any]], None]:
    """A trainable of four reports that fails with lr=1 after the second, and again after the third."""

    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        first = checkpoint.get_metadata()["step"] + 1 if checkpoint else 1
        for step in range(first, 5):
            folder = Path(tune.get_context().get_trial_dir(), "scratch")
            folder.mkdir(exist_ok=True)
            saved = tune.Checkpoint(folder)
            saved.set_metadata({"step": step})
            tune.report({"loss": float(step)}, checkpoint=saved)
            marker = Path(tmp_path, f"{config['lr']}_{step}")
            if config["lr"] == 1.0 and step in (2, 3) and not marker.exists():
                marker.touch()
                raise ValueError

    return train
