"""What one machine makes of placement groups: which it can't give, and who starts in whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainkit.errors import InfeasibleError
from trainkit.resources import Bundle
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.runtime.specs import Placement, PlacementGroupId


def require_one_node(bundles: Sequence[Bundle], strategy: str) -> None:
    """Raise InfeasibleError if `strategy` needs more nodes than one machine is."""
    if strategy == "STRICT_SPREAD" and len(bundles) > 1:
        raise InfeasibleError(
            f"STRICT_SPREAD puts each of the {len(bundles)} bundles on another node, and this machine is "
            "one node; use 'SPREAD', which spreads them as far as there are nodes, or run on a cluster"
        )


def captured(placement: Placement, own: tuple[PlacementGroupId, list[Bundle]] | None) -> Placement:
    """Where something goes that a process starts.

    Args:
        placement: as asked for.
        own: the group of the process that asks, and its bundles; None if it is in none.

    Raises:
        InfeasibleError: the group captures it, and none of its bundles is large enough.
    """
    if own is None or not own[0].capture or placement.group is not None or placement.outside:
        return placement
    where, bundles = own
    PlacementGroup(where.group, bundles).require_room(placement.resources, -1)
    return replace(placement, group=PlacementGroupId(group=where.group, capture=True))
