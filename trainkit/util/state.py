"""What a session holds, by the names of `ray.util.state`; see the verbs of `trainkit` that these are."""

from __future__ import annotations

from trainkit.runtime.api import list_actors, list_objects, list_placement_groups, list_tasks
from trainkit.runtime.api import nodes as list_nodes

__all__ = ["list_actors", "list_nodes", "list_objects", "list_placement_groups", "list_tasks"]
