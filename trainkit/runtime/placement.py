"""Pure functions for placement: ledgers of resources, the order of requests, and reasons for waits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trainkit.resources import QUANTUM, Bundle, describe, total

GPU = "GPU"

_TASK_S = 60.0
"""Age in seconds up to which a task is expected to end soon.

A request that waits for a task of this age blocks later requests.
"""

_OTHERS_S = 600.0
"""Age in seconds up to which an actor or a placement group is expected to end soon."""


@dataclass(frozen=True)
class Allocation:
    """Resources that were granted to one worker or placement group.

    Attributes:
        amounts: amounts in ten-thousandths by resource name, without GPUs.
        gpus: granted shares of GPUs in ten-thousandths, by GPU index.
    """

    amounts: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[int, int] = field(default_factory=dict)

    def as_bundle(self) -> dict[str, float]:
        """Return the amounts in the user's units, in which 1.0 is a whole CPU or GPU."""
        bundle = {name: amount / QUANTUM for name, amount in self.amounts.items() if amount}
        if self.gpus:
            bundle[GPU] = sum(self.gpus.values()) / QUANTUM
        return bundle


def units(bundle: Bundle) -> dict[str, int]:
    """Return the amounts of `bundle` in ten-thousandths."""
    return {name: round(amount * QUANTUM) for name, amount in bundle.items()}


