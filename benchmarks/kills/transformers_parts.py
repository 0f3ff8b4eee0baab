"""Program with Transformers' Trainer in a training function, which reports a checkpoint after each step."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from benchmarks.kills.job import Job
from benchmarks.kills.loop_parts import LOADERS, WORKERS, run_of
from benchmarks.kills.trainer_parts import BATCH
from trainkit import train
from trainkit.train import TorchTrainer
from trainkit.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

EPOCHS = 2
SAMPLES = 48
FOLDER = RayTrainReportCallback.CHECKPOINT_NAME
SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


class Steps(TrainerCallback):  # type: ignore[misc]
    """Callback that notes phases and steps; it comes before the callback that reports."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.rank = rank

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Acknowledge the place from which the training continues."""
        if self.rank == 0:
            self.job.ack("resumed", 0, state.global_step)

    def on_step_begin(self, *state: Any, **more: Any) -> None:
        """Note the phase."""
        self.job.enter("step")

    def on_prediction_step(self, *state: Any, **more: Any) -> None:
        """Note the phase."""
        self.job.enter("validate")

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Note the step, which is saved next."""
        self.job.step(self.rank, state.global_step)
        self.job.enter("save")


class Places(TrainerCallback):  # type: ignore[misc]
    """Callback that acknowledges reported steps; it comes after the callback that reports."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        self.rank = rank

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Acknowledge the step."""
        if self.rank == 0:
            self.job.ack("place", state.global_step)


def loop(config: dict[str, Any], job: Job) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    job.enter("setup")
    set_seed(0)
    context = train.get_context()
    rank = context.get_world_rank()
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **SIZE))
    words = torch.randint(50, (SAMPLES, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": each, "labels": (each[0] < 25).long()} for each in words]
    arguments = TrainingArguments(
        output_dir=os.path.join(context.get_trial_dir(), "transformers"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH // WORKERS,
        dataloader_num_workers=LOADERS,
        # Evaluated before the save, which so has the generators after the evaluation.
        eval_strategy="steps",
        eval_steps=SAMPLES // BATCH,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16])
    for callback in (Steps(job, rank), RayTrainReportCallback(), Places(job, rank)):
        trainer.add_callback(callback)
    trainer = prepare_trainer(trainer)
    held = train.get_checkpoint()
    trainer.train(resume_from_checkpoint=None if held is None else os.path.join(held.path, FOLDER))


def transformers(job: Job) -> None:
    """Train with Transformers on two workers."""
    fit = TorchTrainer(partial(loop, job=job), train_loop_config={}, **run_of(job)).fit()
    if fit.checkpoint is None:
        return
    folder = Path(fit.checkpoint.path, FOLDER)
    steps = EPOCHS * SAMPLES // BATCH
    if json.loads((folder / "trainer_state.json").read_text())["global_step"] == steps:
        weights = [tensor.tolist() for _, tensor in sorted(load_file(folder / "model.safetensors").items())]
        job.finish({"epoch": EPOCHS, "steps": steps, "weights": weights})
