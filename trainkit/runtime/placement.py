"""Pure rules of placement: ledgers, the order of requests, node labels, and reasons of a wait."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainkit.errors import ConfigError, InfeasibleError
from trainkit.resources import QUANTUM, Bundle, describe, total

GPU = "GPU"

_TASK_S = 60.0
"""A task is expected to end so soon; a request that waits for it holds up later ones meanwhile."""

_OTHERS_S = 600.0
"""The end of an actor or a placement group is expected while it is younger than this, and not longer."""


@dataclass(frozen=True)
class Allocation:
    """Resources given to one holder.

    Attributes:
        amounts: ten-thousandths by resource name, GPUs not included.
        gpus: ten-thousandths of each GPU index.
    """

    amounts: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[int, int] = field(default_factory=dict)

    def as_bundle(self) -> dict[str, float]:
        """Return the amounts in the user's units."""
        bundle = {name: amount / QUANTUM for name, amount in self.amounts.items() if amount}
        if self.gpus:
            bundle[GPU] = sum(self.gpus.values()) / QUANTUM
        return bundle


def units(bundle: Bundle) -> dict[str, int]:
    """Amounts in ten-thousandths."""
    return {name: round(amount * QUANTUM) for name, amount in bundle.items()}


class Ledger:
    """Free resources of a machine, or of one reserved bundle.

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

    def unused(self, name: str) -> int:
        """Return how much of a resource is free, in ten-thousandths."""
        return max(0, self.free.get(name, 0))

    def is_overdrawn(self, name: str) -> bool:
        """Return whether more of a resource is held than exists, after `retake`."""
        return self.free.get(name, 0) < 0

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
    """A request in the queue, as `serve` and `explain_wait` see it.

    Attributes:
        key: the caller's name for it.
        bundles: to be held all or none.
        group: take them from this reserved group instead of the machine.
        nested: a worker asked, so something that already holds resources may be waiting for it.
        bundle: of the group, if only one will do.
        what: as shown to the user, such as "a group of 3 bundles".
        since: when it took its turn, by a monotonic clock.
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
        """Equal for requests that wait for the same resources; the oldest of them is judged for all."""
        return self.nested, self.group, self.bundle, *(frozenset(each.items()) for each in self.bundles)


D = TypeVar("D", bound=Demand)


def order(queue: Iterable[D]) -> list[D]:
    """The queue in the order in which it is served.

    What workers ask for comes first: who waits for it holds resources, and would hold them for ever
    if a large request of the driver's, which needs those very resources, stood before it.
    """
    return sorted(queue, key=lambda waiting: not waiting.nested)


