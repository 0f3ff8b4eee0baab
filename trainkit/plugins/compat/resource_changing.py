"""Scheduler that changes the resources of trials while they run, in addition to any base scheduler.

The log does not record which resources are free at a trial's report, but it records each new reservation. So
a replay does not call the allocation function: `on_trial_request` passes each trial's reservation from the
log to the scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trainkit.errors import ConfigError
from trainkit.resources import describe, normalize
from trainkit.tune.core.checks import forwarded, is_number, is_whole, require_mode
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.resources import PlacementGroupFactory, as_request
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.schedulers.base import (
    Decision,
    Facts,
    FIFOScheduler,
    TrialScheduler,
    Verdict,
    check_made,
    score_of,
    words_of,
)
from trainkit.tune.schedulers.checked import CheckedScheduler

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.core.capacity import ExperimentView
    from trainkit.tune.core.trial import Trial


class Situation(NamedTuple):
    """State of the experiment at a trial's report, from which `DistributeResources` computes.

    Attributes:
        live: all trials that have not ended, including the trial that reported.
        has: number of units that each trial has now beyond its initial reservation, by trial id.
        free: number of units that are not in use; if negative, the number of units by which trials exceed
            the resources.
        spare: number of units that remain if each live trial has its initial reservation.
        scheduler: the calling scheduler.
    """

    live: Sequence[Trial]
    has: Mapping[str, int]
    free: int
    spare: int
    scheduler: ResourceChangingScheduler


class DistributeResources:
    """Divide all resources evenly among the live trials; each trial keeps at least its initial reservation.

    A trial grows by whole units, up to its even share, while resources are free. A trial shrinks when its
    even share becomes smaller, for example because more trials have begun.

    Args:
        add_bundles: True: each unit becomes a new bundle of the trial. False: each unit is added to the
            trial's only bundle.
        increase_by: resources of one unit, such as {"CPU": 2}. None: 1 GPU if trials begin with GPUs, else 1
            CPU; with `add_bundles`, a copy of the last bundle that trials begin with.
        increase_by_times: maximum number of units that a trial receives; numbers below 1 mean no limit. If
            this argument is given, `increase_by` must be given too.
        reserve_resources: resources that are never added to a trial's initial reservation.

    Raises:
        ConfigError: an amount is invalid, or `increase_by` is empty.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
    ) -> None:
        if not is_whole(increase_by_times):
            raise ConfigError(f"increase_by_times={increase_by_times!r}: give a whole number; -1: no limit")
        self.add_bundles = add_bundles
        self.increase_by = normalize(increase_by or {}, what="increase_by")
        if increase_by is not None and not self.increase_by:
            raise ConfigError(f"increase_by={dict(increase_by)!r} needs resources, such as {{'CPU': 1}}")
        self.increase_by_times = increase_by_times
        self.reserve_resources = normalize(reserve_resources or {}, what="reserve_resources")

    @property
    def arguments(self) -> dict[str, Any]:
        """Constructor arguments that create an equal allocation function."""
        names = "add_bundles increase_by_times reserve_resources".split()
        return {**{name: getattr(self, name) for name in names}, "increase_by": self.increase_by or None}

    def __call__(
        self,
        tune_controller: ExperimentView,
        trial: Trial,
        result: Mapping[str, Any],
        scheduler: ResourceChangingScheduler,
    ) -> PlacementGroupFactory | None:
        """Return the new reservation of `trial`; None keeps the current reservation.

        Raises:
            ConfigError: trials begin with several bundles, and `add_bundles` is False.
        """
        base = scheduler.base_trial_resources
        if base is None or (lookup(result, "training_iteration") or 0) < 1:
            return None
        if not self.add_bundles and len(base.bundles) > 1:
            raise ConfigError(
                f"{type(self).__name__}(add_bundles=False) supports one bundle only, but trials begin with "
                f"{len(base.bundles)} bundles: pass add_bundles=True"
            )
        unit = self._unit(base)
        live = tune_controller.get_live_trials()
        requests = {each.trial_id: scheduler.request_of(each) for each in live}
        has = {trial_id: self._units(request, base, unit) for trial_id, request in requests.items()}
        room = {
            name: amount - self.reserve_resources.get(name, 0.0)
            for name, amount in tune_controller.existing.items()
        }
        used = _sum([request.required_resources for request in requests.values()])
        free = _times(unit, {name: amount - used.get(name, 0.0) for name, amount in room.items()})
        at_first = base.required_resources
        spare = {name: amount - len(live) * at_first.get(name, 0.0) for name, amount in room.items()}
        there = Situation(live, has, free, max(0, _times(unit, spare)), scheduler)
        units = self._wanted(trial, there)
        most = self.increase_by_times if self.increase_by and self.increase_by_times >= 1 else math.inf
        return self._request(base, unit, int(max(0, min(units, most))))

    def _wanted(self, trial: Trial, there: Situation) -> int:
        """Return the number of units that the reporting trial should have beyond its first reservation."""
        # The share is rounded up, so that some trials receive one unit more than other trials while units are
        # free.
        share = -(-there.spare // len(there.live))
        return min(share, there.has[trial.trial_id] + there.free)

    def _unit(self, base: PlacementGroupFactory) -> dict[str, float]:
        if self.increase_by:
            return self.increase_by
        if self.add_bundles:
            return dict(base.bundles[-1])
        return {"GPU": 1} if base.required_resources.get("GPU") else {"CPU": 1}

    def _units(
        self, request: PlacementGroupFactory, base: PlacementGroupFactory, unit: Mapping[str, float]
    ) -> int:
        if self.add_bundles:
            return max(0, len(request.bundles) - len(base.bundles))
        at_first = base.required_resources
        more = {name: n - at_first.get(name, 0.0) for name, n in request.required_resources.items()}
        return max(0, _times(unit, more))

    def _request(
        self, base: PlacementGroupFactory, unit: Mapping[str, float], units: int
    ) -> PlacementGroupFactory:
        if self.add_bundles:
            return PlacementGroupFactory([*base.bundles, *[unit] * units], base.strategy)
        more = {name: amount * units for name, amount in unit.items()}
        return PlacementGroupFactory([_sum([base.bundles[0], more])], base.strategy)


class DistributeResourcesToTopJob(DistributeResources):
    """Give all free resources to the best live trial; the other trials keep their current resources.

    The best trial is the trial whose last report has the best value of the metric, among the trials that may
    still grow. A trial shrinks only when more resources are in use than exist.

    Args:
        add_bundles, increase_by, increase_by_times, reserve_resources: see `DistributeResources`.
        metric: reported value by which trials are compared; None: the metric of the scheduler.
        mode: "min" or "max"; None: the mode of the scheduler.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        require_mode(mode)
        self.metric = metric
        self.mode = mode

    @property
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments, "metric": self.metric, "mode": self.mode}

    def _wanted(self, trial: Trial, there: Situation) -> int:
        metric, mode = self.metric or there.scheduler.metric, self.mode or there.scheduler.mode
        if metric is None or mode is None:
            raise ConfigError(
                "DistributeResourcesToTopJob gives resources to the best trial by a metric: "
                "set TuneConfig(metric='loss', mode='min') to what your trainable reports"
            )
        own = there.has[trial.trial_id] + min(there.free, 0)
        limited = self.increase_by and self.increase_by_times >= 1
        growing = [
            one for one in there.live if not limited or there.has[one.trial_id] < self.increase_by_times
        ]
        # If several trials are equally good, `max` returns the first of them.
        best = max(growing, key=lambda one: _score(one, metric, mode), default=None)
        is_best = best is not None and best.trial_id == trial.trial_id
        return own + max(there.free, 0) if is_best else own


def _score(trial: Trial, metric: str, mode: str) -> float:
    value = lookup(trial.last_result, metric)
    return score_of(value, mode) if is_number(value) else -math.inf


def _sum(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            amounts[name] = amounts.get(name, 0.0) + amount
    return amounts


def _times(unit: Mapping[str, float], amounts: Mapping[str, float]) -> int:
    """Return how many times `unit` fits into `amounts`, rounded down; negative if an amount is negative."""
    return min(math.floor(amounts.get(name, 0.0) / each + 1e-9) for name, each in unit.items() if each)


evenly_distribute_cpus_gpus = DistributeResources(add_bundles=False)
evenly_distribute_cpus_gpus_distributed = DistributeResources(add_bundles=True)


Allocation = Callable[..., PlacementGroupFactory | None]
"""Function of the experiment, a trial, its report and the scheduler; it returns the trial's new
reservation."""

_OURS = {cls.__name__: cls for cls in (DistributeResources, DistributeResourcesToTopJob)}


@forwarded(
    "base_scheduler",
    TrialScheduler,
    "completed_space objectives set_objectives take_space on_begin on_no_more_trials on_trial_add "
    "on_trial_change on_trial_again",
)
class ResourceChangingScheduler(TrialScheduler):
    """Scheduler that changes the resources of running trials; a base scheduler makes all other decisions.

    After each report, if the trial continues, the allocation function returns the trial's new reservation. If
    the reservation changes, the trial is paused. The trial then resumes from its checkpoint with the new
    reservation, before other trials start. Inside a trial, `tune.get_context().get_trial_resources()` returns
    the current reservation.

    Args:
        base_scheduler: scheduler that makes all other decisions; None: a FIFOScheduler.
        resources_allocation_function: allocation function, called as `f(tune_controller, trial, result,
            scheduler)`. `tune_controller` is an `ExperimentView`, with `existing`, `free` and
            `get_live_trials()`. The function returns a `PlacementGroupFactory`, a dictionary such as {"cpu":
            2}, or None for no change. If no function is given, reservations never change.

    Raises:
        ConfigError: `base_scheduler` is not a scheduler, or `resources_allocation_function` is not a
            function.
    """

    needs_metric: ClassVar[bool] = False

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: Allocation | Mapping[str, Any] | None = evenly_distribute_cpus_gpus,
    ) -> None:
        base, allocate = base_scheduler, resources_allocation_function
        # The property `arguments` describes a built-in function by a mapping. A restored experiment passes
        # this mapping as the argument.
        if isinstance(allocate, Mapping):
            allocate = _OURS[allocate["class"]](**allocate["arguments"])
        base = FIFOScheduler() if base is None else base
        if not isinstance(base, TrialScheduler) or isinstance(base, ResourceChangingScheduler):
            raise ConfigError(f"base_scheduler={base!r}: give a scheduler such as ASHAScheduler(), or None")
        check_made(base)
        if allocate is not None and (isinstance(allocate, type) or not callable(allocate)):
            raise ConfigError(
                f"resources_allocation_function={allocate!r} is not callable: pass "
                "DistributeResources(), or a function f(tune_controller, trial, result, scheduler)"
            )
        super().__init__(base.time_attr, base.metric, base.mode)
        self.base_scheduler = base
        # The base scheduler decides about the trials, so the label and the notifications of the base
        # scheduler apply.
        self.label, self.hears_again = base.label, base.hears_again  # type: ignore[misc]
        self._allocate = allocate
        self._view: ExperimentView | None = None
        self._base: PlacementGroupFactory | None = None
        self._changed: set[str] = set()
        """Ids of trials whose reservation has been changed at least once."""
        self._promised: dict[str, PlacementGroupFactory] = {}
        """Maps the id of each trial that is about to be paused to its new reservation."""
        self._ours: dict[str, None] = {}
        """Ids of trials that this scheduler has paused to change their resources, oldest pause first."""
        self._theirs: set[str] = set()
        """Ids of trials that the base scheduler has paused."""

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """Resources that each trial reserves at its first start; None before the first report."""
        return self._base

    # Allocation functions that were written for Ray read the reservation under this name.
    _base_trial_resources = base_trial_resources

    def request_of(self, trial: Trial) -> PlacementGroupFactory:
        """Return the reservation of a trial: the current one, or the new one for its next start."""
        return self._promised.get(trial.trial_id, trial.request)

    @property
    def deciding(self) -> TrialScheduler:
        return self.base_scheduler

    @property
    def arguments(self) -> dict[str, Any]:
        allocate = self._allocate
        known = _OURS.get(type(allocate).__name__) is type(allocate)
        return {
            "base_scheduler": self.base_scheduler,
            "resources_allocation_function": (
                {"class": type(allocate).__name__, "arguments": allocate.arguments}  # type: ignore[union-attr]
                if known
                else allocate
            ),
        }

    # --- notifications ----------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        self.base_scheduler.set_search_properties(metric, mode, rng, total_samples)
        super().set_search_properties(metric, mode, rng, total_samples)

    def resize(self, total_samples: int | None) -> None:
        self.base_scheduler.resize(total_samples)
        super().resize(total_samples)

    def see(self, view: ExperimentView) -> None:
        self._view = view
        self.base_scheduler.see(view)
        # If the program was killed after a trial was paused and before its resources were changed, only this
        # loop lets the trial resume.
        for trial in view.get_trials():
            if trial.status is TrialStatus.PAUSED and trial.trial_id not in self._theirs:
                self._ours.setdefault(trial.trial_id)

    def on_trial_request(
        self, trial_id: str, request: PlacementGroupFactory, before: PlacementGroupFactory
    ) -> None:
        if trial_id not in self._changed:
            self._base = self._base or before
        self._promised.pop(trial_id, None)
        self._changed.add(trial_id)
        self._ours[trial_id] = None

    def on_trial_complete(self, trial_id: str) -> None:
        self._forget(trial_id)
        self.base_scheduler.on_trial_complete(trial_id)

    def on_trial_error(self, trial_id: str) -> None:
        self._forget(trial_id)
        self.base_scheduler.on_trial_error(trial_id)

    def _forget(self, trial_id: str) -> None:
        self._promised.pop(trial_id, None)
        self._ours.pop(trial_id, None)
        self._theirs.discard(trial_id)

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        return self.base_scheduler.decide(trial_id, time, score)

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        self._forget(trial_id)  # A trial that reports is no longer paused.
        decision = CheckedScheduler(self.base_scheduler).on_result(trial_id, result)
        if decision.verdict is Verdict.PAUSE:
            self._theirs.add(trial_id)
        if decision.verdict is not Verdict.CONTINUE or self._view is None or self._allocate is None:
            return decision
        request = self._wanted(self._view, trial_id, result)
        if request is None:
            return decision
        self._promised[trial_id] = request
        before = self._view.trial(trial_id).request
        facts = {
            "rule": "resources",
            "before": describe(before.required_resources),
            "after": describe(request.required_resources),
        }
        return Decision(Verdict.PAUSE, {**facts, **decision.reason}, request=request)

    def _wanted(
        self, view: ExperimentView, trial_id: str, result: Mapping[str, Any]
    ) -> PlacementGroupFactory | None:
        trial = view.trial(trial_id)
        if self._base is None:
            self._base = trial.request
        if trial_id not in self._changed and trial.request != self._base:
            raise ConfigError(
                "ResourceChangingScheduler needs the same initial resources for all trials, but trial "
                f"{trial.name} has {describe(trial.request.required_resources)}, and others have "
                f"{describe(self._base.required_resources)}: pass no function to tune.with_resources"
            )
        given = self._allocate(view, trial, dict(result), self) if self._allocate is not None else None
        if given is None:
            return None
        request = as_request(given)
        if request == trial.request:
            return None
        view.require_feasible(request, what=f"what resources_allocation_function gives trial {trial.name}")
        return request

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        decided = self.base_scheduler.verdicts()
        for trial_id, decision in decided:
            if decision.verdict is Verdict.PAUSE:
                self._ours.pop(trial_id, None)
                self._theirs.add(trial_id)
        return decided

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        ours = next((trial_id for trial_id in self._ours if trial_id in paused), None)
        if ours is not None:
            return ours
        return self.base_scheduler.choose_trial_to_run(pending, paused, new=new)

    @property
    def pauses(self) -> bool:
        return self._allocate is not None or self.base_scheduler.pauses

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        return self.base_scheduler.why_not_chosen(trial_id) if trial_id in self._theirs else {}

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        if trial_id in self._ours:
            del self._ours[trial_id]
            return {"rule": "resources"}
        self._theirs.discard(trial_id)
        return self.base_scheduler.on_trial_resume(trial_id)


# --- wording of decisions ----------------------------------------------------------------------------


@words_of("resources")
def _resources_words(reason: Facts) -> str:
    return f"from {reason['before']} to {reason['after']}" if "after" in reason else "it is resized"
