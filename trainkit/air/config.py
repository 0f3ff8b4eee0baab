"""Settings by the names of `ray.air.config`."""

from __future__ import annotations

from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig
from trainkit.tune.scaling import ScalingConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "ScalingConfig"]
