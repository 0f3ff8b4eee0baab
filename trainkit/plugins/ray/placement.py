"""Translation of placement requests into Ray's options."""

from __future__ import annotations

import math
from typing import Any

import ray
from ray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)

from trainkit.plugins.ray.groups import current, group_of
from trainkit.runtime.scheduling import captured
from trainkit.runtime.specs import Placement


def ray_options(placement: Placement) -> dict[str, Any]:
    """Return the options of `ray.remote` for `placement`."""
    amounts = dict(placement.resources)
    options: dict[str, Any] = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0)}
    if memory := amounts.pop("memory", 0):
        options["memory"] = math.ceil(memory)
    if amounts:
        options["resources"] = amounts
    if placement.env:
        options["runtime_env"] = {"env_vars": dict(placement.env)}
    if placement.group is not None:
        bundle = placement.group.bundle
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement_group=group_of(placement.group.group),
            placement_group_bundle_index=-1 if bundle is None else bundle,
            placement_group_capture_child_tasks=placement.group.capture,
        )
    elif placement.outside:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(placement_group=None)
    elif placement.spread:
        options["scheduling_strategy"] = "SPREAD"
    elif placement.labels or placement.soft_labels:
        options["scheduling_strategy"] = _label_strategy(placement)
    return options


def _label_strategy(placement: Placement) -> NodeLabelSchedulingStrategy:
    operators = {"in": In, "not in": NotIn, "exists": Exists, "not exists": DoesNotExist}
    hard, soft = (
        {key: operators[operator](*values) for key, operator, values in conditions}
        for conditions in (placement.labels, placement.soft_labels)
    )
    return NodeLabelSchedulingStrategy(hard=hard, soft=soft)


def placed(placement: Placement) -> Placement:
    """Return `placement`, moved into this process's placement group if this group captures child tasks."""
    captures = ray.get_runtime_context().should_capture_child_tasks_in_placement_group
    return captured(placement, current()) if captures else placement
