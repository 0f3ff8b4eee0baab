"""Program with Lightning's Trainer in a training function, which reports a checkpoint after each step."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.kills.job import Job
from benchmarks.kills.loop_parts import LOADERS, WORKERS, run_of
from benchmarks.kills.trainer_parts import BATCH, EPOCHS, SAMPLES, Noisy
from trainkit import train
from trainkit.train import TorchTrainer
from trainkit.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)

FILE = RayTrainReportCallback.CHECKPOINT_NAME


class Line(pl.LightningModule):
    """Linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch."""
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Run the model on a batch."""
        self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Steps(pl.Callback):
    """Callback that notes phases and steps; it comes before the callback that reports."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Acknowledge the place from which the training continues."""
        if trainer.global_rank == 0:
            self.job.ack("resumed", 0, trainer.global_step)

    def on_train_batch_start(self, *batch: Any) -> None:
        """Note the phase."""
        self.job.enter("step")

    def on_validation_batch_start(self, *batch: Any) -> None:
        """Note the phase."""
        self.job.enter("validate")

    def on_train_batch_end(self, trainer: Any, *batch: Any) -> None:
        """Note the step."""
        self.job.step(trainer.global_rank, trainer.global_step)

    def on_save_checkpoint(self, *checkpoint: Any) -> None:
        """Note the phase."""
        self.job.enter("save")


class Places(pl.Callback):
    """Callback that acknowledges reported steps; it comes after the callback that reports."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_train_batch_end(self, trainer: Any, *batch: Any) -> None:
        """Acknowledge a step within an epoch; the last step of an epoch is reported later."""
        if trainer.global_rank == 0 and not trainer.is_last_batch:
            self.job.ack("place", trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Acknowledge the last step of an epoch."""
        if trainer.global_rank == 0:
            self.job.ack("place", trainer.global_step)


def loop(config: dict[str, Any], job: Job) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    job.enter("setup")
    torch.manual_seed(0)
    trainer = prepare_trainer(
        pl.Trainer(
            max_epochs=EPOCHS,
            devices="auto",
            accelerator="cpu",
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[Steps(job), RayTrainReportCallback(every_n_train_steps=1), Places(job)],
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
        )
    )
    held = train.get_checkpoint()
    trainer.fit(
        Line(),
        DataLoader(Noisy(random=False), BATCH // WORKERS, shuffle=True, num_workers=LOADERS),
        DataLoader(Noisy(random=False), SAMPLES // WORKERS),
        ckpt_path=None if held is None else os.path.join(held.path, FILE),
    )


def lightning(job: Job) -> None:
    """Train with Lightning on two workers."""
    fit = TorchTrainer(partial(loop, job=job), train_loop_config={}, **run_of(job)).fit()
    if fit.checkpoint is None:
        return
    state = torch.load(os.path.join(fit.checkpoint.path, FILE), weights_only=True)
    steps = EPOCHS * SAMPLES // BATCH
    if state["global_step"] == steps:
        weights = [tensor.tolist() for tensor in state["state_dict"].values()]
        job.finish({"epoch": EPOCHS, "steps": steps, "weights": weights})
