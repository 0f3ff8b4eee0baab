"""Placement groups of Ray, and checks of requests against the cluster's nodes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import ray
from ray import PlacementGroupID
from ray.experimental import internal_kv
from ray.util import get_placement_group, placement_group_table, remove_placement_group
from ray.util import placement_group as reserve_in_ray
from ray.util.placement_group import PlacementGroup

from trainkit.errors import ConfigError, InfeasibleError
from trainkit.plugins.ray.errors import refusal
from trainkit.resources import Bundle, describe, require_feasible, total
from trainkit.runtime.specs import PlacementGroupId

_ID_BYTES = PlacementGroupID.size()

JOBS = b"trainkit:jobs"
"""Key of the jobs that a pool can submit: their maximum number, the resources of each of them, and the
beginning of the names of their nodes."""


def totals() -> dict[str, float]:
    """Return all resources of the cluster that a user can request."""
    return total(node_totals())


def plain(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return `amounts` without Ray's internal resources for node names, the object store and groups."""
    return {
        name: amount
        for name, amount in amounts.items()
        if name != "object_store_memory" and not name.startswith("node:") and "_group_" not in name
    }


def node_totals() -> list[dict[str, float]]:
    """Return the total resources of each living node, and of each job that can be submitted."""
    count, each, prefix = pickle.loads(internal_kv._internal_kv_get(JOBS) or pickle.dumps((0, {}, "\0")))
    others = [node for node in ray.nodes() if node["Alive"] and not node["NodeName"].startswith(prefix)]
    return [plain(node["Resources"]) for node in others] + [each] * count


def require_placeable(bundles: Sequence[Bundle], strategy: str, what: str) -> None:
    """Raise InfeasibleError if the existing nodes can never provide `bundles` with `strategy`."""
    existing, nodes = totals(), node_totals()
    require_feasible(bundles, existing, what=what)
    wholes = [total(bundles)] if strategy == "STRICT_PACK" else list(bundles)
    for bundle in wholes:
        if not any(_holds(node, bundle) for node in nodes):
            raise InfeasibleError(
                f"{what} asks for {describe(bundle)} on one node, and no node is that large: the nodes have "
                f"{'; '.join(describe(node) for node in nodes)}. Ask for less, or add a larger node."
            )
    if strategy == "STRICT_SPREAD" and not _each_on_its_own(bundles, nodes):
        raise InfeasibleError(
            f"STRICT_SPREAD needs a separate node for each of the {len(bundles)} bundles of {what}, and the "
            f"{'one node' if len(nodes) == 1 else f'{len(nodes)} nodes'} of the cluster cannot hold them. "
            "Use SPREAD, or add nodes."
        )


def _holds(node: Bundle, bundle: Bundle) -> bool:
    return all(amount <= node.get(name, 0) for name, amount in bundle.items())


def _each_on_its_own(bundles: Sequence[Bundle], nodes: Sequence[Bundle]) -> bool:
    """Return True if each bundle can have its own node, by bipartite matching with augmenting paths."""
    holder: dict[int, int] = {}

    def place(bundle: int, tried: set[int]) -> bool:
        for node, amounts in enumerate(nodes):
            if node in tried or not _holds(amounts, bundles[bundle]):
                continue
            tried.add(node)
            if node not in holder or place(holder[node], tried):
                holder[node] = bundle
                return True
        return False

    return all(place(bundle, set()) for bundle in range(len(bundles)))


def group_of(number: int) -> PlacementGroup:
    """Return Ray's placement group for trainkit's id `number`."""
    return PlacementGroup(PlacementGroupID(number.to_bytes(_ID_BYTES, "big")))


def number_of(group: PlacementGroup) -> int:
    """Return trainkit's id for a placement group of Ray."""
    return int.from_bytes(group.id.binary(), "big")


def reserve(bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
    """Implement `Engine.reserve`."""
    require_placeable(bundles, strategy, "the placement group")
    if name and _named(name) is not None:
        raise ConfigError(f"placement group {name!r} exists already: remove it, or choose another name")
    try:
        group = reserve_in_ray(
            [dict(bundle) for bundle in bundles],
            strategy=strategy,
            name=name,
            lifetime="detached" if detached else None,
        )
    except ValueError as error:
        raise refusal(error, "the placement group") from error
    return number_of(group)


def find(name: str) -> tuple[int, list[Bundle]]:
    """Implement `Engine.find_group`."""
    group = _named(name)
    if group is None:
        raise ConfigError(f"there is no placement group named {name!r}; see trainkit.list_placement_groups()")
    return number_of(group), bundles_of(group)


def _named(name: str) -> PlacementGroup | None:
    try:
        return get_placement_group(name)
    except ValueError:  # Ray knows no placement group with this name
        return None


def bundles_of(group: PlacementGroup) -> list[Bundle]:
    """Return the group's bundles, in order."""
    return [dict(bundle) for bundle in group.bundle_specs]


def is_removed(number: int) -> bool:
    """Return True if the group was removed. On Ray, a request for a removed group would wait forever."""
    return bool(placement_group_table(group_of(number)).get("state", "REMOVED") == "REMOVED")


def release(number: int) -> None:
    """Implement `Engine.release`."""
    remove_placement_group(group_of(number))


def current() -> tuple[PlacementGroupId, list[Bundle]] | None:
    """Implement `Engine.current_group`."""
    group = ray.util.get_current_placement_group()
    if group is None:
        return None
    capture = ray.get_runtime_context().should_capture_child_tasks_in_placement_group
    return PlacementGroupId(group=number_of(group), capture=capture), bundles_of(group)
