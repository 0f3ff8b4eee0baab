"""Resources of the inline engine: counted against the declared machine, never waited for."""

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
"""Several threads of this process may call."""


@dataclass(frozen=True)
class ResourceShare:
    """Resources given to one holder.

    Attributes:
        allocation: its share.
        ledger: to give it back to; None if nothing was free, and the share is one that others hold too.
    """

    allocation: Allocation = field(default_factory=Allocation)
    ledger: Ledger | None = None

    @property
    def gpus(self) -> list[int]:
        """Indices of the GPUs in it."""
        return sorted(self.allocation.gpus)

    def give_back(self) -> None:
        """Free it; to be called once."""
        if self.ledger is not None:
            with _counting:
                self.ledger.give_back(self.allocation)


@dataclass(frozen=True)
class InlinePlacementGroup:
    """A reserved list of bundles, each a ledger of its own."""

    bundles: Sequence[Bundle]
    strategy: str
    name: str
    places: Sequence[ResourceShare]
    ledgers: Sequence[Ledger]


class Places:
    """The declared machine, and the groups reserved of it.

    Nothing waits in one process: whoever could be waited for stands further up in the same stack. So a
    request that fits the machine, but not what is free of it, shares with those who hold it.

    Args:
        totals: what there is.
    """

    def __init__(self, totals: Bundle) -> None:
        self.totals = dict(totals)
        self._ledger = Ledger.of_machine(totals)
        self._groups: dict[int, InlinePlacementGroup] = {}

    def has_group_of(self, placement: Placement) -> bool:
        """Return True if the requested placement group still exists, or none is requested."""
        return placement.group is None or placement.group.group in self._groups

    def take(self, placement: Placement) -> ResourceShare:
        """A share for a holder of `placement`, whose group is there."""
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
        raise InfeasibleError(f"no bundle of its placement group holds {describe(request)}")

    def available(self) -> dict[str, float]:
        """Return the free resources."""
        return self._ledger.amounts()

    # groups

    def reserve(self, number: int, bundles: Sequence[Bundle], strategy: str, name: str) -> None:
        """Keep `bundles` as the group `number`.

        Raises:
            InfeasibleError: the strategy wants more than one node.
            ConfigError: the name is taken.
        """
        require_one_node(bundles, strategy)
        if name and any(group.name == name for group in self._groups.values()):
            raise ConfigError(
                f"name={name!r}: there is a placement group of that name; get_placement_group({name!r}) "
                "finds it"
            )
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
        """The group of that name; raises ConfigError if there is none."""
        for number, group in self._groups.items():
            if group.name == name and name:
                return number, list(group.bundles)
        raise ConfigError(f"there is no placement group of the name {name!r}")

    def bundles(self, number: int) -> list[Bundle]:
        """Those of a group; raises ConfigError if it was removed."""
        group = self._groups.get(number)
        if group is None:
            raise ConfigError("this placement group was removed")
        return list(group.bundles)

    def release(self, number: int) -> None:
        """Give a group back; without effect if that was done."""
        group = self._groups.pop(number, None)
        for place in group.places if group is not None else ():
            place.give_back()

    def rows(self) -> list[Row]:
        """The groups as plain data."""
        return [
            group_row(f"{number:016x}", group.name, group.strategy, True, group.bundles)
            for number, group in self._groups.items()
        ]
