"""Where a request goes: pure accounting of what exists, what is held, and who is next.

Amounts are whole numbers of ten-thousandths, so nothing is lost to rounding. GPUs are handed out by
index: whole ones from those nobody uses, a fraction from the fullest one that still has room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainkit.resources import QUANTUM, Bundle, total

GPU = "GPU"


@dataclass(frozen=True)
class Allocation:
    """What one holder was given.

    Attributes:
        amounts: ten-thousandths by resource name, GPUs not included.
        gpus: ten-thousandths of each GPU index.
    """

    amounts: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[int, int] = field(default_factory=dict)

    def as_bundle(self) -> dict[str, float]:
        """The same in the user's units."""
        bundle = {name: amount / QUANTUM for name, amount in self.amounts.items() if amount}
        if self.gpus:
            bundle[GPU] = sum(self.gpus.values()) / QUANTUM
        return bundle


def units(bundle: Bundle) -> dict[str, int]:
    """Amounts in ten-thousandths."""
    return {name: round(amount * QUANTUM) for name, amount in bundle.items()}


class Ledger:
    """What is free of a machine, or of one reserved bundle.

    Args:
        amounts: ten-thousandths by name that exist, GPUs not included.
        gpus: ten-thousandths of each GPU index that exist.
    """

    def __init__(self, amounts: Mapping[str, int], gpus: Mapping[int, int]) -> None:
        self.free = dict(amounts)
        self.free_gpus = dict(gpus)

    @classmethod
    def of_machine(cls, totals: Bundle) -> Ledger:
        """A ledger in which all of `totals` is free; GPUs are numbered from 0."""
        amounts = units(totals)
        gpus = dict.fromkeys(range(amounts.pop(GPU, 0) // QUANTUM), QUANTUM)
        return cls(amounts, gpus)

    @classmethod
    def of_bundle(cls, allocation: Allocation) -> Ledger:
        """A ledger in which all of a reserved bundle is free."""
        return cls(allocation.amounts, allocation.gpus)

    def lacking(self, request: Bundle) -> list[str]:
        """Names of the resources of which `request` wants more than is free; empty if it fits."""
        wanted = units(request)
        gpu = wanted.pop(GPU, 0)
        short = [name for name, amount in wanted.items() if amount > self.free.get(name, 0)]
        if gpu and self._pick_gpus(gpu) is None:
            short.append(GPU)
        return sorted(short)

    def take(self, request: Bundle) -> Allocation | None:
        """Hold `request`; None, with nothing changed, if it does not fit."""
        if self.lacking(request):
            return None
        amounts = units(request)
        gpu = amounts.pop(GPU, 0)
        allocation = Allocation(amounts, (self._pick_gpus(gpu) or {}) if gpu else {})
        self._add(allocation, -1)
        return allocation

    def retake(self, allocation: Allocation) -> None:
        """Hold exactly `allocation` again after lending it; what is free may fall below zero."""
        self._add(allocation, -1)

    def give_back(self, allocation: Allocation) -> None:
        """Free what `take` returned."""
        self._add(allocation, 1)

    def take_all(self, bundles: Sequence[Bundle]) -> list[Allocation] | None:
        """Hold every bundle, or none of them."""
        held: list[Allocation] = []
        for bundle in bundles:
            allocation = self.take(bundle)
            if allocation is None:
                for earlier in held:
                    self.give_back(earlier)
                return None
            held.append(allocation)
        return held

    def lacking_for_all(self, bundles: Sequence[Bundle]) -> list[str]:
        """Names of what is missing to hold every bundle at once; empty if they fit."""
        asked = total(bundles)
        asked.pop(GPU, None)
        short = self.lacking(asked)
        # These do not simply add up: parts of two don't make one.
        gpus = self.take_all([{GPU: bundle[GPU]} for bundle in bundles if GPU in bundle])
        if gpus is None:
            return sorted([*short, GPU])
        for allocation in gpus:
            self.give_back(allocation)
        return short

    def earmark(self, bundles: Sequence[Bundle], lacking: Iterable[str]) -> list[Allocation]:
        """Hold what `bundles` ask for and is there, `lacking` left out."""
        names = set(lacking)
        present = [
            {name: amount for name, amount in bundle.items() if name not in names} for bundle in bundles
        ]
        return self.take_all(present) or []

    def amounts(self) -> dict[str, float]:
        """What is free, in the user's units."""
        free = {name: amount / QUANTUM for name, amount in self.free.items()}
        if self.free_gpus:
            free[GPU] = sum(self.free_gpus.values()) / QUANTUM
        return free

    def _add(self, allocation: Allocation, sign: int) -> None:
        for name, amount in allocation.amounts.items():
            self.free[name] = self.free.get(name, 0) + sign * amount
        for index, share in allocation.gpus.items():
            self.free_gpus[index] += sign * share

    def _pick_gpus(self, amount: int) -> dict[int, int] | None:
        if amount < QUANTUM:
            fitting = [(free, index) for index, free in self.free_gpus.items() if free >= amount]
            return {min(fitting)[1]: amount} if fitting else None
        whole = [index for index, free in sorted(self.free_gpus.items()) if free == QUANTUM]
        count = amount // QUANTUM
        return dict.fromkeys(whole[:count], QUANTUM) if len(whole) >= count else None


@dataclass(frozen=True)
class Waiting:
    """A request in the queue, as `admissible` sees it.

    Attributes:
        key: the caller's name for it.
        bundles: to be held all or none.
        group: take them from this reserved group instead of the machine.
        nested: a worker asked, so something that already holds resources may be waiting for it.
        bundle: of the group, if only one will do.
    """

    key: int
    bundles: Sequence[Bundle]
    group: int | None = None
    nested: bool = False
    bundle: int | None = None


def order(queue: Iterable[Waiting]) -> list[Waiting]:
    """The queue in the order in which it is served.

    What workers ask for comes first: who waits for it holds resources, and would hold them for ever
    if a large request of the driver's, which needs those very resources, stood before it.
    """
    return sorted(queue, key=lambda waiting: not waiting.nested)


def blocked_by(short: Iterable[str], request: Iterable[Bundle]) -> bool:
    """Whether `request` must wait behind an earlier one that is `short` of some resources.

    A later request may pass an earlier one only if it takes nothing that the earlier one lacks; so a
    gang gets its turn however many small requests come after it.
    """
    names = set(short)
    return any(amount and name in names for bundle in request for name, amount in bundle.items())


def serve(
    queue: Iterable[Waiting], machine: Ledger, grant: Callable[[Waiting], list[str] | None]
) -> list[Waiting]:
    """Grant what can be granted now, in order, and let nobody wait for ever.

    Whoever is first among those who must wait is kept what they need of what is free, so that it can't be
    that there are CPUs whenever there are no GPUs and the other way round; in a group, nobody passes who
    asks for the same. Only what the driver asks for is treated so: between workers, the later request may
    be what the holder of the missing rest waits for.

    Args:
        queue: in the order in which it was asked for.
        machine: what requests outside any group are taken from.
        grant: carries a request out; returns the names of what it lacks, or None if it was granted.

    Returns:
        What was granted.
    """
    granted: list[Waiting] = []
    short: set[str] = set()
    kept: list[Allocation] | None = None
    short_in: dict[int, dict[int | None, set[str]]] = {}
    try:
        for waiting in order(queue):
            if waiting.group is None and blocked_by(short, waiting.bundles):
                continue
            if not waiting.nested and _stands_behind(waiting, short_in):
                continue
            lacking = grant(waiting)
            if lacking is None:
                granted.append(waiting)
            elif waiting.group is not None:
                if not waiting.nested:
                    names = {name for bundle in waiting.bundles for name in bundle}
                    short_in.setdefault(waiting.group, {}).setdefault(waiting.bundle, set()).update(names)
            else:
                short.update(lacking)
                if kept is None and not waiting.nested:
                    kept = machine.earmark(waiting.bundles, lacking)
    finally:
        for allocation in kept or ():
            machine.give_back(allocation)
    return granted


def _stands_behind(waiting: Waiting, short_in: Mapping[int, Mapping[int | None, set[str]]]) -> bool:
    """Whether somebody waits earlier, in the same group, for the same in a bundle that would do for both."""
    if waiting.group is None:
        return False
    return any(
        blocked_by(names, waiting.bundles)
        for bundle, names in short_in.get(waiting.group, {}).items()
        if bundle is None or waiting.bundle is None or bundle == waiting.bundle
    )
