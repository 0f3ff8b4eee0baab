"""Placement groups, by the names of `ray.util.placement_group`."""

from __future__ import annotations

from typing import Any

from trainkit.runtime.api import (
    get_current_placement_group,
    get_placement_group,
    list_placement_groups,
    placement_group,
    remove_placement_group,
)
from trainkit.runtime.placement_group import PlacementGroup

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]


def placement_group_table(group: PlacementGroup | None = None) -> dict[str, Any]:
    """What is known of one placement group, or of all.

    Args:
        group: None for all of the session's.

    Returns:
        For one group, its entry of `trainkit.list_placement_groups()`, empty if it was removed; for all,
        such entries by id.
    """
    entries = {entry["placement_group_id"]: entry for entry in list_placement_groups()}
    return entries if group is None else entries.get(f"{group.id:016x}", {})
