"""Where a process is to go, by the names of `ray.util.scheduling_strategies`."""

from __future__ import annotations

from trainkit.runtime.scheduling import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
    SchedulingStrategy,
)

__all__ = ["NodeAffinitySchedulingStrategy", "PlacementGroupSchedulingStrategy", "SchedulingStrategy"]
