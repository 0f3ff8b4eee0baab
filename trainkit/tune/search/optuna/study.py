"""The Optuna study behind a searcher.

Optuna has no state for a paused trial, and a pruned trial can't run again. So the storage keeps a paused
trial as running, and samplers read the storage through `PausedAsPruned`.

Samplers see paused trials as pruned only while few trials are complete. TPE ranks every complete trial before
every pruned trial. Among hundreds of pruned trials, all complete trials would therefore count as good, and
TPE would not learn from the differences between complete trials. With enough complete trials, TPE models only
complete trials, as BOHB models the largest budget with enough observations.
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
    """A view of an Optuna storage that shows paused trials with reports as pruned.

    Args:
        storage: storage that keeps paused trials as running.
        paused: function that returns the numbers of the trials that are paused now.
        enough: number of complete trials from which on the view shows paused trials unchanged.
    """

    def __init__(self, storage: BaseStorage, paused: Callable[[], Collection[int]], enough: int) -> None:
        self._storage = storage
        self._paused = paused
        self._enough = enough
        self._seen: dict[int, tuple[FrozenTrial, FrozenTrial]] = {}
        """Paused trials and their pruned copies, by the trial's number; cached, because each suggestion reads
        all trials.
        """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_storage":  # `copy` reads these attributes before they exist
            raise AttributeError(name)
        return getattr(self._storage, name)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of the storage, with paused trials as pruned."""
        from optuna.trial import TrialState

        paused = self._paused()
        affected = states is None or TrialState.RUNNING in states or TrialState.PRUNED in states
        known_trials = self._storage.get_all_trials(study_id, deepcopy=False) if paused and affected else []
        complete = sum(trial.state is TrialState.COMPLETE for trial in known_trials)
        if not known_trials or complete >= self._enough:
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
    """Return a copy of `trial` that was pruned at its last report, with this report as its value."""
    from optuna.trial import TrialState

    seen = copy.copy(trial)
    last = trial.intermediate_values[max(trial.intermediate_values)]
    seen.state = TrialState.PRUNED
    seen.values = None if math.isnan(last) else [last]
    return seen


CONSTRAINT = "constraints:"
"""Prefix of Optuna's own attributes with the values of constraints; positive values are violations."""

MARK = "trainkit_trial"
"""Name of the attribute in which Optuna's trial stores its trainkit id, so that a restore finds the trial."""


