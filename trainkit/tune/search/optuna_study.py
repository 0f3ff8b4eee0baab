"""An Optuna study behind a searcher: opened when first asked, filled with what a restore knows already."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trainkit.errors import ConfigError
from trainkit.tune.search.optuna_spaces import Params

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial, TrialState

MARK = "trainkit_trial"
"""Attribute of a study's trial, in a storage of the user's: our id, by which a restore finds it again."""


@dataclass
class _Known:
    """What is known of a trial while the study is not open.

    Attributes:
        trial_id: ours, or what stands for a point that was evaluated elsewhere.
        params: values and distributions.
        reports: of the metric, by step.
        state: as Optuna has it; None: it runs.
        value: of the metric at its end.
    """

    trial_id: str
    params: Params
    reports: dict[int, float] = field(default_factory=dict)
    state: TrialState | None = None
    value: float | None = None


class LazyStudy:
    """See the module.

    Args:
        sampler: what suggests.
        mode: "min" or "max".
        name: of the study.
        storage: the user's, or an address of one; None: in memory.
    """

    def __init__(self, sampler: BaseSampler, mode: str, name: str, storage: BaseStorage | str | None) -> None:
        self._sampler = sampler
        self._direction: Literal["minimize", "maximize"] = "minimize" if mode == "min" else "maximize"
        self._name = name
        self._given = storage
        self._backlog: list[_Known] = []
        self._known: dict[str, _Known] = {}
        self._study: Study | None = None
        self.exhausted = False
        """True once the sampler has tried everything."""
        self._numbers: dict[str, int] = {}
        """Of each of our trials that the open study has, its number there."""

    # --- suggestions ------------------------------------------------------------------------------

    def ask(self, trial_id: str, fixed: Mapping[str, Any] | None = None) -> Trial:
        """Return a new trial, in which `fixed` are settled."""
        study = self._open()
        if fixed:
            study.enqueue_trial(dict(fixed))
        trial = study.ask()
        self._numbers[trial_id] = trial.number
        if self._given is not None:
            trial.set_user_attr(MARK, trial_id)
        return trial

    def add(
        self,
        trial_id: str,
        params: Params,
        state: TrialState | None = None,
        value: float | None = None,
        reports: Mapping[int, float] | None = None,
    ) -> None:
        """Add a trial with these parameters, which is known from before; without a state it runs."""
        known = _Known(trial_id, params, dict(reports or {}), state, value)
        if self._study is not None:
            self._create(self._study, known)
            return
        self._backlog.append(known)
        self._known[trial_id] = known

    # --- results ----------------------------------------------------------------------------------

    def report(self, trial_id: str, value: float, step: int) -> None:
        """A trial has reported `value`."""
        if self._study is None:
            self._known[trial_id].reports[step] = value
        elif not (trial := self._trial(trial_id)).state.is_finished():
            number = trial.number
            place = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
            self._storage.set_trial_intermediate_value(place, step, value)

    def tell(self, trial_id: str, state: TrialState, value: float | None = None) -> None:
        """A trial has ended. One that had ended before gets a second entry: it was gone on with."""
        if self._study is None:
            known = self._known[trial_id]
            if known.state is None:
                known.state, known.value = state, value
            else:
                self.add(trial_id, known.params, state, value, known.reports)
            return
        trial = self._trial(trial_id)
        if trial.state.is_finished():
            params = (trial.params, trial.distributions)
            self.add(trial_id, params, state, value, trial.intermediate_values)
        else:
            self._study.tell(trial.number, value, state)

    def _trial(self, trial_id: str) -> FrozenTrial:
        number = self._numbers[trial_id]
        return self._storage.get_trial(
            self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        )

    # --- the study --------------------------------------------------------------------------------

    def _open(self) -> Study:
        if self._study is not None:
            return self._study
        import optuna

        self._storage = optuna.storages.get_storage(
            optuna.storages.InMemoryStorage() if self._given is None else self._given
        )
        with quiet():
            study = optuna.create_study(
                study_name=self._name,
                storage=self._storage,
                sampler=self._sampler,
                pruner=optuna.pruners.NopPruner(),
                direction=self._direction,
                load_if_exists=True,
            )
        if study.direction.name.lower() != self._direction:
            raise ConfigError(
                f"the study {self._name!r} in the storage is there to {study.direction.name.lower()}, and "
                f"this experiment to {self._direction}: give another study_name"
            )
        # Samplers that have tried everything say so by stopping the loop that they think they are in.
        setattr(study, "stop", self._on_exhausted)  # noqa: B010
        self._study_id = self._storage.get_study_id_from_name(self._name)
        self._study = study
        present = {} if self._given is None else self._marked()
        for known in self._backlog:
            trial = present.get(known.trial_id)
            if trial is None:
                self._create(study, known)
                continue
            self._numbers[known.trial_id] = trial.number
            if known.state is not None and not trial.state.is_finished():
                study.tell(trial.number, known.value, known.state)
        self._backlog.clear()
        self._known.clear()
        return study

    def _on_exhausted(self) -> None:
        self.exhausted = True

    def _marked(self) -> dict[str, FrozenTrial]:
        """Trials in the user's storage that are ours, the last of each id."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        return {trial.user_attrs[MARK]: trial for trial in trials if MARK in trial.user_attrs}

    def _create(self, study: Study, known: _Known) -> None:
        from optuna.trial import TrialState, create_trial

        values, distributions = known.params
        state = known.state if known.state is not None else TrialState.RUNNING
        value = known.value
        if state is TrialState.PRUNED and known.reports:  # as Optuna's own tell has it
            last = known.reports[max(known.reports)]
            value = None if math.isnan(last) else last
        trial = create_trial(
            state=state,
            value=value,
            params=values,
            distributions=distributions,
            intermediate_values=known.reports,
            user_attrs={MARK: known.trial_id} if self._given is not None else {},
        )
        created = self._storage.create_new_trial(self._study_id, template_trial=trial)
        self._numbers[known.trial_id] = self._storage.get_trial_number_from_id(created)


@contextmanager
def quiet() -> Iterator[None]:
    """No line of Optuna's on the console, and no warning that an option is new."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def reseed(sampler: BaseSampler, words: Callable[[int], list[int]]) -> None:
    """Give every generator in the sampler, and in samplers that it holds, a seed of its own.

    Args:
        sampler: to change.
        words: so many seeds.
    """
    lazy = list(_generators(sampler))
    for generator, seed in zip(lazy, words(len(lazy)), strict=True):
        generator.rng.seed(seed)


def seed_in(sampler: BaseSampler) -> int | None:
    """A number that follows from the seed the user gave the sampler; None: none was given."""
    for generator in _generators(sampler):
        if generator._rng is not None:
            return int(generator.rng.randint(2**31))
    return None


def _generators(sampler: Any) -> Iterator[Any]:
    """Optuna's generators in the sampler: they have an `rng`, made when first used if there is no seed."""
    seen: set[int] = set()

    def look(node: Any) -> Iterator[Any]:
        for value in vars(node).values():
            if id(value) in seen or not type(value).__module__.startswith("optuna."):
                continue
            seen.add(id(value))
            if hasattr(type(value), "rng"):
                yield value
            elif hasattr(value, "__dict__"):
                yield from look(value)

    yield from look(sampler)
