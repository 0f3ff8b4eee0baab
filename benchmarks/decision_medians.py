"""Median rules of Ray and Optuna compared with ours, on the same reports.

Both decisions are recomputed from the reports by one rule with switches. With all switches off it must give
our decision, with all switches on the peer's. The cause of a difference is the smallest set of switches that,
when turned off, gives our decision.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from itertools import combinations
from statistics import median
from typing import Any

from benchmarks import ray_schedulers
from benchmarks.decision_streams import stream
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import Decision, MedianStoppingRule, TrialScheduler, Verdict

LAST_T = 12
"""Length of the trials; it is short, so that some trials reach their end."""

Told = dict[str, list[tuple[int, float]]]
Rule = Callable[[Told, Set[str], str, Set[str]], bool]
"""Rule (all reports, complete trials, trial, active faults) -> True if the trial stops."""

TWICE = "a completed trial's last report counts twice"
DROPS = "averages that are no number are left out"
OWN_NAN = "an own first report of NaN stops the trial"
BACK = "reports from before a restore count again"
COUNTS_ALL = "completed trials count as samples where they have no value at the step"
EXACT = "only values at the very step count"
INFINITE = "plus infinity is the best there is"


class MedianPeer(ABC):
    """A library's median rule, which maximises the metric.

    Attributes:
        name: name of the library's rule.
        kinds: kinds of streams for which the library defines a behaviour.
        faults: faults by which the rule differs from ours.
    """

    name: str
    kinds: tuple[str, ...]
    faults: tuple[str, ...]
    samples: int

    @abstractmethod
    def ours(self) -> TrialScheduler:
        """Return our scheduler with the same settings."""

    @abstractmethod
    def add(self, trial: str) -> None:
        """Begin a trial."""

    @abstractmethod
    def stops(self, trial: str, t: int, value: float) -> bool:
        """Pass a report to the rule; return True if the rule stops the trial."""

    @abstractmethod
    def ended(self, trial: str, last: tuple[int, float], *, complete: bool) -> None:
        """End a trial, after its last report or because it was stopped."""

    @abstractmethod
    def rule(self, told: Told, complete: Set[str], trial: str, faults: Set[str]) -> bool:
        """Return the decision by the peer's rule with these faults; without faults, it is our decision."""


def _worst(value: float, faults: Set[str]) -> float:
    if math.isnan(value) or (math.isinf(value) and INFINITE not in faults):
        return -math.inf
    return value


def _rising(reports: list[tuple[int, float]], faults: Set[str]) -> list[tuple[int, float]]:
    """Return the reports whose time exceeds all earlier times, or all reports with the fault BACK."""
    if BACK in faults:
        return list(reports)
    kept: list[tuple[int, float]] = []
    for t, value in reports:
        if not kept or t > kept[-1][0]:
            kept.append((t, value))
    return kept


class Ray(MedianPeer):
    """Ray's MedianStoppingRule."""

    name = "Ray median"
    kinds = ("plain", "ties", "NaN", "jumps", "back")
    faults = (TWICE, DROPS, OWN_NAN, BACK, INFINITE)
    samples = 3

    def __init__(self) -> None:
        module = ray_schedulers.load("median_stopping_rule")
        self._scheduler = module.MedianStoppingRule(
            time_attr="training_iteration", metric="u", mode="max", grace_period=1, min_samples_required=3
        )
        self._trials: dict[str, ray_schedulers.Trial] = {}

    def ours(self) -> TrialScheduler:
        return MedianStoppingRule("training_iteration", "u", "max", 1, 3)

    def add(self, trial: str) -> None:
        self._trials[trial] = ray_schedulers.Trial(trial)
        self._scheduler.on_trial_add(None, self._trials[trial])

    def stops(self, trial: str, t: int, value: float) -> bool:
        result = {"training_iteration": t, "u": value}
        answer = self._scheduler.on_trial_result(ray_schedulers.Controller(), self._trials[trial], result)
        return str(answer) == "STOP"

    def ended(self, trial: str, last: tuple[int, float], *, complete: bool) -> None:
        if complete:  # as Ray's controller does; it does not do so after STOP
            result = {"training_iteration": last[0], "u": last[1]}
            self._scheduler.on_trial_complete(None, self._trials[trial], result)

    def rule(self, told: Told, complete: Set[str], trial: str, faults: Set[str]) -> bool:
        own = _rising(told[trial], faults)
        t = told[trial][-1][0]
        if BACK not in faults and own[-1] != told[trial][-1]:
            return False
        averages = []
        for other, reports in told.items():
            counted = _rising(reports, faults)
            if TWICE in faults and other in complete:
                counted.append(counted[-1])
            if other == trial or counted[-1][0] < t:
                continue
            values = [value for at, value in counted if at <= t]
            if not values:
                continue
            if DROPS in faults:
                average = sum(values) / len(values)
                if math.isfinite(average):
                    averages.append(average)
            else:
                averages.append(sum(_worst(value, faults) for value in values) / len(values))
        if len(averages) < self.samples:
            return False
        if OWN_NAN in faults and math.isnan(own[0][1]):
            return True
        best = max((_worst(value, faults) for _, value in own), default=-math.inf)
        return best < median(averages)


