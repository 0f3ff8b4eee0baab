"""How much a running trial should have: ways to share out what is free; pure functions of what is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError
from trainkit.resources import normalize
from trainkit.tune.checks import is_number, is_whole, require_mode
from trainkit.tune.placement import PlacementGroupFactory
from trainkit.tune.schedulers.base import score_of
from trainkit.tune.values import lookup

if TYPE_CHECKING:
    from trainkit.tune.control.view import ExperimentView
    from trainkit.tune.trial import Trial


class Asks(Protocol):
    """What an allocation function sees of the scheduler that asks it."""

    metric: str | None
    mode: str | None

    @property
    def base_trial_resources(self) -> PlacementGroupFactory | None:
        """What each trial reserves at first."""
        ...

    def request_of(self, trial: Trial) -> PlacementGroupFactory:
        """What a trial reserves, or is about to."""
        ...


class DistributeResources:
    """Share all there is evenly among the trials that have not ended, each with what it began with at least.

    A trial grows by whole units as far as something is free and its share reaches, and shrinks when the
    share has shrunk, such as when more trials have begun.

    Args:
        add_bundles: True adds a bundle for each unit; False adds to the trial's only bundle.
        increase_by: a unit, such as {"CPU": 2}. None: 1 GPU if trials begin with some, else 1 CPU; with
            `add_bundles` the last bundle that trials begin with.
        increase_by_times: how many units a trial gets at most; below 1: no limit. Goes with `increase_by`.
        reserve_resources: what is never given to trials beyond what they begin with.

    Raises:
        ConfigError: an amount is none, or `increase_by` is of nothing.
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
            raise ConfigError(f"increase_by={dict(increase_by)!r} is of nothing: give such as {{'CPU': 1}}")
        self.increase_by_times = increase_by_times
        self.reserve_resources = normalize(reserve_resources or {}, what="reserve_resources")

    @property
    def arguments(self) -> dict[str, Any]:
        """What the constructor takes to make this again."""
        names = "add_bundles increase_by_times reserve_resources".split()
        return {**{name: getattr(self, name) for name in names}, "increase_by": self.increase_by or None}

    def __call__(
        self, tune_controller: ExperimentView, trial: Trial, result: Mapping[str, Any], scheduler: Asks
    ) -> PlacementGroupFactory | None:
        """Return what `trial` is to reserve from now on; None: as before.

        Raises:
            ConfigError: trials begin with several bundles, and no bundles are to be added.
        """
        base = scheduler.base_trial_resources
        if base is None or (lookup(result, "training_iteration") or 0) < 1:
            return None
        if not self.add_bundles and len(base.bundles) > 1:
            raise ConfigError(
                f"trials begin with {len(base.bundles)} bundles, and {type(self).__name__}("
                "add_bundles=False) adds to one: give add_bundles=True"
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
        units = self._wanted(trial, live, has, free, max(0, _times(unit, spare)), scheduler)
        most = self.increase_by_times if self.increase_by and self.increase_by_times >= 1 else math.inf
        return self._request(base, unit, int(max(0, min(units, most))))

    def _wanted(
        self,
        trial: Trial,
        live: Sequence[Trial],
        has: Mapping[str, int],
        free: int,
        spare: int,
        scheduler: Asks,
    ) -> int:
        """How many units the trial should have.

        Args:
            trial: that has reported.
            live: all that have not ended, this one included.
            has: the units that each has.
            free: how many nobody has; below 0: so many too many are given away.
            spare: how many there are beside what all begin with.
            scheduler: that asks.
        """
        del scheduler
        share = -(-spare // len(live))  # rounded up: some get one more, while there is
        return min(share, has[trial.trial_id] + free)

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
    """Give all that is free to the best of the trials that have not ended; what one has, it keeps.

    The best one is that with the best last value of the metric, among those that may still grow. A trial
    shrinks only when more is given away than there is.

    Args:
        add_bundles, increase_by, increase_by_times, reserve_resources: as in `DistributeResources`.
        metric: reported value to judge by; None: the scheduler's.
        mode: "min" or "max"; None: the scheduler's.
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

    def _wanted(
        self,
        trial: Trial,
        live: Sequence[Trial],
        has: Mapping[str, int],
        free: int,
        spare: int,
        scheduler: Asks,
    ) -> int:
        metric, mode = self.metric or scheduler.metric, self.mode or scheduler.mode
        if metric is None or mode is None:
            raise ConfigError(
                "DistributeResourcesToTopJob gives resources to the best trial by a metric: "
                "set TuneConfig(metric='loss', mode='min') to what your trainable reports"
            )
        own = has[trial.trial_id]
        if free < 0:
            return own + free
        limited = self.increase_by and self.increase_by_times >= 1
        growing = [one for one in live if not limited or has[one.trial_id] < self.increase_by_times]
        best = max(growing, key=lambda one: _score(one, metric, mode), default=None)  # of equals the first
        return own + free if best is not None and best.trial_id == trial.trial_id else own


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
    """How often `unit` goes into `amounts`, rounded down; below 0 where an amount is."""
    return min(math.floor(amounts.get(name, 0.0) / each + 1e-9) for name, each in unit.items() if each)


evenly_distribute_cpus_gpus = DistributeResources(add_bundles=False)
evenly_distribute_cpus_gpus_distributed = DistributeResources(add_bundles=True)
