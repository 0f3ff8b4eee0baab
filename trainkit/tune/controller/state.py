"""State of an experiment's controller, which all functions of the controller receive."""

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
from trainkit.tune.search.trial_source import TrialSource


class Line(Sequence[str]):
    """Queue of trial ids in the order of suggestion; trials may be added and removed in any order.

    The first id is read far more often than all ids, so a heap keeps the ids. The heap may contain ids that
    were removed from the queue.
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
    """Waiting trials in the order of suggestion; trials that must run alone have their own queue.

    Args:
        trials: trials of the experiment.
        status: status of the waiting trials.
    """

    def __init__(self, trials: Sequence[Trial], status: TrialStatus = TrialStatus.PENDING) -> None:
        self._parts = status is TrialStatus.PENDING
        self._alone = Line()
        self._by_id: dict[str, Trial] = {}
        self.sharing = Line()
        """Ids of paused trials, or of pending trials that may run beside others.

        The queue may have so many ids that a copy would take too long.
        """
        for trial in trials:
            if trial.status is status:
                self.add(trial)

    def add(self, trial: Trial) -> None:
        """Insert a trial into its queue, in the order of trial indexes."""
        self._line_of(trial).add(trial)
        self._by_id[trial.trial_id] = trial

    def take(self, trial_id: str) -> Trial:
        """Remove a trial and return it."""
        trial = self._by_id[trial_id]
        self.remove(trial)
        return trial

    def remove(self, trial: Trial) -> bool:
        """Remove a trial; return False if the trial was not waiting."""
        if self._by_id.pop(trial.trial_id, None) is None:
            return False
        self._line_of(trial).remove(trial)
        return True

    def _line_of(self, trial: Trial) -> Line:
        # Only pending trials that must run alone have a separate queue. The scheduler chooses among all
        # paused trials together.
        return self._alone if trial.alone and self._parts else self.sharing

    @property
    def first_alone(self) -> Trial | None:
        """The first trial that must run alone, or None."""
        return self._by_id[self._alone[0]] if self._alone else None

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._by_id

    def __iter__(self) -> Iterator[Trial]:
        return iter(sorted(self._by_id.values(), key=attrgetter("index")))

    def __len__(self) -> int:
        return len(self._by_id)


@dataclass(slots=True)
class Steering:
    """Users' commands that apply until other commands lift them.

    Attributes:
        paused_by: person who paused the whole experiment, or ''.
        holds: person who paused each single trial, by trial id.
        pulled: ids of trials that a user's command paused while they were running. The scheduler is not
            notified of these pauses, because its decision was that the trials continue.
        withdrawn: ids of trials that a user's command ends. For the scheduler, these trials have failed,
            because their last reports are not the results of complete trials.
        first: prioritised trials with the time of each request; the trial of the latest request runs first.
    """

    paused_by: str = ""
    holds: dict[str, str] = field(default_factory=dict)
    pulled: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    first: dict[str, float] = field(default_factory=dict)

    def take(self, verb: str, arguments: Mapping[str, Any], by: str, time: float) -> None:
        """Apply a user's command; a restore applies recorded commands again."""
        trial_id: Any = arguments.get("trial")
        match verb:
            case "stop" if trial_id is not None:
                self.withdrawn.add(trial_id)
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
        """Return the person who paused the trial or the experiment, or ''."""
        return self.holds.get(trial_id, self.paused_by)

    def keeps_aside(self, trial_id: str) -> bool:
        """Return True if a user's pause keeps the trial out of the queues when it has no process."""
        return trial_id in self.holds or (trial_id in self.pulled and bool(self.paused_by))

    def forget(self, trial_id: str) -> None:
        """Remove all commands about a trial that has ended."""
        self.holds.pop(trial_id, None)
        self.pulled.discard(trial_id)
        self.withdrawn.discard(trial_id)
        self.first.pop(trial_id, None)


@dataclass(slots=True)
class ControllerState:
    """State that the functions of the controller read and change.

    Attributes:
        plan: rules of the experiment.
        stop: stop rules, which have already received the earlier reports.
        source: source of trials and their resource requests, which also receives the results.
        scheduler: scheduler that receives the results and decides on trials.
        ledger: account of the resources that trials have reserved.
        estimate: estimate of the remaining time.
        trials: trials of the experiment, in the order of suggestion.
        by_id: all trials of the experiment, by id.
        waiting, paused: queues of pending and of paused trials.
        steering: users' commands that still apply.
        held: trials that a command keeps out of both queues, by id.
        spent_s: seconds that the experiment ran before this run.
        with_metric: ids of trials that have reported the metric.
        failed: number of failed trials.
        active: attempts that have a process, by trial id.
        watched: active attempts with a time limit, by trial id; when the experiment ends, all active attempts
            have a time limit.
        awaiting_donor: decisions on paused trials whose donor is still saving a checkpoint, by trial id.
        adopting: decision on a paused trial, donor, and iteration of the checkpoint that is being copied, by
            trial id.
        step: records and actions collected for the caller.
        ending: reason of an early end; None while the experiment continues.
        error: first error of searcher, scheduler or stopper, or the error that ended the experiment.
        began: start time of this run.
        budget_ends: time at which the time budget is spent.
        has_reports: True if any trial has reported.
        none_come: True if the scheduler has been notified that no new trials follow.
        more_by: time at which the controller will start further trials.
        losses: counter of consecutively lost sessions.
        preemptions: counters of a trial's consecutively lost machines, by trial id.
        left_out: keys with unstorable values that stoppers have added to reports.
        begun_anew: for each trial that must restart because it had no checkpoint at its last pause, the
            iteration of this pause; by trial id.
    """

    plan: Plan
    stop: StopRules
    source: TrialSource
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
    adopting: dict[str, tuple[Decision, Donor, int]] = field(default_factory=dict)
    step: ev.Step = field(default_factory=ev.Step)
    ending: Ending | None = None
    error: Exception | None = None
    began: float = 0.0
    budget_ends: float = math.inf
    has_reports: bool = False
    none_come: bool = False
    more_by: float = math.inf
    losses: Losses = field(default_factory=Losses)
    preemptions: dict[str, Losses] = field(default_factory=dict)
    left_out: set[Any] = field(default_factory=set)
    begun_anew: dict[str, int] = field(default_factory=dict)
