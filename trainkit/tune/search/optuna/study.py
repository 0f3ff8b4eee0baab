"""The Optuna study behind a searcher.

Optuna has no state for a trial that waits. A trial that was pruned can't run again, so nothing is written:
the storage has a paused trial as running, and samplers look at it through `PausedAsPruned`.

They see it as pruned only while few trials are complete. TPE ranks every complete trial before every pruned
one: with hundreds pruned, all of the complete ones would count as good, and nothing would be learned from how
they differ. With enough complete trials it models these, as BOHB models the largest budget that has enough.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.tune.search.optuna import samplers
from trainkit.tune.search.optuna.samplers import quiet
from trainkit.tune.search.optuna.spaces import Params

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial, TrialState


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
        """Return the trials of the storage, the paused ones as pruned."""
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
    """Return a copy that was pruned after its last report, which is then its value."""
    from optuna.trial import TrialState

    seen = copy.copy(trial)
    last = trial.intermediate_values[max(trial.intermediate_values)]
    seen.state = TrialState.PRUNED
    seen.values = None if math.isnan(last) else [last]
    return seen


MARK = "trainkit_trial"
"""Attribute of a study's trial, in a storage of the user's: our id, by which a restore finds it again."""


@dataclass
class _KnownTrial:
    """A trial while the study is not open.

    Attributes:
        trial_id: ours, or what stands for a point that was evaluated elsewhere.
        params: values and distributions.
        reports: of the metric, by step.
        state: as Optuna has it; None: it runs.
        values: of the metrics at its end.
        marks: of the sampler's, on a trial that it has not suggested.
        attributes: the numbers of its last report, where the sampler looks at them.
    """

    trial_id: str
    params: Params
    reports: dict[int, float] = field(default_factory=dict)
    state: TrialState | None = None
    values: list[float] | None = None
    marks: dict[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, float] = field(default_factory=dict)


_TRIES = 6


def _storage_at(given: BaseStorage | str) -> BaseStorage:
    """Return a storage; of an address once its tables are there, which another program may be making."""
    import optuna

    for number in range(1, _TRIES):
        try:
            return optuna.storages.get_storage(given)
        except Exception as error:  # the database's: SQLAlchemy is not imported without need
            if not re.search("already exists|locked|unique|duplicate", str(error), re.IGNORECASE):
                raise
            SYSTEM.sleep(0.1 * 2**number)
    return optuna.storages.get_storage(given)


class LazyStudy:
    """A study of Optuna's that is opened when it is first asked, with the trials that are known by then.

    Args:
        modes: "min" or "max", for each metric.
        name: of the study.
        storage: the user's, or an address of one; None: in memory.
        sampler: that is told how trials end.
    """

    def __init__(
        self, modes: Sequence[str], name: str, storage: BaseStorage | str | None, sampler: BaseSampler
    ) -> None:
        self._directions: list[Literal["minimize", "maximize"]] = [
            "minimize" if mode == "min" else "maximize" for mode in modes
        ]
        self._name = name
        self._given = storage
        self._sampler = sampler
        self._backlog: list[_KnownTrial] = []
        self._known: dict[str, _KnownTrial] = {}
        self._study: Study | None = None
        self.exhausted = False
        """True once the sampler has tried everything."""
        self._numbers: dict[str, int] = {}
        """Of each of our trials that the open study has, its number there."""
        self._told: Counter[str] = Counter()
        """Of trials that were found in the user's storage, how many ends of theirs it has."""
        self._paused: set[str] = set()

    # --- suggestions ------------------------------------------------------------------------------

    def ask(self, sampler: BaseSampler, trial_id: str, fixed: Mapping[str, Any] | None = None) -> Trial:
        """Return a new trial of the sampler's, in which `fixed` are settled."""
        study = self._open()
        study.sampler = sampler
        if fixed:
            study.enqueue_trial(dict(fixed))
        trial = study.ask()
        self._numbers[trial_id] = trial.number
        if self._given is not None:
            trial.set_user_attr(MARK, trial_id)
        return trial

    def settle(self, trial_id: str) -> None:
        """All parameters of the trial were asked for: forget what the sampler had in store for others.

        TPE and the Gaussian process note beforehand what they would suggest, for those who ask meanwhile. In
        a conditional space that holds parameters which the trial came not to have.
        """
        place = self._place(trial_id)
        for key in self._storage.get_trial_system_attrs(place):
            if ":relative_params:" in key:
                self._storage.set_trial_system_attr(place, key, "")

    def adopt(self, trial_id: str) -> bool:
        """In a restore: take the trial that the user's storage has; False if it has none."""
        self._open()
        if trial_id not in self._present:
            return False
        trial, self._told[trial_id] = self._present[trial_id]
        self._numbers[trial_id] = trial.number
        return True

    def add(
        self,
        trial_id: str,
        params: Params,
        state: TrialState | None = None,
        values: list[float] | None = None,
        reports: Mapping[int, float] | None = None,
        marks: Mapping[str, Any] | None = None,
        attributes: Mapping[str, float] | None = None,
    ) -> None:
        """Add a trial with these parameters, which is known from before; without a state it runs."""
        known = _KnownTrial(
            trial_id, params, dict(reports or {}), state, values, dict(marks or {}), attributes or {}
        )
        if self._study is not None:
            self._create(self._study, known)
            return
        self._backlog.append(known)
        self._known[trial_id] = known

    # --- results ----------------------------------------------------------------------------------

    def report(self, trial_id: str, value: float, step: int) -> None:
        """A trial has reported `value`, so it runs."""
        self._paused.discard(trial_id)
        if self._study is None:
            self._known[trial_id].reports[step] = value
        elif not self._trial(trial_id).state.is_finished():
            self._storage.set_trial_intermediate_value(self._place(trial_id), step, value)

    def pause(self, trial_id: str) -> None:
        """Show a trial as pruned to samplers, if it has reported and few are complete, until it goes on."""
        self._paused.add(trial_id)

    def unpause(self, trial_id: str) -> None:
        """A paused trial goes on."""
        self._paused.discard(trial_id)

    def _numbers_paused(self) -> set[int]:
        return {self._numbers[each] for each in self._paused if each in self._numbers}

    def tell(
        self,
        trial_id: str,
        state: TrialState,
        values: list[float] | None = None,
        attributes: Mapping[str, float] | None = None,
    ) -> None:
        """A trial has ended. One that had ended before gets a second entry: it was gone on with.

        The sampler may look at the trial's attributes, as a `constraints_func` does.
        """
        self._paused.discard(trial_id)
        if self._study is None:
            known = self._known[trial_id]
            if known.state is None:
                known.state, known.values, known.attributes = state, values, attributes or {}
            else:
                self.add(trial_id, known.params, state, values, known.reports, attributes=attributes)
            return
        if self._told[trial_id]:
            self._told[trial_id] -= 1
            return
        trial = self._trial(trial_id)
        if trial.state.is_finished():
            params = (trial.params, trial.distributions)
            self.add(trial_id, params, state, values, trial.intermediate_values, attributes=attributes)
        else:
            self._end(self._study, trial_id, state, values, attributes or {})

    def _end(
        self,
        study: Study,
        trial_id: str,
        state: TrialState,
        values: list[float] | None,
        attributes: Mapping[str, float],
    ) -> None:
        for name, value in attributes.items():
            self._storage.set_trial_user_attr(self._place(trial_id), name, value)
        study.tell(self._numbers[trial_id], values, state)

    def reject(
        self, trial_id: str, state: TrialState, values: list[float] | None, attributes: Mapping[str, float]
    ) -> None:
        """The trial just asked for will not be run; another will have its id."""
        if self._study is not None and self._given is not None:
            self._storage.set_trial_user_attr(self._place(trial_id), MARK, f"rejected for {trial_id}")
        self.tell(trial_id, state, values, attributes)

    def _trial(self, trial_id: str) -> FrozenTrial:
        return self._storage.get_trial(self._place(trial_id))

    def _place(self, trial_id: str) -> int:
        """Of a trial of ours in the storage."""
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, self._numbers[trial_id])

    # --- the study --------------------------------------------------------------------------------

    def _open(self) -> Study:
        if self._study is not None:
            return self._study
        import optuna

        self._storage = _storage_at(optuna.storages.InMemoryStorage() if self._given is None else self._given)
        with quiet():
            study = optuna.create_study(
                study_name=self._name,
                storage=cast(
                    "BaseStorage",
                    PausedAsPruned(
                        self._storage, self._numbers_paused, samplers.learns_from_paused(self._sampler)
                    ),
                ),
                sampler=self._sampler,
                pruner=optuna.pruners.NopPruner(),
                directions=self._directions,
                load_if_exists=True,
            )
        theirs = [direction.name.lower() for direction in study.directions]
        if theirs != self._directions:
            raise ConfigError(
                f"the study {self._name!r} in the storage is there to {' and '.join(theirs)}, and this "
                f"experiment to {' and '.join(self._directions)}: give another study_name"
            )
        # Samplers that have tried everything say so by stopping the loop that they think they are in.
        setattr(study, "stop", self._on_exhausted)  # noqa: B010
        self._study_id = self._storage.get_study_id_from_name(self._name)
        self._study = study
        self._present = {} if self._given is None else self._marked()
        for known in self._backlog:
            trial, _ = self._present.get(known.trial_id, (None, 0))
            if trial is None:
                self._create(study, known)
                continue
            self._numbers[known.trial_id] = trial.number
            if known.state is not None and not trial.state.is_finished():
                self._end(study, known.trial_id, known.state, known.values, known.attributes)
        self._backlog.clear()
        self._known.clear()
        return study

    def _on_exhausted(self) -> None:
        self.exhausted = True

    def _marked(self) -> dict[str, tuple[FrozenTrial, int]]:
        """Trials in the user's storage that are ours: the last of each id, and how often it has ended."""
        marked: dict[str, tuple[FrozenTrial, int]] = {}
        for trial in self._storage.get_all_trials(self._study_id, deepcopy=False):
            if MARK in trial.user_attrs:
                _, ends = marked.get(trial.user_attrs[MARK], (None, 0))
                marked[trial.user_attrs[MARK]] = trial, ends + trial.state.is_finished()
        return marked

    def _create(self, study: Study, known: _KnownTrial) -> None:
        from optuna.trial import TrialState, create_trial

        params, distributions = known.params
        state = known.state if known.state is not None else TrialState.RUNNING
        values = known.values
        if state is TrialState.PRUNED and known.reports:  # as Optuna's own tell has it
            last = known.reports[max(known.reports)]
            values = None if math.isnan(last) else [last]
        trial = create_trial(
            state=state,
            values=values,
            params=params,
            distributions=distributions,
            intermediate_values=known.reports,
            user_attrs={**known.attributes, **({MARK: known.trial_id} if self._given is not None else {})},
            system_attrs=known.marks,
        )
        # The storage takes it as it is, and the sampler is not told of its end.
        if known.attributes:
            trial.system_attrs |= samplers.constraint_marks(self._sampler, trial)
        created = self._storage.create_new_trial(self._study_id, template_trial=trial)
        self._numbers[known.trial_id] = self._storage.get_trial_number_from_id(created)
