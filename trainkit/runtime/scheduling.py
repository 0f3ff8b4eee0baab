"""Placement groups and scheduling strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError
from trainkit.resources import Bundle, describe, normalize, require_feasible
from trainkit.runtime.labels import NodeLabelSchedulingStrategy
from trainkit.runtime.placement import Ledger
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import engine
from trainkit.runtime.specs import Placement, PlacementGroupId


class PlacementGroupID(int):
    """Id of a placement group. The id is an int, because engines number their groups."""

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Return the id with hexadecimal `digits`."""
        return cls(int(digits, 16))

    def hex(self) -> str:
        """Return the id as hexadecimal digits, as in listings of groups."""
        return f"{self:016x}"

    def binary(self) -> bytes:
        """Return the id as bytes."""
        digits = self.hex()
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))

    def is_nil(self) -> bool:
        """Return False, because a group always has an id."""
        return False

    def __repr__(self) -> str:
        return f"PlacementGroupID({self.hex()})"

    def __str__(self) -> str:
        return repr(self)


class PlacementGroup:
    """Reservation of bundles, made by `placement_group` and used by `.options(placement_group=)`.

    Attributes:
        id: id of the reservation in the session. Groups with equal ids are equal.
        bundle_specs: requested bundles, in order.
        strategy: placement strategy; None if unknown, because the strategy of a reserved group on one machine
            has no further effect.
        name: name for `get_placement_group`; "" if unnamed.
    """

    def __init__(
        self, group_id: int, bundles: Sequence[Bundle], *, strategy: str | None = None, name: str = ""
    ) -> None:
        self.id = PlacementGroupID(group_id)
        self.strategy = strategy
        self.name = name
        self.bundle_specs: list[dict[str, float]] = [dict(bundle) for bundle in bundles]

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Return True once all bundles are reserved, False if `timeout_seconds` passes first."""
        return engine().await_group(self.id, timeout_seconds)

    def ready(self) -> ObjectRef[Any]:
        """Return a reference for `get` and `wait` that is done once all bundles are reserved."""
        return engine().group_ref(self.id)

    def require_room(self, request: Bundle, index: int) -> None:
        """Raise InfeasibleError if `request` is too large for bundle `index`, or for
        every bundle if `index` is -1.
        """
        bundles = self.bundle_specs if index < 0 else [self.bundle_specs[index]]
        if not any(
            all(amount <= bundle.get(name, 0) for name, amount in request.items()) for bundle in bundles
        ):
            where = "no bundle is" if index < 0 else f"bundle {index} is not"
            raise InfeasibleError(
                f"a request for {describe(request)} can never be met in this placement group: {where} large "
                f"enough. Its bundles are {self.bundle_specs}"
            )

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the group."""
        return len(self.bundle_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self.bundle_specs})"


STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def find(name: str) -> PlacementGroup:
    """Return the placement group named `name`; see `trainkit.get_placement_group`."""
    return PlacementGroup(*engine().find_group(name), name=name)


def reserve(
    bundles: Sequence[Mapping[str, float]], strategy: str, name: str, lifetime: str | None
) -> PlacementGroup:
    """Request `bundles` from the running engine; see `trainkit.placement_group`."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
    if lifetime not in (None, "detached"):
        raise ConfigError(f"lifetime must be None or 'detached', not {lifetime!r}")
    if not bundles:
        raise ConfigError("placement_group() needs at least one bundle, such as {'CPU': 1}")
    checked = [normalize(bundle, what=f"bundle {index}") for index, bundle in enumerate(bundles)]
    totals = engine().cluster_resources()
    require_feasible(checked, totals, what="the placement group")
    if Ledger.of_machine(totals).take_all(checked) is None:
        raise InfeasibleError(
            f"the placement group's bundles {checked} cannot be placed together on {describe(totals)}: a "
            "fraction of a GPU must fit on one GPU"
        )
    group_id = engine().reserve(checked, strategy, name, lifetime == "detached")
    return PlacementGroup(group_id, checked, strategy=strategy, name=name)


def require_one_node(bundles: Sequence[Bundle], strategy: str) -> None:
    """Raise InfeasibleError if `strategy` needs more than one node."""
    if strategy == "STRICT_SPREAD" and len(bundles) > 1:
        raise InfeasibleError(
            f"STRICT_SPREAD needs a separate node for each of the {len(bundles)} bundles, and this machine "
            "is one node: use 'SPREAD', which uses as many nodes as there are, or run on a cluster"
        )


def captured(placement: Placement, own: tuple[PlacementGroupId, list[Bundle]] | None) -> Placement:
    """Return `placement`, moved into the requesting process's placement group if this
    group captures child tasks.

    Args:
        placement: requested placement.
        own: placement group of the requesting process, with its bundles; None outside a group.

    Raises:
        InfeasibleError: the group captures the request, and each of its bundles is too small for the request.
    """
    if own is None or not own[0].capture or placement.group is not None or placement.outside:
        return placement
    where, bundles = own
    PlacementGroup(where.group, bundles).require_room(placement.resources, -1)
    return replace(placement, group=PlacementGroupId(group=where.group, capture=True))


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """Strategy to take resources from a placement group.

    Args:
        placement_group: the group. None takes resources from the machine, even if the process's own group
            captures its children.
        placement_group_bundle_index: index of the bundle to use; -1 means any bundle that fits.
        placement_group_capture_child_tasks: True if children of the task or actor run in the same group by
            default. None means False.
    """

    placement_group: PlacementGroup | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Strategy to run on one node. `nodes()` and `get_runtime_context().get_node_id()` return node ids.

    Args:
        node_id: id of the node in hexadecimal digits.
        soft: True to run on any node, instead of raising, if the node does not exist.
    """

    node_id: str
    soft: bool

    def require_node(self) -> None:
        """Raise an error if a task or actor might run on a different node.

        Raises:
            InfeasibleError: the node does not exist.
            ConfigError: the session has several nodes, which can't be chosen by their ids.
        """
        if self.soft:
            return
        living = [node["node_id"] for node in engine().state("nodes") if node["alive"]]
        if self.node_id not in living:
            raise InfeasibleError(
                f"no node {self.node_id!r} exists; nodes: {', '.join(living)}. soft=True allows other nodes"
            )
        if len(living) > 1:
            raise ConfigError(
                f"the cluster has {len(living)} nodes, and cannot choose a node by its id: give each node a "
                "custom resource of its own and request that resource, or pass soft=True"
            )


SchedulingStrategy = (
    Literal["DEFAULT", "SPREAD"]
    | PlacementGroupSchedulingStrategy
    | NodeAffinitySchedulingStrategy
    | NodeLabelSchedulingStrategy
    | None
)


def checked_strategy(strategy: SchedulingStrategy) -> SchedulingStrategy:
    """Return `strategy`.

    Raise ConfigError if `strategy` is invalid, and InfeasibleError if its node does not exist.
    """
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        strategy.require_node()
        return strategy
    if isinstance(strategy, (PlacementGroupSchedulingStrategy, NodeLabelSchedulingStrategy)):
        return strategy
    if strategy in (None, "DEFAULT", "SPREAD"):
        return strategy
    kind = ConfigError if isinstance(strategy, str) else ArgumentTypeError
    raise kind(
        "scheduling_strategy must be 'DEFAULT', 'SPREAD' (the same on one machine), "
        "PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy or NodeLabelSchedulingStrategy, "
        f"not {strategy!r}"
    )
