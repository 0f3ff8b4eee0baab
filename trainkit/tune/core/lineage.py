"""Exchanges of state between trials, and the training that led to a trial's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """A trial went on with another configuration, from a checkpoint of its own or of another trial.

    Attributes:
        trial_id: of the trial.
        iteration: its last report before; its reports count on from there.
        config: that it had from then on.
        donor: whose checkpoint it was; None: its own.
        donor_iteration: the donor's last report before that checkpoint.
    """

    trial_id: str
    iteration: int
    config: Mapping[str, Any]
    donor: str | None = None
    donor_iteration: int | None = None


@dataclass(frozen=True)
class Stretch:
    """Training with one configuration, in one trial.

    Attributes:
        trial_id: in which it took place.
        config: that it had.
        first, last: its reports, by that trial's count: those after `first`, up to `last`.
        before: how many reports the stretches before it have.
    """

    trial_id: str
    config: Mapping[str, Any]
    first: int
    last: int
    before: int

    def __len__(self) -> int:
        """How many reports it has."""
        return self.last - self.first


def lineage(
    exchanges: Sequence[Exchange], suggested: Mapping[str, Mapping[str, Any]], trial_id: str, last: int
) -> list[Stretch]:
    """Return the stretches that led to where a trial stood after report `last`, the first one first.

    It follows the weights: what a trial did before it took over another's state is none of it.

    Args:
        exchanges: of all trials, in the order in which they happened.
        suggested: by trial, the configuration that it began with.
        trial_id: of the trial.
        last: its report.
    """
    found: list[tuple[str, Mapping[str, Any], int, int]] = []
    earlier = len(exchanges)
    while True:
        place = _last_of(exchanges, trial_id, last, earlier)
        if place is None:
            found.append((trial_id, suggested[trial_id], 0, last))
            break
        exchange = exchanges[place]
        found.append((trial_id, exchange.config, exchange.iteration, last))
        earlier = place
        last = exchange.iteration
        if exchange.donor is not None and exchange.donor_iteration is not None:
            trial_id, last = exchange.donor, exchange.donor_iteration
    stretches: list[Stretch] = []
    before = 0
    for whose, config, first, end in reversed(found):
        if end > first:
            stretches.append(Stretch(whose, config, first, end, before))
            before += end - first
    # Where nothing was trained since the last exchange, what comes next is with the configuration of that.
    whose, config, first, end = found[0]
    if end == first:
        stretches.append(Stretch(whose, config, first, end, before))
    return stretches


def _last_of(exchanges: Sequence[Exchange], trial_id: str, last: int, earlier: int) -> int | None:
    """Where the last exchange of a trial stands, of those up to its report `last`, before place `earlier`."""
    places = range(earlier - 1, -1, -1)
    return next(
        (
            place
            for place in places
            if exchanges[place].trial_id == trial_id and exchanges[place].iteration <= last
        ),
        None,
    )


def ages(exchanges: Sequence[Exchange]) -> Callable[[str, int], int]:
    """Return what says of a trial and one of its reports how many reports have led to the weights there.

    Args:
        exchanges: of all trials, in the order in which they happened.
    """
    shifts: dict[str, list[tuple[int, int]]] = {}

    def age(trial_id: str, iteration: int, *, after: bool = False) -> int:
        """At a report; or `after` it, with the state that was taken over then, if one was."""
        taken = reversed(shifts.get(trial_id, []))
        return iteration + next((shift for since, shift in taken if since < iteration + after), 0)

    for each in exchanges:
        donor, since = each.donor or each.trial_id, each.donor_iteration
        if each.donor is None or since is None:
            since = each.iteration
        shift = age(donor, since, after=True) - each.iteration
        shifts.setdefault(each.trial_id, []).append((each.iteration, shift))
    return age