def blocked_by(short: Iterable[str], request: Iterable[Bundle]) -> bool:
    """Return True if `request` must wait behind an earlier one that is `short` of some resources.

    A later request may pass an earlier one only if it takes nothing that the earlier one lacks; so a
    gang gets its turn however many small requests come after it.
    """
    names = set(short)
    return any(amount and name in names for bundle in request for name, amount in bundle.items())


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Resources that somebody holds, as `is_in_reach` sees them.

    Attributes:
        allocation: what is held.
        since: when it was granted, by the clock of `Demand.since`.
        is_task: a task has it, else an actor or a placement group, whose end nobody can expect.
        waits: the holder waits for others.
    """

    allocation: Allocation
    since: float
    is_task: bool = False
    waits: bool = False


Place = tuple[Ledger, Sequence[Hold]]
"""What is free of the machine, or of one bundle of a group, and who holds the rest."""


def is_in_reach(waiting: Demand, places: Iterable[Place], now: float) -> bool:
    """Return True if `waiting` would fit once those holders have ended whose end can be expected.

    A task is expected to end within a minute. Any holder is, as long as it is younger than half of the wait,
    an actor or a group also than ten minutes: so what ends lets a large request have its turn some day, and
    what never ends is waited for a limited time.

    Args:
        waiting: the request.
        places: where it may be met, one of them being enough.
        now: the time.
    """
    waited = now - waiting.since
    for ledger, holds in places:
        ending = [
            hold.allocation
            for hold in holds
            if now - hold.since < (max(_TASK_S, waited / 2) if hold.is_task else min(_OTHERS_S, waited / 2))
            and not (hold.waits and waiting.nested)  # it may wait for a later request
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
    """Grant what can be granted now, in order, and let nobody wait for ever.

    A request that must wait holds up later ones while what it lacks is `in_reach`, else it would wait for
    ever if enough small ones came. Those pass it when it is not, else they would wait with it for an end
    that may never come.

    Whoever is first among those who hold up others is kept what they need of what is free, so that it can't
    be that there are CPUs whenever there are no GPUs and the other way round; in a group, nobody passes who
    asks for the same. Only what the driver asks for is treated so: between workers, the later request may
    be what the holder of the missing rest waits for.

    Args:
        queue: in the order in which it was asked for.
        machine: what requests outside any group are taken from.
        grant: carries a request out; returns the names of what it lacks, or None if it was granted.
        in_reach: `is_in_reach` of a request that was not granted.

    Returns:
        What was granted.
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
    """Return True if an earlier request of the same group waits for a bundle that would serve both."""
    if waiting.group is None:
        return False
    return any(
        blocked_by(names, waiting.bundles)
        for bundle, names in short_in.get(waiting.group, {}).items()
        if bundle is None or waiting.bundle is None or bundle == waiting.bundle
    )


Condition = tuple[str, str, tuple[str, ...]]
"""A label's name, one of "in", "not in", "exists" and "not exists", and the values of the first two."""

_SELECTOR = re.compile(r"(?P<negated>!?)in\((?P<values>[^()]*)\)")


