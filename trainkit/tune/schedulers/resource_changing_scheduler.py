"""Gives running trials more or less of the machine, whatever other scheduler decides about them.

What is free when a trial reports is in no log. So the log has what was decided: a replay asks nobody, but is
told by `on_trial_request` what each trial was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.resources import describe
from trainkit.tune.placement import PlacementGroupFactory, as_request
from trainkit.tune.schedulers.base import NO_CONFIG, Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.consulted import Consulted
from trainkit.tune.schedulers.fifo import FIFOScheduler
from trainkit.tune.schedulers.own import check_made
from trainkit.tune.schedulers.resource_allocation import (
    DistributeResources,
    DistributeResourcesToTopJob,
    evenly_distribute_cpus_gpus,
    evenly_distribute_cpus_gpus_distributed,
)
from trainkit.tune.trial import TrialStatus

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.control.view import ExperimentView
    from trainkit.tune.objectives import Objective
    from trainkit.tune.spaces.variants import Space
    from trainkit.tune.trial import Trial

__all__ = [
    "DistributeResources",
    "DistributeResourcesToTopJob",
    "ResourceChangingScheduler",
    "evenly_distribute_cpus_gpus",
    "evenly_distribute_cpus_gpus_distributed",
]

Allocation = Callable[..., PlacementGroupFactory | None]
"""Called with what there is, a trial, its report and the scheduler; returns what the trial is to reserve."""

_OURS = {cls.__name__: cls for cls in (DistributeResources, DistributeResourcesToTopJob)}


class ResourceChangingScheduler(TrialScheduler):
    """Change what trials reserve while they run; another scheduler decides about everything else.

    At each report after which a trial goes on, the function says what it is to reserve. If that is something
    else than before, the trial is paused, and goes on with it from its checkpoint, before others start.
    Inside a trial, `tune.get_context().get_trial_resources()` says what it has.

    Args:
        base_scheduler: decides; None: a FIFOScheduler.
        resources_allocation_function: called as `f(tune_controller, trial, result, scheduler)` with an
            `ExperimentView`, which has `existing`, `free` and `get_live_trials()`; returns a
            `PlacementGroupFactory` or a dictionary such as {"cpu": 2}; None: as before. If it is None
            itself, nothing is ever changed.

    Raises:
        ConfigError: one of them is none.
    """

    needs_metric: ClassVar[bool] = False

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: Allocation | Mapping[str, Any] | None = evenly_distribute_cpus_gpus,
    ) -> None:
        base, allocate = base_scheduler, resources_allocation_function
        if isinstance(allocate, Mapping):  # as `arguments` has it
            allocate = _OURS[allocate["class"]](**allocate["arguments"])
        base = FIFOScheduler() if base is None else base
        if not isinstance(base, TrialScheduler) or isinstance(base, ResourceChangingScheduler):
            raise ConfigError(f"base_scheduler={base!r}: give a scheduler such as ASHAScheduler(), or None")
        check_made(base)
        if allocate is not None and (isinstance(allocate, type) or not callable(allocate)):
            raise ConfigError(
                f"resources_allocation_function={allocate!r} is no function: give such as "
                "DistributeResources(), or a function f(tune_controller, trial, result, scheduler)"
            )
        super().__init__(base.time_attr, base.metric, base.mode)
        self.base_scheduler = base
        # It is the one that judges trials, so it must hear what it would by itself.
        self.label, self.hears_again = base.label, base.hears_again  # type: ignore[misc]
        self._allocate = allocate
        self._view: ExperimentView | None = None
        self._base: PlacementGroupFactory | None = None
        self._changed: set[str] = set()
        """Trials that do not reserve what they began with."""
        self._promised: dict[str, PlacementGroupFactory] = {}
        """What trials will reserve that are only about to be paused for it."""
        self._ours: dict[str, None] = {}
        """Trials that are paused for other resources only, in this order."""
        self._theirs: set[str] = set()
        """Trials that the other scheduler has paused."""

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """What trials reserve at first; None before any has reported."""
        return self._base

    def request_of(self, trial: Trial) -> PlacementGroupFactory:
        """What a trial reserves, or will as soon as it is paused: that is nobody else's any more."""
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

    # --- what it is told --------------------------------------------------------------------------

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.base_scheduler.completed_space(space)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.base_scheduler.objectives

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        self.base_scheduler.set_objectives(objectives)

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        self.base_scheduler.set_search_properties(metric, mode, rng, total_samples)
        super().set_search_properties(metric, mode, rng, total_samples)

    def take_space(self, space: Space) -> None:
        self.base_scheduler.take_space(space)

    def see(self, view: ExperimentView) -> None:
        self._view = view
        self.base_scheduler.see(view)
        # A kill may have come between a pause and the change that it was for: these wait for nobody else.
        for trial in view.get_trials():
            if trial.status is TrialStatus.PAUSED and trial.trial_id not in self._theirs:
                self._ours.setdefault(trial.trial_id)

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        self.base_scheduler.on_trial_add(trial_id, config)

    def on_trial_request(
        self, trial_id: str, request: PlacementGroupFactory, before: PlacementGroupFactory
    ) -> None:
        if trial_id not in self._changed:
            self._base = self._base or before
        self._promised.pop(trial_id, None)
        self._changed.add(trial_id)
        self._ours[trial_id] = None

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        self.base_scheduler.on_trial_change(trial_id, config, donor)

    def on_trial_complete(self, trial_id: str) -> None:
        self._forget(trial_id)
        self.base_scheduler.on_trial_complete(trial_id)

    def on_trial_error(self, trial_id: str) -> None:
        self._forget(trial_id)
        self.base_scheduler.on_trial_error(trial_id)

    def on_trial_again(self, trial_id: str) -> None:
        self.base_scheduler.on_trial_again(trial_id)

    def on_begin(self) -> None:
        self.base_scheduler.on_begin()

    def on_no_more_trials(self) -> None:
        self.base_scheduler.on_no_more_trials()

    def _forget(self, trial_id: str) -> None:
        self._promised.pop(trial_id, None)
        self._ours.pop(trial_id, None)
        self._theirs.discard(trial_id)

    # --- what it decides --------------------------------------------------------------------------

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        return self.base_scheduler.decide(trial_id, time, score)

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        self._forget(trial_id)  # it runs
        decision = Consulted(self.base_scheduler).on_result(trial_id, result)
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
        """What a trial is to reserve from now on; None: as before."""
        trial = view.trial(trial_id)
        if self._base is None:
            self._base = trial.request
        if trial_id not in self._changed and trial.request != self._base:
            raise ConfigError(
                f"ResourceChangingScheduler needs trials that all begin with the same resources, and trial "
                f"{trial.name} has {describe(trial.request.required_resources)}, where others began with "
                f"{describe(self._base.required_resources)}: give tune.with_resources no function"
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
