"""Where a process is to go, in Ray's words: scheduling strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainkit.errors import ConfigError

if TYPE_CHECKING:
    from trainkit.runtime.placement_group import PlacementGroup


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """Take the resources from a placement group.

    Args:
        placement_group: the group; None takes them from the machine, also in a process whose own group
            captures what it starts.
        placement_group_bundle_index: which of its bundles; -1 any that fits.
        placement_group_capture_child_tasks: what runs there starts its own tasks and actors in the same
            group, unless they say otherwise; default False.
    """

    placement_group: PlacementGroup | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


SchedulingStrategy = Literal["DEFAULT", "SPREAD"] | PlacementGroupSchedulingStrategy | None


def checked_strategy(strategy: SchedulingStrategy) -> SchedulingStrategy:
    """`strategy` itself; raises ConfigError if it is none."""
    if strategy in (None, "DEFAULT", "SPREAD") or isinstance(strategy, PlacementGroupSchedulingStrategy):
        return strategy
    raise ConfigError(
        f"scheduling_strategy={strategy!r}; there are 'DEFAULT', 'SPREAD' (the same on one machine) and "
        "PlacementGroupSchedulingStrategy"
    )
