"""Helpers where Ray's scripts look for them: `ray.util` with another first word."""

# Not lazy: `placement_group` is a module here as well as a function, and the function must be set last.
from trainkit.util.actor_pool import ActorPool
from trainkit.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "ActorPool",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]
