"""Helpers where Ray's scripts look for them: `ray.util` with another first word."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not lazy: `placement_group` is a module here as well as a function, and the function must be set last.
from trainkit.util.actor_pool import ActorPool
from trainkit.util.debug import disable_log_once_globally, enable_periodic_logging, log_once
from trainkit.util.helpers import as_completed, map_unordered
from trainkit.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from trainkit.util.serialization import deregister_serializer, register_serializer
from trainkit.util.state import get_node_ip_address, list_named_actors

if TYPE_CHECKING:
    from trainkit.util import queue as queue
    from trainkit.util import scheduling_strategies as scheduling_strategies
    from trainkit.util import state as state

_MODULES = ("queue", "scheduling_strategies", "sgd", "state")

__all__ = [
    "ActorPool",
    "as_completed",
    "deregister_serializer",
    "disable_log_once_globally",
    "enable_periodic_logging",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "list_named_actors",
    "log_once",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "queue",
    "register_serializer",
    "remove_placement_group",
    "scheduling_strategies",
    "state",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'trainkit.util' has no attribute {name!r}")
    return importlib.import_module(f"trainkit.util.{name}")
