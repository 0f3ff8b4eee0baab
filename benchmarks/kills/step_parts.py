"""Programs that train an operator with automatic checkpoints: killed anywhere, the same command continues."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.kills.findings import of_kind
from benchmarks.kills.job import Job
from benchmarks.kills.trainer_parts import EPOCHS, TIMEOUT_S, Curve
from trainkit.train import CheckpointConfig, TorchTrainer

EVERY_STEPS = 2
LOADERS = 2
COMPILE_TIMEOUT_S = 200


def newest(folder: Path) -> tuple[int, int]:
    """Return the epoch and the step of the newest complete checkpoint; (0, 0) if there is none."""
    for file in sorted(folder.glob("checkpoint_??????/checkpoint.json"), reverse=True):
        with contextlib.suppress(FileNotFoundError):  # its checkpoint was outdated, and deleted meanwhile
            state = json.loads(file.read_text())
            return state["epoch"], state["global_step"]
    return 0, 0


class Stepping(Curve):
    """Network that notes its phases and steps, and acknowledges each place whose checkpoint is complete."""

    def setup(self, config: dict[str, Any]) -> None:
        """Register the network and its data."""
        self.job, self.folder = Job(Path(config["job"])), Path(config["folder"])
        self.place = 0
        self.first = "compile" if config["compiled"] else "step"
        self.job.enter("setup")
        super().setup(config)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        """Make a step, and note it."""
        self.job.enter(self.first)
        self.first = "step"
        metrics = super().train_batch(batch, batch_info)
        self.job.step(self.world_rank, self.global_step + 1)
        if self.world_rank == 0 and (place := newest(self.folder)[1]) > self.place:
            self.place = place
            self.job.ack("place", place)
        return metrics

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        """Validate a batch."""
        self.job.enter("validate")
        return super().validate_batch(batch, batch_info)

    def state_dict(self) -> dict[str, Any]:
        """Note that the state is copied for a checkpoint."""
        self.job.enter("save")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load nothing, because there is no state of its own."""


def steps(job: Job, name: str) -> None:
    """Train on two workers with checkpoints by steps, compiled if `name` says so."""
    torch.manual_seed(7)
    compiled = name == "compiled"
    folder = job.kept / "checkpoints"
    with TorchTrainer(
        training_operator_cls=Stepping,
        use_gpu=False,
        timeout_s=COMPILE_TIMEOUT_S if compiled else TIMEOUT_S,
        num_workers=2,
        num_cpus_per_worker=0.5,
        compile=compiled,
        checkpoint_dir=folder,
        checkpoint_config=CheckpointConfig(every_steps=EVERY_STEPS, num_to_keep=2),
        config={
            "job": str(job.folder),
            "folder": str(folder),
            "loaders": LOADERS,
            "validates": True,
            "compiled": compiled,
        },
    ) as trainer:
        job.ack("resumed", trainer.epoch, trainer.global_step)
        while trainer.epoch < (2 if compiled else EPOCHS):
            result = trainer.train()
            job.ack("loss", result["epoch"], result["train_loss"])
            trainer.validate()
        weights = [parameter.tolist() for parameter in trainer.get_model().parameters()]
        outcome = {"epoch": trainer.epoch, "steps": trainer.global_step, "weights": weights}
    job.finish({**outcome, "losses": dict(of_kind(job.lines(), "loss"))})
