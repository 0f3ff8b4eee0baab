"""Exchanges of weights between trials, and the training histories of trials' weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """Change of a trial's configuration, combined with a checkpoint of this trial or of another trial.

    Attributes:
        trial_id: id of the trial.
        iteration: iteration of the trial's last report before the change; later reports continue this count.
        config: the new configuration.
        donor: trial that made the checkpoint; None: this trial itself.
        donor_iteration: iteration of the donor's last report before the checkpoint.
    """

    trial_id: str
    iteration: int
    config: Mapping[str, Any]
    donor: str | None = None
    donor_iteration: int | None = None


@dataclass(frozen=True)
class Stretch:
    """Part of the training history: consecutive reports of one trial with one configuration.

    Attributes:
        trial_id: id of the trial that made these reports.
        config: configuration of the trial during these reports.
        first, last: the part contains the reports after iteration `first`, up to and including iteration
            `last`.
        before: total number of reports in all earlier parts of the training history.
    """

    trial_id: str
    config: Mapping[str, Any]
    first: int
    last: int
    before: int

    def __len__(self) -> int:
        """Return the number of reports in this part of the training history."""
        return self.last - self.first


def lineage(
    exchanges: Sequence[Exchange], suggested: Mapping[str, Mapping[str, Any]], trial_id: str, last: int
) -> list[Stretch]:
    """Return the parts of the training history that led to a trial's weights at report `last`, earliest
    first.

    If the trial took over the weights of another trial, its own earlier reports are left out, because they
    did not train these weights.

    Args:
        exchanges: exchanges of all trials, in chronological order.
        suggested: the first configuration of each trial.
        trial_id: id of the trial.
        last: iteration of the report.
    """
    found: list[tuple[str, Mapping[str, Any], int, int]] = []
    for exchange in reversed(exchanges):
        if exchange.trial_id == trial_id and exchange.iteration <= last:
            found.append((trial_id, exchange.config, exchange.iteration, last))
            last = exchange.iteration
            if exchange.donor is not None and exchange.donor_iteration is not None:
                trial_id, last = exchange.donor, exchange.donor_iteration
    found.append((trial_id, suggested[trial_id], 0, last))
    stretches: list[Stretch] = []
    before = 0
    for part in reversed(found):
        whose, config, first, end = part
        # If the trial has not reported since its last exchange, the last part is empty. The empty part stays,
        # because callers read the configuration of the trial's further training from the last part.
        if end > first or part is found[0]:
            stretches.append(Stretch(whose, config, first, end, before))
            before += end - first
    return stretches


def ages(exchanges: Sequence[Exchange]) -> Callable[[str, int], int]:
    """Return a function that maps a trial's id and iteration to the number of reports that trained its
    weights.

    Args:
        exchanges: exchanges of all trials, in chronological order.
    """
    shifts: dict[str, list[tuple[int, int]]] = {}

    def age(trial_id: str, iteration: int, *, after: bool = False) -> int:
        """Return the number of reports that trained the weights at `iteration`.

        If `after` is True, an exchange at `iteration` is also taken into account.
        """
        taken = reversed(shifts.get(trial_id, []))
        return iteration + next((shift for since, shift in taken if since < iteration + after), 0)

    for each in exchanges:
        donor, since = each.donor or each.trial_id, each.donor_iteration
        if each.donor is None or since is None:
            since = each.iteration
        shift = age(donor, since, after=True) - each.iteration
        shifts.setdefault(each.trial_id, []).append((each.iteration, shift))
    return age