class Ledger:
    """Free resources of a machine or of one reserved bundle.

    Args:
        amounts: existing amounts in ten-thousandths by resource name, without GPUs.
        gpus: existing shares of GPUs in ten-thousandths, by GPU index.
    """

    def __init__(self, amounts: Mapping[str, int], gpus: Mapping[int, int]) -> None:
        self.free = dict(amounts)
        self.free_gpus = dict(gpus)

    @classmethod
    def of_machine(cls, totals: Bundle) -> Ledger:
        """Return a ledger in which all of `totals` is free. GPUs are numbered from 0."""
        amounts = units(totals)
        gpus = dict.fromkeys(range(amounts.pop(GPU, 0) // QUANTUM), QUANTUM)
        return cls(amounts, gpus)

    @classmethod
    def of_bundle(cls, allocation: Allocation) -> Ledger:
        """Return a ledger in which all resources of a reserved bundle are free."""
        return cls(allocation.amounts, allocation.gpus)

    def lacking(self, request: Bundle) -> list[str]:
        """Return the names of the resources that are not free in the amount of
        `request`; [] if the request fits.
        """
        wanted = units(request)
        gpu = wanted.pop(GPU, 0)
        short = [name for name, amount in wanted.items() if amount > self.free.get(name, 0)]
        if gpu and self._pick_gpus(gpu) is None:
            short.append(GPU)
        return sorted(short)

    def take(self, request: Bundle) -> Allocation | None:
        """Reserve `request` and return its allocation.

        If the request does not fit, change nothing and return None.
        """
        if self.lacking(request):
            return None
        amounts = units(request)
        gpu = amounts.pop(GPU, 0)
        allocation = Allocation(amounts, (self._pick_gpus(gpu) or {}) if gpu else {})
        self._add(allocation, -1)
        return allocation

    def retake(self, allocation: Allocation) -> None:
        """Reserve `allocation` again after its resources were lent. Free amounts may fall below zero."""
        self._add(allocation, -1)

    def unused(self, name: str) -> int:
        """Return the free amount of a resource, in ten-thousandths."""
        return max(0, self.free.get(name, 0))

    def is_overdrawn(self, name: str) -> bool:
        """Return True if more of a resource is reserved than exists, which `retake` can cause."""
        return self.free.get(name, 0) < 0

    def give_back(self, allocation: Allocation) -> None:
        """Free an allocation that `take` returned."""
        self._add(allocation, 1)

    def take_all(self, bundles: Sequence[Bundle]) -> list[Allocation] | None:
        """Reserve all bundles and return their allocations.

        If they do not all fit, reserve nothing and return None.
        """
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
        """Return the names of resources that are missing to reserve all bundles at once; [] if they fit."""
        asked = total(bundles)
        asked.pop(GPU, None)
        short = self.lacking(asked)
        # Free shares of two GPUs do not make one GPU, so the shares of GPUs can't be summed.
        gpus = self.take_all([{GPU: bundle[GPU]} for bundle in bundles if GPU in bundle])
        if gpus is None:
            return sorted([*short, GPU])
        for allocation in gpus:
            self.give_back(allocation)
        return short

    def earmark(self, bundles: Sequence[Bundle], lacking: Iterable[str]) -> list[Allocation]:
        """Reserve the resources of `bundles` except the resources named in `lacking`."""
        names = set(lacking)
        present = [
            {name: amount for name, amount in bundle.items() if name not in names} for bundle in bundles
        ]
        return self.take_all(present) or []

    def amounts(self) -> dict[str, float]:
        """Return the free amounts in the user's units."""
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


@dataclass
class Demand:
    """Request in the queue, as input of `serve` and `explain_wait`.

    Attributes:
        key: the caller's key for the request.
        bundles: amounts that are granted together.
        group: placement group that provides the resources; None means the machine.
        nested: True if a worker made the request, so that a worker with resources may be waiting for it.
        bundle: index of the required bundle in the group; None means any bundle.
        what: description for the user, such as "a group of 3 bundles".
        since: time by a monotonic clock at which the request joined the queue.
    """

    key: int
    bundles: Sequence[Bundle]
    group: int | None = None
    nested: bool = False
    bundle: int | None = None
    what: str = ""
    since: float = 0.0

    @functools.cached_property
    def kind(self) -> Hashable:
        """Key that is equal for requests for the same resources.

        Only the oldest request with a given key is tried.
        """
        return self.nested, self.group, self.bundle, *(frozenset(each.items()) for each in self.bundles)


D = TypeVar("D", bound=Demand)


def order(queue: Iterable[D]) -> list[D]:
    """Return the queue in the order in which it is served.

    Requests of workers come first, because a waiting worker keeps its resources. If a large request of the
    driver needed these resources and came first, the worker would wait forever.
    """
    return sorted(queue, key=lambda waiting: not waiting.nested)


def blocked_by(short: Iterable[str], request: Iterable[Bundle]) -> bool:
    """Return True if `request` must wait behind an earlier request that lacks the resources `short`.

    A later request may pass only if it does not need a resource that the earlier request lacks. A large
    request therefore gets its turn no matter how many small requests follow.
    """
    names = set(short)
    return any(amount and name in names for bundle in request for name, amount in bundle.items())


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Reserved resources and the state of their user, as input of `is_in_reach`.

    Attributes:
        allocation: reserved resources.
        since: time of the grant, by the clock of `Demand.since`.
        is_task: True for a task; False for an actor or a placement group, which may never end.
        waits: True if the worker with the resources waits for other requests.
    """

    allocation: Allocation
    since: float
    is_task: bool = False
    waits: bool = False


Place = tuple[Ledger, Sequence[Hold]]
"""Ledger of the machine or of one bundle, with the reservations of its resources."""


def is_in_reach(waiting: Demand, places: Iterable[Place], now: float) -> bool:
    """Return True if the request `waiting` would fit when all reservations that are expected to end have
    ended.

    A task is expected to end while its age is below one minute or below half of the request's wait. An
    actor or a group is expected to end while its age is below ten minutes and below half of the
    request's wait. A large request thus gets its turn if reservations end, and its wait for reservations
    that never end is limited.

    Args:
        waiting: the request.
        places: ledgers that can serve the request, each with its reservations; one
            sufficient ledger is enough.
        now: the time.
    """
    waited = now - waiting.since
    for ledger, holds in places:
        ending = [
            hold.allocation
            for hold in holds
            if now - hold.since < (max(_TASK_S, waited / 2) if hold.is_task else min(_OTHERS_S, waited / 2))
            # The worker with the resources may wait for a later request.
            and not (hold.waits and waiting.nested)
        ]
        for allocation in ending:
            ledger.give_back(allocation)
        fits = not ledger.lacking_for_all(waiting.bundles)
        for allocation in ending:
            ledger.retake(allocation)
        if fits:
            return True
    return False


def serve(
    queue: Iterable[D],
    machine: Ledger,
    grant: Callable[[D], list[str] | None],
    in_reach: Callable[[D], bool],
) -> list[D]:
    """Grant all requests that can be granted now, in order and without starvation.

    A request that must wait blocks later requests while its missing resources are `in_reach`. If later
    requests could always pass, many small requests could starve the blocked request. When the resources are
    out of reach, later requests pass, because the resources may never be released.

    Needed resources that are free are kept for the first blocking request. If these resources were not kept,
    a request for CPUs and GPUs might never find both free at once. Within a group, no request passes a
    blocking request for the same resources. Both rules apply only to requests of the driver, because a worker
    with the missing resources may be waiting for a later request of a worker.

    Args:
        queue: requests in the order in which they were made.
        machine: ledger for requests outside any group.
        grant: function that grants a request and returns None, or returns the names of missing resources.
        in_reach: function that returns the result of `is_in_reach` for a request that was not granted.

    Returns:
        The granted requests.
    """
    granted: list[D] = []
    short: set[str] = set()
    kept: list[Allocation] | None = None
    short_in: dict[int, dict[int | None, set[str]]] = {}
    failed: set[Hashable] = set()
    try:
        for waiting in order(queue):
            if waiting.kind in failed or (waiting.group is None and blocked_by(short, waiting.bundles)):
                continue
            if not waiting.nested and _stands_behind(waiting, short_in):
                continue
            lacking = grant(waiting)
            if lacking is None:
                granted.append(waiting)
                continue
            failed.add(waiting.kind)
            if not in_reach(waiting):
                continue
            if waiting.group is not None:
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


def _stands_behind(waiting: Demand, short_in: Mapping[int, Mapping[int | None, set[str]]]) -> bool:
    """Return True if an earlier request of the same group waits for a
    bundle that could also serve `waiting`.
    """
    if waiting.group is None:
        return False
    return any(
        blocked_by(names, waiting.bundles)
        for bundle, names in short_in.get(waiting.group, {}).items()
        if bundle is None or waiting.bundle is None or bundle == waiting.bundle
    )


_MOST_NAMED = 5
"""Maximum number of workers, or of earlier requests, that a message lists individually."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Worker or placement group that uses resources.

    Attributes:
        who: name in messages, such as "trainer (pid 12)".
        amounts: amounts that the worker or group uses.
    """

    who: str
    amounts: Bundle


@dataclass(frozen=True, kw_only=True)
class Room:
    """Machine, or bundle of a placement group, that can serve a request.

    Attributes:
        name: name in messages, such as "bundle 0"; "" for the machine.
        existing: total amounts.
        ledger: free amounts.
        holders: workers and groups that use the amounts that are not free.
    """

    name: str = ""
    existing: Bundle
    ledger: Ledger
    holders: Sequence[Holder] = ()


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Explanation of a request's wait.

    Attributes:
        lacking: names of resources that are missing in at least one `Room` (machine or bundle) that could
            serve the request.
        holders: descriptions of the users of the missing resources.
        reasons: sentences that explain the wait completely.
    """

    lacking: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def explain_wait(ask: Demand, rooms: Sequence[Room], before: Sequence[Demand] = ()) -> Wait:
    """Explain why `ask` waits.

    Args:
        ask: the request.
        rooms: machine or bundles that can serve the request; empty if its placement group is not reserved.
        before: earlier requests, in order; only requests for the same kinds of resources matter.
    """
    if not rooms:
        return Wait(reasons=["its placement group is not reserved yet"])
    names = total(ask.bundles).keys()
    lacking: set[str] = set()
    holders: dict[str, None] = {}
    reasons = []
    for room in rooms:
        missing = room.ledger.lacking_for_all(ask.bundles)
        lacking.update(missing)
        where = f"{room.name}: " if room.name else ""
        for name in missing:
            held_by = [holder for holder in room.holders if holder.amounts.get(name, 0) > 0]
            holders.update(dict.fromkeys(f"{holder.who}: {describe(holder.amounts)}" for holder in held_by))
            reasons.append(where + _shortage(name, ask, room) + _held(name, held_by))
    ahead = [
        other for other in before if any(not names.isdisjoint(bundle.keys()) for bundle in other.bundles)
    ]
    reasons += [
        f"waits behind {other.what}, which asks for {describe(total(other.bundles))}"
        for other in ahead[:_MOST_NAMED]
    ]
    if len(ahead) > _MOST_NAMED:
        reasons.append(f"waits behind {len(ahead) - _MOST_NAMED} more requests")
    if not reasons:
        reasons.append("the requested resources are free: it is about to start")
    return Wait(lacking=sorted(lacking), holders=list(holders), reasons=reasons)


def _shortage(name: str, ask: Demand, room: Room) -> str:
    wanted = round(total(ask.bundles)[name] * QUANTUM)
    free = max(0, round(room.ledger.amounts().get(name, 0) * QUANTUM))
    exists = describe({name: room.existing.get(name, 0)})
    is_free = describe({name: free / QUANTUM})
    if wanted > free:
        missing = describe({name: (wanted - free) / QUANTUM})
        return f"{missing} missing: {is_free} of {exists} free"
    if name != GPU:
        raise ValueError(f"{ask.what} does not lack {name}: {is_free} is free")
    shares = sorted(round(share) / QUANTUM for share in room.ledger.free_gpus.values())
    parts = " + ".join(f"{share:g}" for share in reversed(shares) if share)
    return f"{is_free} of {exists} free, but in fractions that do not fit the request: {parts}"


def _held(name: str, holders: Sequence[Holder]) -> str:
    if not holders:
        return ""
    named = ", ".join(
        f"{holder.who}: {describe({name: holder.amounts[name]})}" for holder in holders[:_MOST_NAMED]
    )
    more = f", and {len(holders) - _MOST_NAMED} more" * (len(holders) > _MOST_NAMED)
    return f"; held by {named}{more}"