class Optuna(MedianPeer):
    """Optuna's MedianPruner."""

    name = "Optuna median"
    kinds = ("plain", "ties", "NaN", "jumps")
    faults = (DROPS, COUNTS_ALL, EXACT, INFINITE)
    samples = 5

    def __init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._states = optuna.trial.TrialState
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=0)
        self._study = optuna.create_study(direction="maximize", pruner=pruner, study_name="decisions")
        self._trials: dict[str, Any] = {}

    def ours(self) -> TrialScheduler:
        return MedianStoppingRule("training_iteration", "u", "max", 1, 5, pool="completed", compare="value")

    def add(self, trial: str) -> None:
        self._trials[trial] = self._study.ask()

    def stops(self, trial: str, t: int, value: float) -> bool:
        self._trials[trial].report(value, t)
        return bool(self._trials[trial].should_prune())

    def ended(self, trial: str, last: tuple[int, float], *, complete: bool) -> None:
        if complete:
            self._study.tell(self._trials[trial], 0.0)
        else:
            self._study.tell(self._trials[trial], state=self._states.PRUNED)

    def rule(self, told: Told, complete: Set[str], trial: str, faults: Set[str]) -> bool:
        t = told[trial][-1][0]
        values = []
        for other in complete - {trial}:
            if told[other][-1][0] < t and EXACT not in faults:
                continue
            at = [value for when, value in told[other] if when == t or (EXACT not in faults and when < t)]
            if at and not (DROPS in faults and math.isnan(at[-1])):
                values.append(_worst(at[-1], faults))
        own = [value for _, value in told[trial]]
        if COUNTS_ALL in faults and len(complete) >= self.samples and all(map(math.isnan, own)):
            return True
        enough = len(complete) if COUNTS_ALL in faults else len(values)
        if enough < self.samples or not values:
            return False
        return max(_worst(value, faults) for value in own) < median(values)


PEERS = (Ray, Optuna)


def drive(peer: MedianPeer, kind: str, seed: int) -> tuple[int, list[tuple[str | None, str]]]:
    """Give both sides one stream; return the number of reports, and cause and line of each difference."""
    ours = peer.ours()
    ours.set_search_properties("u", "max", scheduler_generator(seed))
    told: Told = {}
    complete: set[str] = set()
    ended: set[str] = set()
    reports, lines = 0, []
    for trial, t, value in stream(kind, seed, last_t=LAST_T):
        if trial in ended:
            continue
        if value is None:
            raise ValueError(f"{kind} has reports without a value, of which median rules say nothing")
        if trial not in told:
            ours.on_trial_add(trial)
            peer.add(trial)
        told.setdefault(trial, []).append((t, value))
        decision = ours.on_result(trial, {"training_iteration": t, "u": value})
        stops, reports = peer.stops(trial, t, value), reports + 1
        if stops != (decision.verdict is Verdict.STOP):
            cause = cause_of(peer, told, complete, trial, decision, stops)
            lines.append(
                (
                    cause,
                    f"{peer.name}, {kind} {seed}: trial {trial} at {t} with {value}: "
                    f"{'STOP' if stops else 'CONTINUE'}, ours {decision.verdict} ({dict(decision.reason)}): "
                    f"{cause or 'UNEXPLAINED'}",
                )
            )
        stopped = decision.verdict is Verdict.STOP
        if stops or stopped or t >= LAST_T:
            ended.add(trial)
            peer.ended(trial, (t, value), complete=not (stops or stopped))
            if stops and not stopped:
                ours.on_trial_error(trial)  # Ray's class takes no further reports, so the trial ends for both
            else:
                ours.on_trial_complete(trial)
            if not (stops or stopped):
                complete.add(trial)
    return reports, lines


def cause_of(
    peer: MedianPeer, told: Told, complete: Set[str], trial: str, ours: Decision, stops: bool
) -> str | None:
    """Return the fewest faults without which the peer would decide as ours; None if no faults explain it."""
    stopped = ours.verdict is Verdict.STOP
    if peer.rule(told, complete, trial, set()) != stopped:
        return None
    if peer.rule(told, complete, trial, set(peer.faults)) != stops:
        return None
    for number in range(1, len(peer.faults) + 1):
        for off in combinations(peer.faults, number):
            if peer.rule(told, complete, trial, set(peer.faults) - set(off)) == stopped:
                return "; ".join(off)
    return None