class _Operator:
    """Part of a condition: how a label's value is compared."""

    name = ""

    def __init__(self, *values: str) -> None:
        if not values or not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{type(self).__name__}{values!r}: give the values, each a text")
        self.values = list(values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"


class In(_Operator):
    """The label is there and has one of these values."""

    name = "in"


class NotIn(_Operator):
    """The label is not there, or has none of these values."""

    name = "not in"


class Exists(_Operator):
    """The label is there."""

    name = "exists"

    def __init__(self) -> None:
        self.values = []


class DoesNotExist(_Operator):
    """The label is not there."""

    name = "not exists"

    def __init__(self) -> None:
        self.values = []


class NodeLabelSchedulingStrategy:
    """Run on a node whose labels meet conditions, such as {"region": In("eu"), "spot": DoesNotExist()}.

    Args:
        hard: conditions that the node must meet, by the name of the label.
        soft: conditions that it should rather meet; without effect on one machine.

    Raises:
        ConfigError: there is no condition, or one is none of In, NotIn, Exists and DoesNotExist.
    """

    def __init__(
        self, hard: Mapping[str, _Operator] | None, *, soft: Mapping[str, _Operator] | None = None
    ) -> None:
        self.hard = self._conditions("hard", hard)
        self.soft = self._conditions("soft", soft)
        if not (self.hard or self.soft):
            raise ConfigError("NodeLabelSchedulingStrategy: give conditions in hard or in soft")

    @staticmethod
    def _conditions(name: str, given: Mapping[str, _Operator] | None) -> tuple[Condition, ...]:
        entries = given or {}
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{name}={given!r}: give a dictionary of conditions by label")
        for key, operator in entries.items():
            if not isinstance(key, str) or not isinstance(operator, _Operator):
                raise ConfigError(
                    f"{name}={given!r}: give a condition by each label, one of In, NotIn, Exists and "
                    "DoesNotExist"
                )
        return tuple((key, operator.name, tuple(operator.values)) for key, operator in entries.items())


def checked_labels(labels: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """Return `labels` as a dictionary.

    Raises:
        ConfigError: a name or a value is no text.
    """
    found = dict(labels or {})
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in found.items()):
        raise ConfigError(f"{what}: {labels!r}; names and values of labels are texts")
    return found


def selected_by(selector: Mapping[str, str] | None) -> tuple[Condition, ...]:
    """Return the conditions of a `label_selector`: {"a": "x"}, "!x" for not, "in(x,y)" and "!in(x,y)".

    Raises:
        ConfigError: it is no dictionary of texts.
    """
    if selector is None:
        return ()
    if not isinstance(selector, Mapping):
        raise ConfigError(f"label_selector={selector!r}: give a dictionary, such as {{'region': 'eu'}}")
    conditions: list[Condition] = []
    for key, value in checked_labels(selector, "label_selector").items():
        listed = _SELECTOR.fullmatch(value)
        if listed:
            values = tuple(part.strip() for part in listed["values"].split(","))
            negated = bool(listed["negated"])
        else:
            negated = value.startswith("!")
            values = (value.removeprefix("!"),)
        conditions.append((key, "not in" if negated else "in", values))
    return tuple(conditions)


def require_labels(conditions: Sequence[Condition], node: Mapping[str, Any], what: str) -> None:
    """Raise InfeasibleError if the one node there is doesn't meet `conditions`.

    Args:
        conditions: of the request.
        node: the node as it is listed.
        what: asks.
    """
    labels: Mapping[str, str] = node["labels"]
    unmet = [condition for condition in conditions if not _meets(labels, *condition)]
    if unmet:
        told = ", ".join(f"{key} {operator} {list(values) or ''}".rstrip() for key, operator, values in unmet)
        raise InfeasibleError(
            f"{what} asks for a node with the labels {told}, and this machine has {dict(labels)}. Give it "
            "labels by trainkit.init(labels={...}), or ask for others"
        )


def _meets(labels: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    match operator:
        case "in":
            return labels.get(key) in values
        case "not in":
            return labels.get(key) not in values
        case "exists":
            return key in labels
    return key not in labels


_MOST_NAMED = 5
"""So many holders, or requests before this one, are named one by one."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Holder of resources, with the amounts.

    Attributes:
        who: as shown to the user, such as "trainer (pid 12)".
        amounts: what is not free because of it.
    """

    who: str
    amounts: Bundle


@dataclass(frozen=True, kw_only=True)
class Room:
    """A place that a request may be met from: the machine, or one bundle of a placement group.

    Attributes:
        name: "" for the machine, else how it is called in texts, such as "bundle 0".
        existing: what it has in all.
        ledger: what of that is free.
        holders: who has the rest.
    """

    name: str = ""
    existing: Bundle
    ledger: Ledger
    holders: Sequence[Holder] = ()


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a request waits.

    Attributes:
        lacking: names of what is not free wherever the request could be met.
        holders: who has some of that, as texts.
        reasons: all of it in sentences.
    """

    lacking: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def explain_wait(ask: Demand, rooms: Sequence[Room], before: Sequence[Demand] = ()) -> Wait:
    """Why `ask` waits.

    Args:
        ask: the request.
        rooms: where it may be met, one of them being enough; none if its placement group is not reserved.
        before: the requests that are served earlier, in order; only those count that ask for something of
            the same kind.
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
        reasons.append(f"waits behind {len(ahead) - _MOST_NAMED} more")
    if not reasons:
        reasons.append("what it asks for is free: it is about to start")
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
    return f"{is_free} of {exists} free, but in parts that do not fit what is asked: {parts}"


def _held(name: str, holders: Sequence[Holder]) -> str:
    if not holders:
        return ""
    named = ", ".join(
        f"{holder.who}: {describe({name: holder.amounts[name]})}" for holder in holders[:_MOST_NAMED]
    )
    more = f", and {len(holders) - _MOST_NAMED} more" * (len(holders) > _MOST_NAMED)
    return f"; held by {named}{more}"
