"""Why a request waits, in words; pure, from plain data about what there is and who has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainkit.resources import QUANTUM, Bundle, describe, total
from trainkit.runtime.placement import GPU, Ledger

_MOST_NAMED = 5
"""So many holders, or requests before this one, are named one by one."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has what.

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
class Ask:
    """A request that waits.

    Attributes:
        what: as shown to the user, such as "a group of 3 bundles".
        bundles: to be had all or none.
    """

    what: str
    bundles: Sequence[Bundle]


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


def why(ask: Ask, rooms: Sequence[Room], before: Sequence[Ask] = ()) -> Wait:
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


def _shortage(name: str, ask: Ask, room: Room) -> str:
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
