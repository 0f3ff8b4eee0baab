"""What a scheduler may see of the experiment as it runs: its trials and the resources; nothing to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainkit.tune.control.capacity import Ledger
from trainkit.tune.placement import PlacementGroupFactory
from trainkit.tune.trial import Trial


class ExperimentView:
    """See the module. A resource-allocation function gets it as its first argument.

    Args:
        trials: of the experiment, a list that grows.
        by_id: the same.
        ledger: of what running trials reserve.
    """

    def __init__(self, trials: Sequence[Trial], by_id: Mapping[str, Trial], ledger: Ledger) -> None:
        self._trials = trials
        self._by_id = by_id
        self._ledger = ledger

    @property
    def existing(self) -> dict[str, float]:
        """All there is for trials, by resource name."""
        return dict(self._ledger.existing)

    @property
    def free(self) -> dict[str, float]:
        """What no running trial reserves, by resource name."""
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
