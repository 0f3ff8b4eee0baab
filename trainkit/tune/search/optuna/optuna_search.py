"""Searcher that uses Optuna's samplers."""

from __future__ import annotations

import copy
import importlib.util
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

from trainkit.errors import MissingDependencyError
from trainkit.tune.core.checks import is_name, is_number, is_whole, require, require_kind
from trainkit.tune.core.metrics import lookup, number_of
from trainkit.tune.core.objectives import Objective, objectives_of
from trainkit.tune.core.seeds import suggestion_generator, suggestion_words
from trainkit.tune.core.stoppers import reported_numbers
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.search.base import Evaluated, Searcher
from trainkit.tune.search.model_based import ModelBasedSearcher
from trainkit.tune.search.optuna import samplers
from trainkit.tune.search.optuna.samplers import without_repeated_messages
from trainkit.tune.search.optuna.spaces import OptunaForm, Params, form_of
from trainkit.tune.search.optuna.study import CONSTRAINT, KnownTrial, LazyStudy
from trainkit.tune.space.serialization import encode_config, holds_opaque

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import TrialState


class OptunaSearch(ModelBasedSearcher[OptunaForm]):
    """Searcher that uses a sampler of Optuna.

    For each suggestion, the sampler gets a new seed, made from the search's seed and the suggestion's number.
    A failed trial is reported to Optuna as failed, and samplers ignore it. A trial is reported as pruned,
    with its reports, in three cases: the scheduler stopped the trial before its `max_t`, the trial stayed
    paused to the end, or its last report of the metric is NaN. TPE ranks pruned trials after complete trials,
    those with the most iterations first, and treats NaN as bad. Other samplers ignore pruned trials. Infinite
    values are reported unchanged. TPE needs `n_startup_trials` (10) complete trials for its model. While
    fewer trials are complete, TPE treats paused trials as pruned until they resume, although `storage` shows
    the paused trials as running.

    Args:
        space: dictionary with domains, as in `param_space`; or a dictionary from names to Optuna's
            distributions, where 'net/width' is `config["net"]["width"]`; or a function that asks an Optuna
            trial for values. The function may branch freely, and may return constants. None: `param_space` is
            searched. If `space` is given, `param_space` may contain only constants, which are added to every
            configuration.
        metric: metric to optimise, or a list of metrics; None: the TuneConfig's metric.
        mode: "min" or "max", or a list with a mode for each metric; None: the TuneConfig's mode.
        points_to_evaluate: complete or partial configurations to try first; they count toward `num_samples`.
        sampler: Optuna's sampler; a copy is used. None: `TPESampler`, multivariate, with groups if trials
            differ in their parameters. This default sampler counts running trials as bad (`constant_liar`),
            so that concurrent trials do not all have similar configurations before their first reports.
        study_name: name of the study in `storage`; "optuna" by default.
        storage: an Optuna storage or its address, where the trials are also stored. The search learns from
            trials that are already in the study.
        seed: seed of the sampler; None: the sampler's own seed, or else the TuneConfig's.
        evaluated_rewards: known value of the single metric for each of `points_to_evaluate`; the search then
            learns from these points and does not run them.

    Raises:
        MissingDependencyError: Optuna is not installed.
        ConfigError: an argument is wrong.
    """

    several = True
    _shared: ClassVar = ("_space", "_form", "_storage")  # copies of a searcher use the same storage

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], Any] | None = None,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: BaseSampler | None = None,
        study_name: str | None = None,
        storage: BaseStorage | str | None = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[float] | None = None,
    ) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise MissingDependencyError.of("OptunaSearch needs Optuna", "tune")
        objectives = objectives_of(metric, mode)
        if objectives:
            metric = mode = None
        super().__init__(space, metric, mode, points_to_evaluate, seed)  # type: ignore[arg-type]
        self._keep(objectives=objectives)
        if sampler is not None or storage is not None:
            _check_kinds(sampler, storage)
        require(
            study_name is None or is_name(study_name),
            f"study_name must be the name of a study, not {study_name!r}",
        )
        rewards = evaluated_rewards
        self._rewards = None if rewards is None else _checked_rewards(rewards, self._points)
        self._sampler = sampler
        self._study_name = study_name
        self._storage = storage
        self._cut_short: set[str] = set()
        """Trials that the scheduler has stopped early, or has paused."""
        self._said: set[str] = set()
        """Warnings of the sampler that were already logged."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            **super().arguments,
            "metric": self.metric or [each.metric for each in self.objectives] or None,
            "mode": self.mode or [each.mode for each in self.objectives] or None,
            "sampler": self._sampler,
            "study_name": self._study_name,
            "storage": self._storage,
            "evaluated_rewards": self._rewards,
        }

    def rehearsal(self) -> Searcher:
        twin = copy.deepcopy(self)
        twin._storage = None
        return twin

    # --- the search space -------------------------------------------------------------------------

    def _form_of(self, space: Any, *, own: bool) -> OptunaForm:
        return form_of(space, own=own)

    def _begin_model(self, form: OptunaForm) -> None:
        self._suggester = (
            samplers.in_params(self._sampler, form.param_of)
            if self._sampler is not None
            else samplers.default_sampler(form.conditional)
        )
        if self._seed is None and (own := samplers.seed_in(self._suggester)) is not None:
            self._base = own
        else:
            samplers.settle(self._suggester, self._base)
        self._aims = self.objectives or (Objective(self.metric or "", self.mode or "min"),)
        evaluated = bool(self._evaluated_to_learn())
        require(
            len(self._aims) == 1 or not evaluated,
            "evaluated points are not supported with several objectives: leave the points out",
        )
        require(
            not (evaluated and self.constraints),
            "evaluated points, which lack the values of constraints, are not supported: leave the points out",
        )
        samplers.require_takes(
            self._suggester,
            objectives=len(self._aims),
            points=bool(self._points_to_run()),
            evaluated=evaluated,
        )
        modes = [each.mode for each in self._aims]
        self._study = LazyStudy(modes, self._study_name or "optuna", self._storage, self._suggester)

    def _points_to_run(self) -> Sequence[Mapping[str, Any]]:
        return self._points if self._rewards is None else ()

    def _evaluated_to_learn(self) -> Sequence[Evaluated]:
        return [*self._evaluated, *map(Evaluated, self._points, self._rewards or ())]

    # --- suggestions ------------------------------------------------------------------------------

    def _suggested(self, trial_id: str, fixed: Mapping[str, Any] | None) -> dict[str, Any] | str:
        if self._study.exhausted:
            return self.FINISHED
        place = self._base, self._number, self._redraws
        one = samplers.prepared(self._suggester, lambda number: suggestion_words(*place, number))
        with without_repeated_messages(self._said):
            trial = self._study.ask(one, trial_id, fixed)
            try:
                config = self.form.suggest(trial, suggestion_generator(*place))
            except BaseException:
                self._study.tell(trial_id, *self._outcome(trial_id, None), {})
                raise
        self._study.settle(trial_id)
        return config

    def _note(self, trial_id: str, known: Params) -> None:
        self._study.add(KnownTrial(trial_id, known))

    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        # Some samplers depend only on results and the seed. For samplers of this kind, the rejected trial
        # gets no result, and the next draw gets a new seed. Other samplers count their suggestions, so each
        # suggestion needs a result.
        answer = None if samplers.follows_from_trials(self._suggester) else result
        self._study.reject(trial_id, *self._outcome(trial_id, answer), self._looked_at(answer))

    def _looked_at(self, result: dict[str, Any] | None) -> dict[str, float]:
        """Return a report's numbers if the sampler has a `constraints_func`, and the excesses over limits.

        Other numbers are left out, so that less is written.
        """
        read = samplers.constraints_of(self._suggester) is not None
        return (reported_numbers(result or {}) if read else {}) | self._excesses(result)

    def _excesses(self, result: dict[str, Any] | None) -> dict[str, float]:
        """Return the excess over each limit, from -1 to 1, because Optuna needs finite values."""
        found: dict[str, float] = {}
        for each in self.constraints if self.heeds_constraints else ():
            value = number_of(result or {}, each.metric)
            excess = max(-1e9, min(math.inf if value is None else each.excess(value), 1e9))
            found[f"{CONSTRAINT}{each}"] = excess / (1 + abs(excess))
        return found

    @property
    def heeds_constraints(self) -> bool:
        return samplers.heeds_constraints(self._suggester)

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        if not same_space or samplers.follows_from_trials(self._suggester):
            return super().replay(trial_id, config, same_space=same_space)
        # If the study in the user's storage contains the trial, it also contains what the sampler wrote, so
        # the suggestion need not be repeated.
        known = self._storage is not None and not holds_opaque(config) and self._study.adopt(trial_id)
        self._number += known
        return config if known else None

    # --- results ----------------------------------------------------------------------------------

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        # A report shows that the trial is running, for example because a restore started the trial again.
        self._cut_short.discard(trial_id)
        if len(self._aims) > 1:
            return  # Optuna accepts no reports for several objectives.
        value, step = lookup(result, self._aims[0].metric), result.get("training_iteration")
        if trial_id not in self._left_out and is_number(value) and is_whole(step):
            self._study.report(trial_id, float(value), int(step or 0), self._excesses(result))

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        if decision.verdict is Verdict.STOP and decision.reason.get("rule") != "max_t":
            self._cut_short.add(trial_id)

    def on_pause(self, trial_id: str) -> None:
        self._cut_short.add(trial_id)
        self._study.pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._cut_short.discard(trial_id)
        self._study.unpause(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if trial_id in self._left_out:
            return
        state, values = self._outcome(trial_id, None if error else result or {})
        self._study.tell(trial_id, state, values, self._looked_at(result))

    def _outcome(
        self, trial_id: str, result: Mapping[str, Any] | None
    ) -> tuple[TrialState, list[float] | None]:
        """Return the state and values of a trial with the last report `result`; None: the trial failed."""
        from optuna.trial import TrialState

        values = [lookup(result or {}, each.metric) for each in self._aims]
        if not all(map(is_number, values)):
            return TrialState.FAIL, None
        if any(map(math.isnan, values)) or trial_id in self._cut_short:
            return TrialState.PRUNED, None
        return TrialState.COMPLETE, list(map(float, values))

    # --- results from elsewhere -------------------------------------------------------------------

    def _learn(self, name: str, known: Params, evaluated: Evaluated) -> None:
        from optuna.trial import TrialState

        state, value = TrialState.COMPLETE, evaluated.value
        if evaluated.error:
            state = TrialState.FAIL
        elif evaluated.pruned or math.isnan(value):
            state = TrialState.PRUNED
        reports = dict(enumerate(evaluated.intermediate_values or []))
        # The mark of a point is its hash. After a restore, a study in a database may already contain the
        # point: then a trial of the study has the mark.
        content = encode_config(vars(evaluated))
        mark = f"evaluated {blake2b(content.encode(), digest_size=8).hexdigest()}"
        values = [float(value)] if state is TrialState.COMPLETE else None
        marks = samplers.marks_of_evaluated(self._suggester)
        self._study.add(KnownTrial(mark, known, reports, state, values, marks))


def _checked_rewards(rewards: Any, points: Sequence[Any]) -> list[float]:
    listed = list(rewards) if isinstance(rewards, Iterable) else []
    numeric = isinstance(rewards, Iterable) and all(isinstance(each, numbers.Real) for each in listed)
    require(
        numeric and len(listed) == len(points),
        f"evaluated_rewards must be a list of {len(points)} numbers, one for each point, not {rewards!r}",
    )
    return list(map(float, listed))


def _check_kinds(sampler: object, storage: object) -> None:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    require_kind("sampler", sampler, BaseSampler, "optuna.samplers.TPESampler(seed=0)")
    require(
        storage is None or isinstance(storage, (str, BaseStorage)),
        f"storage must be an address such as 'sqlite:///study.db', or a storage of Optuna, not {storage!r}",
    )
