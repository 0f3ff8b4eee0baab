"""Resources of the inline engine.

Calls reserve resources on the declared machine, but never wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainkit.errors import ConfigError, InfeasibleError
from trainkit.resources import Bundle, describe
from trainkit.runtime.engine import Row, group_row
from trainkit.runtime.placement import Allocation, Ledger
from trainkit.runtime.scheduling import require_one_node
from trainkit.runtime.specs import Placement

_counting = threading.RLock()
"""Lock for the ledgers (records of free resources), because several threads of this process may make
calls.
"""


@dataclass(frozen=True)
class ResourceShare:
    """Resources given to a task, an actor or a bundle.

    Attributes:
        allocation: the resources.
        ledger: ledger to which the resources return; None if the resources were not free and are shared with
            other calls.
    """

    allocation: Allocation = field(default_factory=Allocation)
    ledger: Ledger | None = None

    @property
    def gpus(self) -> list[int]:
        """Indices of the GPUs among the given resources."""
        return sorted(self.allocation.gpus)

    def give_back(self) -> None:
        """Free the resources; call this method only once."""
        if self.ledger is not None:
            with _counting:
                self.ledger.give_back(self.allocation)


@dataclass(frozen=True)
class InlinePlacementGroup:
    """Reserved placement group, in which each bundle has its own ledger of free resources."""

    bundles: Sequence[Bundle]
    strategy: str
    name: str
    places: Sequence[ResourceShare]
    ledgers: Sequence[Ledger]


class Places:
    """Resources of the declared machine, and its reserved placement groups.

    A request can't wait for resources, because the call that uses the resources may be further up the same
    stack. If a request fits the machine, but not the free resources, it shares resources with the calls that
    use them.

    Args:
        totals: all declared resources.
    """

    def __init__(self, totals: Bundle) -> None:
        self.totals = dict(totals)
        self._ledger = Ledger.of_machine(totals)
        self._groups: dict[int, InlinePlacementGroup] = {}

    def has_group_of(self, placement: Placement) -> bool:
        """Return True if the requested placement group still exists, or none is requested."""
        return placement.group is None or placement.group.group in self._groups

    def take(self, placement: Placement) -> ResourceShare:
        """Return resources for `placement`, whose placement group must exist."""
        request = placement.resources
        if placement.group is None:
            ledgers, untouched = [self._ledger], [Ledger.of_machine(self.totals)]
        else:
            group, bundle = self._groups[placement.group.group], placement.group.bundle
            chosen = slice(None) if bundle is None else slice(bundle, bundle + 1)
            ledgers = list(group.ledgers[chosen])
            untouched = [Ledger.of_bundle(place.allocation) for place in group.places[chosen]]
        with _counting:
            for ledger in ledgers:
                allocation = ledger.take(request)
                if allocation is not None:
                    return ResourceShare(allocation, ledger)
        for ledger in untouched:
            allocation = ledger.take(request)
            if allocation is not None:
                return ResourceShare(allocation)
        raise InfeasibleError(f"no bundle of the placement group is large enough for {describe(request)}")

    def available(self) -> dict[str, float]:
        """Return the free resources."""
        return self._ledger.amounts()

    # groups

    def reserve(self, number: int, bundles: Sequence[Bundle], strategy: str, name: str) -> None:
        """Reserve `bundles` as the placement group `number`.

        Raises:
            InfeasibleError: the strategy needs more than one node.
            ConfigError: the name is taken.
        """
        require_one_node(bundles, strategy)
        if name and any(group.name == name for group in self._groups.values()):
            raise ConfigError(f"placement group {name!r} exists: get it with get_placement_group({name!r})")
        with _counting:
            held = self._ledger.take_all(bundles)
        owner = self._ledger if held is not None else None
        shares = held if held is not None else Ledger.of_machine(self.totals).take_all(bundles)
        if shares is None:
            raise InfeasibleError(f"the bundles {list(bundles)} cannot be placed together")
        places = [ResourceShare(allocation, owner) for allocation in shares]
        ledgers = [Ledger.of_bundle(allocation) for allocation in shares]
        self._groups[number] = InlinePlacementGroup(list(bundles), strategy, name, places, ledgers)

    def find(self, name: str) -> tuple[int, list[Bundle]]:
        """Return the placement group named `name`; raise ConfigError if it does not exist."""
        for number, group in self._groups.items():
            if group.name == name and name:
                return number, list(group.bundles)
        raise ConfigError(f"there is no placement group named {name!r}")

    def bundles(self, number: int) -> list[Bundle]:
        """Return the bundles of a group; raise ConfigError if the group was removed."""
        group = self._groups.get(number)
        if group is None:
            raise ConfigError("this placement group was removed")
        return list(group.bundles)

    def release(self, number: int) -> None:
        """Free a group. Do nothing if the group was freed before."""
        group = self._groups.pop(number, None)
        for place in group.places if group is not None else ():
            place.give_back()

    def rows(self) -> list[Row]:
        """Return the groups' rows for the state listing."""
        return [
            group_row(f"{number:016x}", group.name, group.strategy, True, group.bundles)
            for number, group in self._groups.items()
        ]
