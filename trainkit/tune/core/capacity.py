"""Ledger of what running trials reserve, and what a scheduler may see of the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainkit.resources import QUANTUM, require_feasible
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Trial

UNMETERED_LIMIT = 64
"""Trials at once that reserve nothing: each is a process all the same."""

_SIMULATED = {
    "has": "the simulated workers have",
    "more": "simulate more workers: each has 1 CPU and nothing else",
}
"""Words of the message to a user who asks for too much."""


class ResourceLedger:
    """Counts resources in ten-thousandths, so that ten times 0.1 is exactly 1.

    Args:
        existing: amounts by resource name, all free.
        max_concurrent: trials at once; None: as the resources allow.
        simulated: these are a simulation's workers, not what the engine has.
        ahead: so many trials for each that fits, as not all that are under way run.
    """

    def __init__(
        self,
        existing: Mapping[str, float],
        max_concurrent: int | None = None,
        *,
        simulated: bool = False,
        ahead: int = 1,
    ) -> None:
        self.existing = dict(existing)
        self._ahead = ahead
        self._words = _SIMULATED if simulated else {}
        self._all = {name: round(amount * QUANTUM) for name, amount in existing.items()}
        self._free = {name: amount * ahead for name, amount in self._all.items()}
        self._max_concurrent = max_concurrent
        self._held: dict[str, Mapping[str, int]] = {}
        self._asked: dict[frozenset[tuple[str, int]], Mapping[str, int]] = {}
        self._asked_last: Mapping[str, int] | None = None

    @property
    def is_simulated(self) -> bool:
        """True if nothing of the engine's is taken."""
        return bool(self._words)

    def require_feasible(self, request: PlacementGroupFactory, *, what: str) -> None:
        """Raise InfeasibleError if `request` exceeds all there is."""
        for name, amount in request.units.items():
            if amount > self._all.get(name, 0):
                require_feasible(request.group, self.existing, what=what, **self._words)

    def has_room(self) -> bool:
        """Return True if a further trial may fit that requests the same as an earlier one.

        So a configuration is suggested only when it can run, with all that is known by then.
        """
        return not self._asked or any(map(self._fits, self._asked.values()))

    def reserve(self, trial_id: str, request: PlacementGroupFactory) -> bool:
        """Take what `request` asks for; False, and nothing taken, if it doesn't fit now."""
        asked = request.units
        if asked is not self._asked_last:
            self._asked[frozenset(asked.items())] = self._asked_last = asked
        if not self._fits(asked):
            return False
        for name, amount in asked.items():
            self._free[name] -= amount
        self._held[trial_id] = asked
        return True

    def _fits(self, asked: Mapping[str, int]) -> bool:
        for name, amount in asked.items():
            if amount > self._free.get(name, 0):
                return False
        limit = self._max_concurrent
        if limit is None and not asked:
            limit = UNMETERED_LIMIT
        return limit is None or len(self._held) < limit

    def limit(self, max_concurrent: int | None) -> None:
        """Let so many trials run at once, once fewer do; None: as the resources allow."""
        self._max_concurrent = max_concurrent

    def release(self, trial_id: str) -> None:
        """Give back what a trial held; nothing if it held nothing."""
        for name, amount in self._held.pop(trial_id, {}).items():
            self._free[name] += amount

    def used(self) -> dict[str, float]:
        """Return the resources of running trials by name; at most the total."""
        held = {name: amount * self._ahead - self._free[name] for name, amount in self._all.items()}
        return {name: min(held[name], self._all[name]) / QUANTUM for name in held if held[name]}

    def __len__(self) -> int:
        return len(self._held)


class ExperimentView:
    """The experiment as a scheduler may see it; the first argument of a resource-allocation function.

    Args:
        trials: of the experiment, a list that grows.
        by_id: the same.
        ledger: of what running trials reserve.
    """

    def __init__(self, trials: Sequence[Trial], by_id: Mapping[str, Trial], ledger: ResourceLedger) -> None:
        self._trials = trials
        self._by_id = by_id
        self._ledger = ledger

    @property
    def existing(self) -> dict[str, float]:
        """All there is for trials, by resource name."""
        return dict(self._ledger.existing)

    @property
    def free(self) -> dict[str, float]:
        """Return the resources that no running trial reserves, by name."""
        used = self._ledger.used()
        return {name: amount - used.get(name, 0.0) for name, amount in self.existing.items()}

    def trial(self, trial_id: str) -> Trial:
        """The trial of this id."""
        return self._by_id[trial_id]

    def get_trials(self) -> list[Trial]:
        """All trials so far, in the order suggested."""
        return list(self._trials)

    def get_live_trials(self) -> list[Trial]:
        """Those that have not ended: running, waiting or paused."""
        return [trial for trial in self._trials if not trial.status.is_finished]

    def require_feasible(self, request: PlacementGroupFactory, *, what: str) -> None:
        """Raise InfeasibleError if `request` exceeds all there is."""
        self._ledger.require_feasible(request, what=what)

    # --- as functions written for Ray ask -----------------------------------------------------------

    @property
    def _resource_updater(self) -> ExperimentView:
        return self

    def get_num_cpus(self) -> float:
        """CPUs that there are."""
        return self.existing.get("CPU", 0.0)

    def get_num_gpus(self) -> float:
        """GPUs that there are."""
        return self.existing.get("GPU", 0.0)
