"""Resource ledger of the running trials, and the scheduler's view of the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainkit.resources import QUANTUM, require_feasible
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Trial

UNMETERED_LIMIT = 64
"""Maximum number of concurrent trials that request no resources; each of these trials still needs a
process.
"""

_SIMULATED = {
    "has": "the simulated workers have",
    "more": "simulate more workers: each has 1 CPU and nothing else",
}
"""Phrases of the error message for a request that exceeds the simulated workers."""


class ResourceLedger:
    """Ledger of reserved resources, counted in ten-thousandths so that ten times 0.1 is exactly 1.

    Args:
        existing: total amounts by resource name, all free at first.
        max_concurrent: maximum number of concurrent trials; None: limited by resources only.
        simulated: True if the resources belong to a simulation's workers and not to the engine.
        ahead: factor on the total amounts. If the factor is above 1, more trials are submitted than can run
            at once, and some trials wait.
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
        """True if the resources belong to a simulation's workers."""
        return bool(self._words)

    def require_feasible(self, request: PlacementGroupFactory, *, what: str) -> None:
        """Raise InfeasibleError if `request` exceeds the total resources."""
        for name, amount in request.units.items():
            if amount > self._all.get(name, 0):
                require_feasible(request.group, self.existing, what=what, **self._words)

    def has_room(self) -> bool:
        """Return True if resources are free for a trial with an earlier trial's request, or if no trial
        exists.

        If the result is False, the controller does not yet request a configuration from the searcher, because
        the searcher can learn from more reports if the request comes later.
        """
        return not self._asked or any(map(self._fits, self._asked.values()))

    def reserve(self, trial_id: str, request: PlacementGroupFactory) -> bool:
        """Reserve the resources of `request`; return False and reserve nothing if too few are free."""
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
        """Change the maximum number of concurrent trials; None: limited by resources only.

        Running trials continue.
        """
        self._max_concurrent = max_concurrent

    def release(self, trial_id: str) -> None:
        """Free the resources that a trial holds, if any."""
        for name, amount in self._held.pop(trial_id, {}).items():
            self._free[name] += amount

    def used(self) -> dict[str, float]:
        """Return the reserved amounts by resource name, each at most the total amount."""
        held = {name: amount * self._ahead - self._free[name] for name, amount in self._all.items()}
        return {name: min(held[name], self._all[name]) / QUANTUM for name in held if held[name]}

    def __len__(self) -> int:
        return len(self._held)


class ExperimentView:
    """View of the experiment for schedulers; the first argument of a resource-allocation function.

    Args:
        trials: list of all trials; new trials are appended later.
        by_id: all trials by trial id.
        ledger: ledger of the running trials' resources.
    """

    def __init__(self, trials: Sequence[Trial], by_id: Mapping[str, Trial], ledger: ResourceLedger) -> None:
        self._trials = trials
        self._by_id = by_id
        self._ledger = ledger

    @property
    def existing(self) -> dict[str, float]:
        """Total resources for trials, by name."""
        return dict(self._ledger.existing)

    @property
    def free(self) -> dict[str, float]:
        """Resources that no running trial reserves, by name."""
        used = self._ledger.used()
        return {name: amount - used.get(name, 0.0) for name, amount in self.existing.items()}

    def trial(self, trial_id: str) -> Trial:
        """Return the trial with this id."""
        return self._by_id[trial_id]

    def get_trials(self) -> list[Trial]:
        """Return all trials so far, in the order in which the searcher suggested them."""
        return list(self._trials)

    def get_live_trials(self) -> list[Trial]:
        """Return the trials that have not ended: running, waiting or paused."""
        return [trial for trial in self._trials if not trial.status.is_finished]

    def require_feasible(self, request: PlacementGroupFactory, *, what: str) -> None:
        """Raise InfeasibleError if `request` exceeds the total resources."""
        self._ledger.require_feasible(request, what=what)

    # --- names that functions written for Ray use ---------------------------------------------------

    @property
    def _resource_updater(self) -> ExperimentView:
        return self

    def get_num_cpus(self) -> float:
        """Return the total number of CPUs."""
        return self.existing.get("CPU", 0.0)

    def get_num_gpus(self) -> float:
        """Return the total number of GPUs."""
        return self.existing.get("GPU", 0.0)
