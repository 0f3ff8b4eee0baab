"""Where a process is to go, by the names of `ray.util.scheduling_strategies`."""

from __future__ import annotations

from trainkit.runtime.labels import DoesNotExist, Exists, In, NodeLabelSchedulingStrategy, NotIn
from trainkit.runtime.scheduling import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
    SchedulingStrategy,
)

__all__ = [
    "DoesNotExist",
    "Exists",
    "In",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "NotIn",
    "PlacementGroupSchedulingStrategy",
    "SchedulingStrategy",
]
