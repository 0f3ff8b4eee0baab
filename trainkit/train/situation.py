"""What an operator knows of the worker that it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainkit.train.context import WorkerContext
from trainkit.train.timers import TimerCollection


class Situated:
    """Base of `TrainingOperator`: its configuration, its place among the workers, and its timers.

    Args:
        config: the user's configuration.
        context: the worker; default, a single process on the CPU.
    """

    timers: TimerCollection
    """Durations by name, measured in calls with `profile=True`: `with self.timers.record("fwd"): ...`"""

    def __init__(self, config: Mapping[str, Any] | None = None, context: WorkerContext | None = None) -> None:
        self._config = dict(config or {})
        self._context = context or WorkerContext()
        device = self._context.strategy.devices[0]
        # A GPU works behind the clock's back: who asks for a profile asks to wait for it.
        waits = device.type == "cuda"
        self.timers = TimerCollection((lambda: torch.cuda.synchronize(device)) if waits else None)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that `setup` was given."""
        return self._config

    @property
    def device(self) -> torch.device:
        """Where this worker's batches and models go."""
        return self._context.strategy.devices[0]

    @property
    def devices(self) -> list[torch.device]:
        """All devices of this worker."""
        return list(self._context.strategy.devices)

    @property
    def world_rank(self) -> int:
        """This worker's number among all, from 0."""
        return self._context.strategy.group.rank

    @property
    def local_rank(self) -> int:
        """This worker's number among those of its machine."""
        return self._context.local_rank

    @property
    def world_size(self) -> int:
        """How many workers train together."""
        return self._context.strategy.group.world_size

    @property
    def use_gpu(self) -> bool:
        """Whether this worker trains on a GPU."""
        return self.device.type == "cuda"

    @property
    def device_ids(self) -> list[int] | None:
        """Indices of this worker's GPUs, as `DistributedDataParallel` takes them; None without."""
        indices = [device.index for device in self.devices if device.index is not None]
        return indices if self.use_gpu else None

    @property
    def use_fp16(self) -> bool:
        """Whether it trains with `precision="fp16"`."""
        return self._context.step.precision == "fp16"

    @property
    def use_tqdm(self) -> bool:
        """Whether a progress bar is shown."""
        return self._context.use_tqdm

    @property
    def scheduler_step_freq(self) -> str | None:
        """When schedulers are stepped: "batch", "epoch" or "manual"."""
        return self._context.scheduler_step_freq
