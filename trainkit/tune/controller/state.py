"""State of an experiment's controller, which its functions are given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, overload

from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt
from trainkit.tune.controller.estimate import TimeEstimate
from trainkit.tune.controller.failures import Losses
from trainkit.tune.controller.rules import Ending, Plan, StopRules
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Donor
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.trial_source import Proposals, TrialSource


class Line(Sequence[str]):
    """Ids of trials in the order suggested, in whichever order they come and go.

    The first is asked for much oftener than all, so there is a heap, which may hold some that have gone.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def add(self, trial: Trial) -> None:
        self._places[trial.trial_id] = trial.index
        heappush(self._heap, (trial.index, trial.trial_id))

    def remove(self, trial: Trial) -> None:
        del self._places[trial.trial_id]
        if len(self._heap) > 2 * len(self._places) + 100:
            self._heap = [(index, trial_id) for trial_id, index in self._places.items()]
            heapify(self._heap)

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._places, key=self._places.__getitem__))

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if place != 0 or not self._places:
            return list(self)[place]
        while self._heap[0][1] not in self._places:
            heappop(self._heap)
        return self._heap[0][1]


class WaitingTrials:
    """Trials that wait, in the order suggested, and those among them that run when nothing else does.

    Args:
        trials: of the experiment.
        status: of those that wait.
    """

    def __init__(self, trials: Sequence[Trial], status: TrialStatus = TrialStatus.PENDING) -> None:
        self._parts = status is TrialStatus.PENDING
        self._alone = Line()
        self._by_id: dict[str, Trial] = {}
        self.sharing = Line()
        """Ids of those that run beside others, or are paused; no copy, as there may be thousands."""
        for trial in trials:
            if trial.status is status:
                self.add(trial)

    def add(self, trial: Trial) -> None:
        """Take its place by index, whenever it comes."""
        self._line_of(trial).add(trial)
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
        self._line_of(trial).remove(trial)
        return True

    def _line_of(self, trial: Trial) -> Line:
        # Whether a paused trial goes on is the scheduler's word, beside what it goes on comes after that.
        return self._alone if trial.alone and self._parts else self.sharing

    @property
    def first_alone(self) -> Trial | None:
        """The first of those that run when nothing else does."""
        return self._by_id[self._alone[0]] if self._alone else None

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._by_id

    def __iter__(self) -> Iterator[Trial]:
        return iter(sorted(self._by_id.values(), key=attrgetter("index")))

    def __len__(self) -> int:
        return len(self._by_id)


@dataclass(slots=True)
class Steering:
    """Commands that hold until others lift them.

    Attributes:
        paused_by: who has paused the experiment as a whole; '': nobody.
        holds: by trial that was paused by itself, who has done that.
        pulled: ids of trials that were paused while they ran. The scheduler, which would have let them go
            on, knows nothing of that.
        first: by trial that is to run before the others, since when; those that were asked for later come
            first.
    """

    paused_by: str = ""
    holds: dict[str, str] = field(default_factory=dict)
    pulled: set[str] = field(default_factory=set)
    first: dict[str, float] = field(default_factory=dict)

    def take(self, verb: str, arguments: Mapping[str, Any], by: str, time: float) -> None:
        """Take in a command that was carried out; in a restore too."""
        trial_id: Any = arguments.get("trial")
        match verb:
            case "pause" if trial_id is None:
                self.paused_by = by
            case "pause":
                self.holds[trial_id] = by
            case "resume" if trial_id is None:
                self.paused_by = ""
            case "resume":
                self.holds.pop(trial_id, None)
            case "prioritise" if trial_id is not None:
                self.first.pop(trial_id, None)
                self.first[trial_id] = time

    def who_holds(self, trial_id: str) -> str:
        """Return who has paused the trial, or all; '': nobody."""
        return self.holds.get(trial_id, self.paused_by)

    def keeps_aside(self, trial_id: str) -> bool:
        """True if the trial is in no line when it has no process."""
        return trial_id in self.holds or (trial_id in self.pulled and bool(self.paused_by))

    def forget(self, trial_id: str) -> None:
        """The trial has ended."""
        self.holds.pop(trial_id, None)
        self.pulled.discard(trial_id)
        self.first.pop(trial_id, None)


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
        steering: commands that hold.
        held: trials that such a command keeps out of both lines, by id.
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
        left_out: keys that stoppers have added to reports, with values that can't be stored.
        begun_anew: by trial without a checkpoint, the iteration at which a pause last let it begin anew.
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
    steering: Steering = field(default_factory=Steering)
    held: dict[str, Trial] = field(default_factory=dict)
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
    left_out: set[Any] = field(default_factory=set)
    begun_anew: dict[str, int] = field(default_factory=dict)
