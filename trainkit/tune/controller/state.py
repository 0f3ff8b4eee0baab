"""State of an experiment's controller, which its functions are given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import overload

from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt
from trainkit.tune.controller.estimate import TimeEstimate
from trainkit.tune.controller.failures import Losses
from trainkit.tune.controller.rules import Ending, Plan, StopRules
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Donor
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.proposals import Proposals
from trainkit.tune.search.trial_source import TrialSource


class WaitingTrials:
    """Trials that wait, in the order suggested, and those among them that run when nothing else does.

    Args:
        trials: of the experiment, by index, a list that grows.
        status: of those that wait.
    """

    def __init__(self, trials: Sequence[Trial], status: TrialStatus = TrialStatus.PENDING) -> None:
        self._trials = trials
        self._parts = status is TrialStatus.PENDING
        self._shared = _Indices()
        self._alone = _Indices()
        self._by_id: dict[str, Trial] = {}
        self.sharing: Sequence[str] = _Ids(trials, self._shared, self._by_id, self._parts)
        """Ids of those that run beside others, or are paused; no copy, as there may be thousands."""
        for trial in trials:
            if trial.status is status:
                self.add(trial)

    def add(self, trial: Trial) -> None:
        """Take its place by index, whenever it comes."""
        self._line_of(trial).add(trial.index)
        self._by_id[trial.trial_id] = trial

    def take(self, trial_id: str) -> Trial:
        """Return the trial, which leaves the line."""
        trial = self._by_id[trial_id]
        self.remove(trial)
        return trial

    def remove(self, trial: Trial) -> bool:
        """Leave the line; False if it wasn't in it."""
        if self._by_id.pop(trial.trial_id, None) is None:
            return False
        self._line_of(trial).remove(trial.index)
        return True

    def _line_of(self, trial: Trial) -> _Indices:
        # Whether a paused trial goes on is the scheduler's word, beside what it goes on comes after that.
        return self._alone if trial.alone and self._parts else self._shared

    @property
    def first_alone(self) -> Trial | None:
        """The first of those that run when nothing else does."""
        first = self._alone.first
        return None if first is None else self._trials[first]

    def __iter__(self) -> Iterator[Trial]:
        return (self._trials[index] for index in sorted([*self._shared, *self._alone]))

    def __len__(self) -> int:
        return len(self._by_id)


class _Indices:
    """Whole numbers that come and go by the thousand, the first of which is asked for much oftener than all.

    So they are a set, and a heap that may hold numbers which have gone.
    """

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._heap: list[int] = []

    def add(self, index: int) -> None:
        self._held.add(index)
        heappush(self._heap, index)

    def remove(self, index: int) -> None:
        self._held.remove(index)
        if len(self._heap) > 2 * len(self._held) + 100:
            self._heap = sorted(self._held)  # which is a heap too

    @property
    def first(self) -> int | None:
        """The lowest; None: there is none."""
        while self._heap and self._heap[0] not in self._held:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)


class _Ids(Sequence[str]):
    """The ids of some trials, without a copy."""

    def __init__(
        self, trials: Sequence[Trial], indices: _Indices, known: Mapping[str, Trial], parts: bool
    ) -> None:
        self._parts = parts
        self._trials = trials
        self._indices = indices
        self._known = known

    def __contains__(self, trial_id: object) -> bool:
        trial = self._known.get(trial_id)  # type: ignore[call-overload]
        return trial is not None and not (trial.alone and self._parts)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[str]:
        return (self._trials[index].trial_id for index in self._indices)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if place == 0 and (first := self._indices.first) is not None:
            return self._trials[first].trial_id
        return list(self)[place]


@dataclass(slots=True)
class ControllerState:
    """Everything that the functions of the controller look at and change.

    Attributes:
        plan: the experiment's rules.
        stop: the rules in `plan.stop`, told already of the reports of before.
        source: where trials come from; it knows what each requests.
        proposals, scheduler: told of results, and asked.
        ledger: what trials reserve.
        estimate: of the time that trials take.
        trials: of the experiment, in the order suggested.
        by_id: the same trials by id.
        waiting, paused: trials that wait for their turn.
        spent_s: how long the experiment has run before, in seconds.
        with_metric: ids of trials that have reported the metric.
        failed: how many trials have failed.
        active: attempts that have a process, by trial.
        watched: those of them that have a limit; an end of the experiment gives all of them one.
        awaiting_donor: decisions on paused trials whose donor is just saving a checkpoint.
        adopting: by trial, whose checkpoint is being copied to it, and after which report that was saved.
        step: where records and actions gather.
        ending: what has ended the experiment early; None as long as it goes on.
        error: what searcher, scheduler or stopper raised first, if one did, or what broke the experiment off.
        began: when the experiment began.
        budget_ends: when its time budget is spent.
        has_reports: some trial has reported.
        none_come: the scheduler knows that it need not wait for further trials.
        more_by: when further trials are to be started.
        losses: sessions lost in a row.
    """

    plan: Plan
    stop: StopRules
    source: TrialSource
    proposals: Proposals
    scheduler: CheckedScheduler
    ledger: ResourceLedger
    estimate: TimeEstimate
    trials: list[Trial]
    by_id: dict[str, Trial]
    waiting: WaitingTrials
    paused: WaitingTrials
    spent_s: float
    with_metric: set[str]
    failed: int
    active: dict[str, ActiveAttempt] = field(default_factory=dict)
    watched: dict[str, ActiveAttempt] = field(default_factory=dict)
    awaiting_donor: dict[str, Decision] = field(default_factory=dict)
    adopting: dict[str, tuple[Donor, int]] = field(default_factory=dict)
    step: ev.Step = field(default_factory=ev.Step)
    ending: Ending | None = None
    error: Exception | None = None
    began: float = 0.0
    budget_ends: float = math.inf
    has_reports: bool = False
    none_come: bool = False
    more_by: float = math.inf
    losses: Losses = field(default_factory=Losses)
