"""A Lightning module's worker is killed, and the run goes on as if it had not been."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.lightning_modules import Points
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

PRELOAD = ("torch", "pytorch_lightning")

pytestmark = pytest.mark.usefixtures("runtime")


class Fragile(Points):
    """Worker 1 is killed in the middle of an epoch, once, if there is a file of its life; it drops units."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.net.insert(1, torch.nn.Dropout(0.2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        life = Path(self.config["life"])
        if (self.global_rank, self.current_epoch, batch_idx) == (1, 1, 2) and life.exists():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def run(life: Path) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(7)
    with TorchTrainer(
        training_operator_cls=TrainingOperator.from_ptl(Fragile),
        config={BATCH_SIZE: 20, "life": str(life)},
        num_workers=2,
        use_gpu=False,
        timeout_s=60,
    ) as gang:
        numbers = [gang.train(), gang.validate(), gang.train(), gang.train()]
        return numbers, gang.get_model().state_dict()


def test_a_killed_worker_changes_no_number(tmp_path: Path) -> None:
    life = tmp_path / "life"
    numbers, weights = run(life)
    life.touch()
    again, same = run(life)
    assert not life.exists()
    assert again == numbers
    assert all(torch.equal(value, same[name]) for name, value in weights.items())
