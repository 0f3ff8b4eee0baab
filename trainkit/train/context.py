"""What an operator is told about the worker it runs in."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trainkit.train.step_settings import StepSettings
from trainkit.train.strategies.base import Place, Strategy
from trainkit.train.strategies.single import SingleStrategy


def _alone() -> Strategy:
    return SingleStrategy(Place(devices=(torch.device("cpu"),)))


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Given to an operator's constructor; the default is a single process on the CPU.

    Attributes:
        strategy: how models and data are spread.
        local_rank: this worker's number among those of its machine.
        step: precision, accumulation, clipping.
        use_tqdm: whether a progress bar is wanted.
        scheduler_step_freq: "batch", "epoch", "manual", or None if there are no schedulers.
    """

    strategy: Strategy = field(default_factory=_alone)
    local_rank: int = 0
    step: StepSettings = field(default_factory=StepSettings)
    use_tqdm: bool = False
    scheduler_step_freq: str | None = None
