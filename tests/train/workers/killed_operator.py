"""An operator whose workers are killed where a test wants it, and whose state has all that must survive."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from tests.train.operators import digits
from trainkit.train import BATCH_SIZE, TrainingOperator


class KilledOperator(TrainingOperator):
    """All that has to be as it was: weights, momentum, rates, dropout, shuffling, noise, a state of its own.

    At `config["at"]`, such as "train 4" for a step or "validate 1" for a pass, worker `config["rank"]` sends
    `config["signal"]` to worker `config["kill_rank"]`, or itself, once for each line of the file "lives".
    With `config["loaders"]` it kills a process of its own loader instead.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.maybe_die("setup")
        model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.register(
            models=model,
            optimizers=optimizer,
            criterion=nn.CrossEntropyLoss(),
            schedulers=StepLR(optimizer, 1, gamma=0.5),
        )
        data = digits(90, torch.float32)
        own = torch.Generator().manual_seed(11)
        size = config.get(BATCH_SIZE, 12)
        self.register_data(
            train_loader=DataLoader(data, size, shuffle=True, num_workers=config.get("loaders", 0)),
            validation_loader=DataLoader(data, size, shuffle=True, generator=own),
        )
        self.passes = 0

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        self.maybe_die(f"train {batch_info['global_step']}")
        noise = random.random() + float(np.random.rand())
        features = batch[0] + 0.01 * noise + 0.01 * torch.randn(batch[0].shape)
        return super().train_batch((features, batch[1]), batch_info)

    def validate(self, val_iterator: Any, info: dict[str, Any]) -> Any:
        self.maybe_die(f"validate {self.passes}")
        result = super().validate(val_iterator, info)
        self.passes += 1
        return {**result, "first_draw": float(torch.rand(()))}

    def state_dict(self) -> dict[str, Any]:
        self.maybe_die("save")
        return {"passes": self.passes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.passes = state_dict["passes"]

    def maybe_die(self, where: str) -> None:
        if "folder" not in self.config:
            return
        folder, rank = Path(self.config["folder"]), self.world_rank
        (folder / f"pid{rank}").write_text(f"{os.getpid()}")
        left = (folder / "lives").read_text().splitlines()
        if where == self.config["at"] and rank == self.config["rank"] and left:
            (folder / "lives").write_text("\n".join(left[1:]))
            if self.config.get("loaders"):
                # Of all children, as a test's process has other ones, which may have higher numbers.
                loaders = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
                loader = max(loaders, key=psutil.Process.create_time)
                loader.kill()
                time.sleep(60)  # torch's handler of SIGCHLD raises in it
                raise AssertionError(f"{loader} was killed, and torch did not report it")
            victim = self.config.get("kill_rank", rank)
            # Its own number is no other's: trials side by side share the folder.
            os.kill(
                os.getpid() if victim == rank else pid_of(folder, victim),
                self.config.get("signal", signal.SIGKILL),
            )


def pid_of(folder: Path, rank: int) -> int:
    return int((folder / f"pid{rank}").read_text())
