"""How a study looks to a sampler while trials are paused: these are pruned, until they go on.

Optuna knows no trial that waits. A storage's trial that was pruned can't run again, so nothing is written:
the storage, of the user's or ours, has a paused trial as running, and only who looks through this sees more.

And only while few trials are complete. TPE ranks every complete trial before every pruned one: were hundreds
pruned, all of the complete ones would count as good, and nothing would be learned from how they differ. So
with enough of them to model, it models these, as BOHB does with the largest budget that has enough.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Container
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState


class PausedAsPruned:
    """An Optuna storage, but for the states of trials that are paused and have reported.

    Args:
        storage: that holds them, as running.
        paused: numbers of those that are paused now.
        enough: complete trials; with so many or more, paused ones are as the storage has them.
    """

    def __init__(self, storage: BaseStorage, paused: Callable[[], Collection[int]], enough: int) -> None:
        self._storage = storage
        self._paused = paused
        self._enough = enough
        self._seen: dict[int, tuple[FrozenTrial, FrozenTrial]] = {}
        """By number: a paused trial, and what it is seen as; many wait, and each suggestion looks at all."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_storage":  # copying asks before there is anything
            raise AttributeError(name)
        return getattr(self._storage, name)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """As a storage's, with paused trials pruned."""
        from optuna.trial import TrialState

        paused = self._paused()
        affected = states is None or TrialState.RUNNING in states or TrialState.PRUNED in states
        if not paused or not affected:
            return self._storage.get_all_trials(study_id, deepcopy=deepcopy, states=states)
        known_trials = self._storage.get_all_trials(study_id, deepcopy=False)
        if sum(trial.state is TrialState.COMPLETE for trial in known_trials) >= self._enough:
            return self._storage.get_all_trials(study_id, deepcopy=deepcopy, states=states)
        before, self._seen = self._seen, {}
        trials = []
        for trial in known_trials:
            if trial.number in paused and trial.state is TrialState.RUNNING and trial.intermediate_values:
                known = before.get(trial.number)
                if known is None or known[0] is not trial:
                    known = trial, _pruned(trial)
                self._seen[trial.number] = known
                trial = known[1]
            if states is None or trial.state in states:
                trials.append(trial)
        return copy.deepcopy(trials) if deepcopy else trials


def _pruned(trial: FrozenTrial) -> FrozenTrial:
    """The same trial as if it had been pruned after its last report, which is then its value."""
    from optuna.trial import TrialState

    seen = copy.copy(trial)
    last = trial.intermediate_values[max(trial.intermediate_values)]
    seen.state = TrialState.PRUNED
    seen.values = None if math.isnan(last) else [last]
    return seen
