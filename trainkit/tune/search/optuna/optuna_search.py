"""Optuna's samplers as a searcher: TPE by default, any other by argument."""

from __future__ import annotations

import copy
import importlib.util
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, MissingDependencyError
from trainkit.tune.checks import checked_points, is_name, is_number, is_whole, require, require_kind
from trainkit.tune.objectives import Objective, objectives_of
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.search.alternatives import alternatives
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.search.optuna import samplers
from trainkit.tune.search.optuna.spaces import Declared, Form, form_of
from trainkit.tune.search.optuna.study import LazyStudy, saying_once
from trainkit.tune.seeds import suggestion_generator, suggestion_words
from trainkit.tune.spaces.variants import Space
from trainkit.tune.values import encode_config, holds_opaque, lookup

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import TrialState


class OptunaSearch(ModelledSearcher):
    """Suggest configurations by a sampler of Optuna's.

    Suggestion n draws with a sampler that is seeded anew from the seed and n. A trial that fails is told as
    failed, which samplers leave out. One that the scheduler stopped before its `max_t`, or that stayed paused
    to the end, is told as pruned, with its reports: TPE ranks these after the complete ones, those that went
    furthest first; other samplers leave them out. So is one whose last report of the metric is NaN, which TPE
    takes for bad; infinite values are told as they are. While a trial is paused, TPE sees it as pruned, until
    it goes on; nothing of that is written to `storage`, which has it as running.

    Args:
        space: domains as in `param_space`; Optuna's distributions by name, where 'net/width' is
            `config["net"]["width"]`; or a function of an Optuna trial, which asks it for values, with
            branches at will, and may return constants. None: `param_space`. With a space here, `param_space`
            may only hold constants, which every configuration gets.
        metric: what to optimise, or a list of several metrics; None: as in the TuneConfig.
        mode: the same; a list with one for each of several.
        points_to_evaluate: configurations, or parts of them, to try first; they count for `num_samples`.
        sampler: of Optuna's; a copy is used. None: `TPESampler`, multivariate, in groups where trials differ
            in their parameters, with running trials taken for bad (`constant_liar`), so that concurrent ones
            don't crowd where none has reported yet.
        study_name: of the study in `storage`; "optuna" by default.
        storage: an Optuna storage, or the address of one, in which trials are kept too; those that are in its
            study already are learned from.
        seed: for the sampler; None: the sampler's own, or else the TuneConfig's.
        evaluated_rewards: for one metric, what each of `points_to_evaluate` came to; they are then learned
            from, not run.

    Raises:
        MissingDependencyError: Optuna is not installed.
        ConfigError: an argument is wrong.
    """

    several = True

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
            raise MissingDependencyError("OptunaSearch needs Optuna: pip install 'trainkit[tune]'")
        objectives = objectives_of(metric, mode)
        super().__init__(*(None, None) if objectives else (metric, mode))  # type: ignore[arg-type]
        self._objectives = objectives
        points = checked_points(points_to_evaluate)
        require(
            seed is None or (is_whole(seed) and seed >= 0), f"seed={seed!r}: give a whole number of 0 or more"
        )
        if sampler is not None or storage is not None:
            _check_kinds(sampler, storage)
        require(
            study_name is None or is_name(study_name), f"study_name={study_name!r}: give the name of a study"
        )
        self._form = None if space is None else form_of(space)
        self._space = space
        self._points = points
        self._rewards = None if evaluated_rewards is None else _checked_rewards(evaluated_rewards, points)
        self._sampler = sampler
        self._study_name = study_name
        self._storage = storage
        self._seed = seed
        self._evaluated: list[_Evaluated] = []
        self._to_run: list[tuple[dict[str, Any], bool]] = []
        self._number = 0
        self._rejected = (-1, 0)
        """Of which suggestion how many tries were rejected."""
        self._drawn = True
        self._left_out: set[str] = set()
        """Trials of before a change of the space, which are none of the new one's."""
        self._cut_short: set[str] = set()
        self._said: set[str] = set()
        """Warnings of the sampler's."""
        """Trials that the scheduler has stopped before their time, or has paused."""

    @property
    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "space": self._space,
            "metric": self.metric or [each.metric for each in self._objectives] or None,
            "mode": self.mode or [each.mode for each in self._objectives] or None,
            "points_to_evaluate": self._points,
            "sampler": self._sampler,
            "study_name": self._study_name,
            "storage": self._storage,
            "seed": self._seed,
            "evaluated_rewards": self._rewards,
        }
        # Points told by add_evaluated_point no file holds: a restore then asks for the searcher.
        return {**given, "evaluated": self._evaluated} if self._evaluated else given

    def __deepcopy__(self, memo: dict[int, Any]) -> OptunaSearch:
        twin = copy.copy(self)
        memo[id(self)] = twin
        memo[id(self._storage)] = self._storage  # a place that is written to, not a value
        memo[id(self._space)] = self._space
        memo[id(self._form)] = self._form
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    def rehearsal(self) -> Searcher:
        twin = copy.deepcopy(self)
        twin._storage = None
        return twin

    # --- what is searched -------------------------------------------------------------------------

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)
        require(
            bool(self._objectives) or (self.metric is not None and self.mode is not None),
            "OptunaSearch needs to know what to optimise: give metric and mode, in the TuneConfig or here",
        )
        if self._space is None:
            self._form = Declared(space)
        form = self._the_form()
        self._suggester = (
            samplers.in_params(self._sampler, form.param_of)
            if self._sampler is not None
            else samplers.default_sampler(form.conditional)
        )
        self._base = seed if self._seed is None else self._seed
        if self._seed is None and (own := samplers.seed_in(self._suggester)) is not None:
            self._base = own
        else:
            samplers.settle(self._suggester, self._base)
        self._aims = self._objectives or (Objective(self.metric or "", self.mode or "min"),)
        require(
            len(self._aims) == 1 or (self._rewards is None and not self._evaluated),
            "evaluated points have one value each, and there are several objectives: leave them out",
        )
        self._study = LazyStudy(
            [each.mode for each in self._aims], self._study_name or "optuna", self._storage
        )
        evaluated = list(self._evaluated)
        if self._rewards is None:
            self._to_run = [form.fixed(point) for point in self._points]
        else:
            evaluated += [
                _Evaluated(point, value) for point, value in zip(self._points, self._rewards, strict=True)
            ]
        samplers.check(
            self._suggester,
            objectives=len(self._aims),
            conditional=form.conditional and form.space is not None,
            points=bool(self._to_run),
            evaluated=bool(evaluated),
        )
        for each in evaluated:
            self._add_evaluated(form, each)

    def _the_form(self) -> Form:
        if self._form is None:
            raise ConfigError("OptunaSearch has no search space yet: hand it to a Tuner, in a TuneConfig")
        return self._form

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        form, n = self._the_form(), self._number
        if self._study.exhausted:
            return self.FINISHED
        redraw = self._rejected[1] if self._rejected[0] == n else 0
        fixed, self._drawn = self._to_run[n] if n < len(self._to_run) else ({}, True)
        one = samplers.prepared(
            self._suggester, lambda number: suggestion_words(self._base, n, redraw, number)
        )
        with saying_once(self._said):
            trial = self._study.ask(one, trial_id, fixed)
            try:
                config = form.suggest(trial, suggestion_generator(self._base, n, redraw))
            except BaseException:
                self._tell_failed(trial_id)
                raise
        self._study.settle(trial_id)
        self._number += 1
        return config

    def is_drawn(self, trial_id: str) -> bool:
        return self._drawn

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        from optuna.trial import TrialState

        # Some look at what trials came to alone, and would come to the same again: they are left as they
        # were, and draw with another seed. Others count their suggestions, so they get an answer.
        state, values = TrialState.FAIL, None
        if result is not None and not samplers.follows_from_trials(self._suggester):
            state, values = self._outcome(trial_id, result)
        self._study.reject(trial_id, state, values)
        self._number -= 1
        self._rejected = (self._number, self._rejected[1] + 1 if self._rejected[0] == self._number else 1)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]]:
        space = self._the_form().space
        if space is None:
            return iter(())
        return alternatives(space, suggestion_generator(self._base, self._number, self._rejected[1]))

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        params = self._the_form().params(config)
        if params is not None:
            self._study.add(trial_id, params)
            self._number += 1
        return params is not None

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        by_trials = samplers.follows_from_trials(self._suggester)
        if (by_trials or not same_space) and self.take(trial_id, config):
            return config
        if same_space and by_trials:
            return None
        if same_space:  # the study in a storage of the user's has all that the sampler wrote there
            known = self._storage is not None and not holds_opaque(config) and self._study.adopt(trial_id)
            self._number += known
            return config if known else None
        self._left_out.add(trial_id)  # it says nothing of the new space
        self._number += 1
        return config

    # --- results ----------------------------------------------------------------------------------

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._cut_short.discard(trial_id)  # it runs, as one does that a restore begins anew
        if len(self._aims) > 1:
            return  # Optuna takes no reports where there are several objectives
        value, step = lookup(result, self._aims[0].metric), result.get("training_iteration")
        if trial_id not in self._left_out and is_number(value) and is_whole(step):
            self._study.report(trial_id, float(value), int(step or 0))

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        if decision.verdict is Verdict.STOP and decision.reason.get("rule") != "max_t":
            self._cut_short.add(trial_id)

    def on_pause(self, trial_id: str) -> None:
        self._cut_short.add(trial_id)
        if samplers.learns_from_pruned(self._suggester):
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
        self._study.tell(trial_id, state, values)

    def _outcome(
        self, trial_id: str, result: Mapping[str, Any] | None
    ) -> tuple[TrialState, list[float] | None]:
        """What the study is told of a trial with this last report; None: it failed."""
        from optuna.trial import TrialState

        values = [lookup(result or {}, each.metric) for each in self._aims]
        if not all(map(is_number, values)):
            return TrialState.FAIL, None
        if any(map(math.isnan, values)) or trial_id in self._cut_short:
            return TrialState.PRUNED, None
        return TrialState.COMPLETE, list(map(float, values))

    def _tell_failed(self, trial_id: str) -> None:
        from optuna.trial import TrialState

        self._study.tell(trial_id, TrialState.FAIL)

    # --- what is known from elsewhere -------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        require(
            error or pruned or isinstance(value, numbers.Real),
            f"add_evaluated_point({parameters!r}, {value!r}): give the value of the metric, a number",
        )
        self._evaluated.append(_Evaluated(parameters, value, error, pruned, intermediate_values))

    def _add_evaluated(self, form: Form, evaluated: _Evaluated) -> None:
        from optuna.trial import TrialState

        params = form.params(evaluated.parameters)
        if params is None:
            raise ConfigError(
                f"the evaluated point {evaluated.parameters!r} is no configuration of the search space: give "
                "every parameter, with a value that it may have"
            )
        state, value = TrialState.COMPLETE, evaluated.value
        if evaluated.error:
            state = TrialState.FAIL
        elif evaluated.pruned or math.isnan(value):
            state = TrialState.PRUNED
        reports = dict(enumerate(evaluated.intermediate_values or []))
        # By its content: a study in a database has it already after a restore.
        content = encode_config(vars(evaluated))
        mark = f"evaluated {blake2b(content.encode(), digest_size=8).hexdigest()}"
        values = [float(value)] if state is TrialState.COMPLETE else None
        self._study.add(mark, params, state, values, reports, samplers.marks_of_evaluated(self._suggester))


@dataclass(frozen=True)
class _Evaluated:
    parameters: dict[str, Any]
    value: float
    error: bool = False
    pruned: bool = False
    intermediate_values: list[float] | None = None


def _checked_rewards(rewards: Any, points: Sequence[Any]) -> list[float]:
    listed = list(rewards) if isinstance(rewards, Iterable) else []
    numeric = isinstance(rewards, Iterable) and all(isinstance(each, numbers.Real) for each in listed)
    require(
        numeric and len(listed) == len(points),
        f"evaluated_rewards={rewards!r}: give one for each of the {len(points)} points_to_evaluate, a number",
    )
    return list(map(float, listed))


def _check_kinds(sampler: object, storage: object) -> None:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    require_kind("sampler", sampler, BaseSampler, "optuna.samplers.TPESampler(seed=0)")
    require(
        storage is None or isinstance(storage, (str, BaseStorage)),
        f"storage={storage!r}: give an address such as 'sqlite:///study.db', or a storage of Optuna's",
    )