@dataclass
class KnownTrial:
    """A trial whose parameters are already known.

    Attributes:
        trial_id: the trial's trainkit id, or the mark of a point evaluated elsewhere.
        params: values and distributions of the parameters.
        reports: reported values of the metric, by step.
        state: state of the trial in Optuna's terms; None if the trial is running.
        values: values of the metrics at the trial's end.
        marks: trial attributes by which the sampler accepts a trial that it did not suggest.
        attributes: numbers of the trial's last report that the sampler reads; names with the prefix
            `CONSTRAINT` belong to the experiment's constraints.
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
    """Return the storage; retry while a different program creates the tables of the database."""
    import optuna

    for number in range(1, _TRIES):
        try:
            return optuna.storages.get_storage(given)
        except Exception as error:  # database errors have a common class only in SQLAlchemy
            if not re.search("already exists|locked|unique|duplicate", str(error), re.IGNORECASE):
                raise
            SYSTEM.sleep(0.1 * 2**number)
    return optuna.storages.get_storage(given)


class LazyStudy:
    """Optuna study that is opened on first use; the trials that were recorded before its opening are then
    added.

    Args:
        modes: "min" or "max", for each metric.
        name: name of the study.
        storage: the user's storage or its address; None: a storage in memory.
        sampler: sampler that is notified when a trial ends.
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
        self._backlog: list[KnownTrial] = []
        self._known: dict[str, KnownTrial] = {}
        self._study: Study | None = None
        self.exhausted = False
        """True once the sampler has tried every configuration."""
        self._numbers: dict[str, int] = {}
        """Number of each trial in the open study, by trainkit id."""
        self._told: Counter[str] = Counter()
        """Number of ends of each trial that a restore has found in the user's storage."""
        self._paused: set[str] = set()

    # --- suggestions ------------------------------------------------------------------------------

    def ask(self, sampler: BaseSampler, trial_id: str, fixed: Mapping[str, Any] | None = None) -> Trial:
        """Return a new trial for which `sampler` suggests all values that are not in `fixed`."""
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
        """Clear the sampler's stored suggestions for a trial whose parameters are all known.

        TPE and the Gaussian process store suggestions in advance, for concurrent callers. In a conditional
        space, these suggestions include parameters that the trial does not have.
        """
        place = self._place(trial_id)
        for key in self._storage.get_trial_system_attrs(place):
            if ":relative_params:" in key:
                self._storage.set_trial_system_attr(place, key, "")

    def adopt(self, trial_id: str) -> bool:
        """Take over a trial from the user's storage in a restore; return False if the storage does not
        contain the trial.
        """
        self._open()
        if trial_id not in self._present:
            return False
        trial, self._told[trial_id] = self._present[trial_id]
        self._numbers[trial_id] = trial.number
        return True

    def add(self, known: KnownTrial) -> None:
        """Add a trial with known parameters."""
        if self._study is not None:
            self._create(self._study, known)
            return
        self._backlog.append(known)
        self._known[known.trial_id] = known

    # --- results ----------------------------------------------------------------------------------

    def report(self, trial_id: str, value: float, step: int, attributes: Mapping[str, float]) -> None:
        """Record a trial's report of `value`; a reporting trial is no longer paused."""
        self._paused.discard(trial_id)
        if self._study is None:
            self._known[trial_id].reports[step] = value
            self._known[trial_id].attributes = attributes
        elif not self._trial(trial_id).state.is_finished():
            self._write(trial_id, attributes)
            self._storage.set_trial_intermediate_value(self._place(trial_id), step, value)

    def pause(self, trial_id: str) -> None:
        """Mark a trial as paused; until it resumes, samplers may see it as pruned."""
        self._paused.add(trial_id)

    def unpause(self, trial_id: str) -> None:
        """Mark a paused trial as running."""
        self._paused.discard(trial_id)

    def _numbers_paused(self) -> set[int]:
        return {self._numbers[each] for each in self._paused if each in self._numbers}

    def tell(
        self, trial_id: str, state: TrialState, values: list[float] | None, attributes: Mapping[str, float]
    ) -> None:
        """Record the end of a trial. If the trial was run again after its end, its second end becomes an
        additional trial of the study.

        The sampler may read the trial's attributes, for example in a `constraints_func`.
        """
        self._paused.discard(trial_id)
        if self._study is None:
            known = self._known[trial_id]
            if known.state is None:
                known.state, known.values, known.attributes = state, values, attributes
            else:
                again = (known.params, dict(known.reports), state, values)
                self.add(KnownTrial(trial_id, *again, attributes=attributes))
            return
        if self._told[trial_id]:
            self._told[trial_id] -= 1
            return
        trial = self._trial(trial_id)
        if trial.state.is_finished():
            again = ((trial.params, trial.distributions), trial.intermediate_values, state, values)
            self.add(KnownTrial(trial_id, *again, attributes=attributes))
        else:
            self._end(self._study, trial_id, state, values, attributes)

    def _end(
        self,
        study: Study,
        trial_id: str,
        state: TrialState,
        values: list[float] | None,
        attributes: Mapping[str, float],
    ) -> None:
        self._write(trial_id, attributes)
        study.tell(self._numbers[trial_id], values, state)

    def _write(self, trial_id: str, attributes: Mapping[str, float]) -> None:
        for name, value in attributes.items():
            own = name.startswith(CONSTRAINT)
            write = self._storage.set_trial_system_attr if own else self._storage.set_trial_user_attr
            write(self._place(trial_id), name, value)

    def reject(
        self, trial_id: str, state: TrialState, values: list[float] | None, attributes: Mapping[str, float]
    ) -> None:
        """Mark the newest trial as rejected, because a later trial will have the same trainkit id."""
        if self._study is not None and self._given is not None:
            self._storage.set_trial_user_attr(self._place(trial_id), MARK, f"rejected for {trial_id}")
        self.tell(trial_id, state, values, attributes)

    def _trial(self, trial_id: str) -> FrozenTrial:
        return self._storage.get_trial(self._place(trial_id))

    def _place(self, trial_id: str) -> int:
        """Return the id of a trial in the storage, from its trainkit id."""
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
                f"the study {self._name!r} in the storage has the directions {', '.join(theirs)}, but this "
                f"experiment has {', '.join(self._directions)}: use another study_name"
            )
        # An exhausted sampler calls `stop` to end the optimisation loop. The searcher does not use Optuna's
        # loop, so `stop` is replaced.
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
        """Return, by trainkit id, the last trial in the user's storage and the number of ended trials."""
        marked: dict[str, tuple[FrozenTrial, int]] = {}
        for trial in self._storage.get_all_trials(self._study_id, deepcopy=False):
            if MARK in trial.user_attrs:
                _, ends = marked.get(trial.user_attrs[MARK], (None, 0))
                marked[trial.user_attrs[MARK]] = trial, ends + trial.state.is_finished()
        return marked

    def _create(self, study: Study, known: KnownTrial) -> None:
        from optuna.trial import TrialState, create_trial

        params, distributions = known.params
        state = known.state if known.state is not None else TrialState.RUNNING
        values = known.values
        # The value of a pruned trial is its last report, as in Optuna's own `tell`.
        if state is TrialState.PRUNED and known.reports:
            last = known.reports[max(known.reports)]
            values = None if math.isnan(last) else [last]
        trial = create_trial(
            state=state,
            values=values,
            params=params,
            distributions=distributions,
            intermediate_values=known.reports,
            user_attrs={MARK: known.trial_id} if self._given is not None else {},
            system_attrs=known.marks,
        )
        # The finished trial is written directly to the storage, so the sampler is not notified of the end and
        # can't add the values of its constraints.
        for name, value in known.attributes.items():
            (trial.system_attrs if name.startswith(CONSTRAINT) else trial.user_attrs)[name] = value
        if known.attributes:
            trial.system_attrs |= samplers.constraint_marks(self._sampler, trial)
        created = self._storage.create_new_trial(self._study_id, template_trial=trial)
        self._numbers[known.trial_id] = self._storage.get_trial_number_from_id(created)
