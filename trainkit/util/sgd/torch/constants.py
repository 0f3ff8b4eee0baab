"""Keys and values of RaySGD's configurations."""

from __future__ import annotations

from trainkit.train.keys import NUM_STEPS, USE_FP16

__all__ = [
    "NUM_STEPS",
    "SCHEDULER_STEP",
    "SCHEDULER_STEP_BATCH",
    "SCHEDULER_STEP_EPOCH",
    "SCHEDULER_STEP_MANUAL",
    "USE_FP16",
    "VALID_SCHEDULER_STEP",
]

SCHEDULER_STEP = "scheduler_step"
SCHEDULER_STEP_BATCH = "batch"
SCHEDULER_STEP_EPOCH = "epoch"
SCHEDULER_STEP_MANUAL = "manual"
VALID_SCHEDULER_STEP = {SCHEDULER_STEP_BATCH, SCHEDULER_STEP_EPOCH, SCHEDULER_STEP_MANUAL}
