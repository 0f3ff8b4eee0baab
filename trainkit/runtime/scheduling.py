"""Where a process is to go, in Ray's words: scheduling strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError
from trainkit.runtime.current import engine
from trainkit.runtime.labels import NodeLabelSchedulingStrategy

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


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Run on the node of this id, as `nodes()` and `get_runtime_context().get_node_id()` give it.

    Args:
        node_id: hexadecimal.
        soft: where there is no such node, run anywhere, instead of an error.
    """

    node_id: str
    soft: bool

    def require_node(self) -> None:
        """Raise if what runs here would not be on the node asked for.

        Raises:
            InfeasibleError: there is no such node.
            ConfigError: there are several, and none can be chosen by its id.
        """
        if self.soft:
            return
        living = [node["node_id"] for node in engine().state("nodes") if node["alive"]]
        if self.node_id not in living:
            raise InfeasibleError(
                f"there is no node {self.node_id!r} to run on; there are {', '.join(living)}. soft=True runs "
                "anywhere then"
            )
        if len(living) > 1:
            raise ConfigError(
                f"of {len(living)} nodes, none can be chosen by its id: give each a custom resource of its "
                "own and ask for that, or pass soft=True"
            )


SchedulingStrategy = (
    Literal["DEFAULT", "SPREAD"]
    | PlacementGroupSchedulingStrategy
    | NodeAffinitySchedulingStrategy
    | NodeLabelSchedulingStrategy
    | None
)


def checked_strategy(strategy: SchedulingStrategy) -> SchedulingStrategy:
    """`strategy` itself; raises ConfigError if it is none, or InfeasibleError if its node is not there."""
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        strategy.require_node()
        return strategy
    if isinstance(strategy, (PlacementGroupSchedulingStrategy, NodeLabelSchedulingStrategy)):
        return strategy
    if strategy in (None, "DEFAULT", "SPREAD"):
        return strategy
    kind = ConfigError if isinstance(strategy, str) else ArgumentTypeError
    raise kind(
        f"scheduling_strategy={strategy!r}; there are 'DEFAULT', 'SPREAD' (the same on one machine), "
        "PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy and NodeLabelSchedulingStrategy"
    )
