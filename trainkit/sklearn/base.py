"""Base class of the searches, which run the candidates of a scikit-learn search as trials of the tuner."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from joblib import cpu_count
from sklearn.base import clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import indexable
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.settings import results_dir
from trainkit.sklearn.candidates import CandidateList, CandidateSource
from trainkit.sklearn.context import SklearnContext
from trainkit.sklearn.early_stopping import EarlyStopping, early_stopping_of, require_goal
from trainkit.sklearn.experiment import (
    CandidateResult,
    SearchResult,
    comparable_candidates,
    error_to_raise,
    evaluate,
    warn_if_few,
)
from trainkit.sklearn.internals import (
    BaseSearchCV,
    FitCallbacks,
    MultimetricScorer,
    check_method_params,
    fit_context,
    has_callbacks,
    insert_error_scores,
    warn_or_raise_about_fit_failures,
)
from trainkit.sklearn.outcomes import Outcome, PartialSearch, rank_lowest_first
from trainkit.sklearn.settings import metric_of, names_of_settings, settings_of, with_budget_left
from trainkit.sklearn.trials import EvaluationTask, FoldTrial, IncrementalTrial
from trainkit.tune.core.resources import as_request, with_parameters, with_resources
from trainkit.tune.core.setting_names import named_as
from trainkit.tune.display import say
from trainkit.tune.results.analysis import ExperimentAnalysis

NO_FITS = "No fits were performed. Was the CV iterator empty? Were there no candidates?"
"""Beginning of the error message if no fit was performed, as in scikit-learn."""


def _refitted_with(method: str) -> Any:
    def check(search: Any) -> bool:
        getattr(search.best_estimator_, method)  # this line raises an AttributeError that names the method
        return True

    return check


class _Ended(Exception):
    """Exception that ends a search early, between two rounds."""


@dataclass
class _Evaluated:
    """Candidates that a search has evaluated so far, in one or several rounds.

    Attributes:
        candidates: candidates of all rounds.
        outcomes: outcomes of all folds, candidate by candidate.
        more_results: values that `_run_search` adds to `cv_results_`, one for each candidate.
        rounds: result of each round.
    """

    candidates: list[CandidateResult] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    more_results: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    rounds: list[SearchResult] = field(default_factory=list)

    @property
    def last(self) -> SearchResult:
        """Result of the last round."""
        if not self.rounds:
            raise ValueError(f"{NO_FITS} _run_search evaluated no candidate")
        return self.rounds[-1]


class TuneBaseSearchCV(BaseSearchCV):  # type: ignore[misc]
    """Base class of the searches, and of users' own searches, like scikit-learn's `BaseSearchCV`.

    A subclass that overrides `_run_search(evaluate_candidates)` chooses the candidates itself, and may use
    the results of previous candidates. Each call of `evaluate_candidates` is a separate experiment.
    """

    # The following values apply to subclasses whose constructor lacks these arguments, such as the halving
    # searches.
    early_stopping: Any = None
    local_dir: Any = None
    name: str | None = None
    max_iters: int = 1
    resource: str | None = None
    use_gpu: bool = False
    loggers: Any = None
    pipeline_auto_early_stop: bool = True
    stopper: Any = None
    time_budget_s: Any = None
    sk_n_jobs: int | None = None
    mode: str | None = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseSearchCV._parameter_constraints,
        "early_stopping": "no_validation",  # the tuner's own check has better messages
        "local_dir": "no_validation",
        "name": [str, None],
        "max_iters": [Integral],
        "resource": [StrOptions({"n_samples"}), None],
        "use_gpu": ["boolean"],
        "loggers": "no_validation",
        "pipeline_auto_early_stop": ["boolean"],
        "stopper": "no_validation",
        "time_budget_s": "no_validation",
        "sk_n_jobs": [Integral, None],
        "mode": "no_validation",
        "pre_dispatch": [Integral, str, None],
    }
    # `fit` itself uses the following arguments, so metadata routing in an enclosing search must not offer
    # them.
    __metadata_request__fit: ClassVar[dict[str, str]] = {"groups": UNUSED, "tune_params": UNUSED}

    _space_argument: ClassVar[str] = "param_grid"
    """Name of the constructor's argument that gives the parameter space."""

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Set the constructor's arguments as attributes.

        By the rules of scikit-learn, a constructor does nothing else.
        """
        self.__dict__.update({name: value for name, value in arguments.items() if name != "self"})

    def _search(self) -> CandidateSource | None:
        """Return the source of the candidates; None if `_run_search` provides them."""
        return None

    def _searched(self) -> Collection[str]:
        """Return the names of the parameters that differ between candidates."""
        return ()

    @fit_context(prefer_skip_nested_validation=False)  # type: ignore[untyped-decorator]
    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        tune_params: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Self:
        """Evaluate the candidates by cross-validation, and fit the best candidate on all data.

        Args:
            X: samples of shape (n_samples, n_features), or (n_samples, n_samples) if the estimator accepts a
                square matrix. X may be an array, a sparse matrix, a data frame, or a list of any objects that
                the estimator accepts.
            y: labels of shape (n_samples,) or (n_samples, n_outputs); None for estimators that learn without
                labels.
            groups: group of each sample, of shape (n_samples,), for splitters that keep groups together.
            tune_params: further settings of the tuner, by name.
            params: further arguments for the estimator's `fit` and, with metadata routing enabled, for the
                scorer and the splitter, like in scikit-learn's `GridSearchCV`. Parameters with a value for
                each sample, such as `sample_weight`, are split with X.

        Returns:
            This search, fitted.

        Raises:
            InvalidParameterError: an argument of the constructor has the wrong type. The error is a
                ValueError.
            ConfigError: an argument is out of range, or contradicts another argument. The error is a
                ValueError.
            ValueError: all fits failed, or the search has no candidate or no fold.
            Exception: an error of the estimator or the scorer, if `error_score` is "raise"; any error of the
                splitter or of the fit on all data.
        """
        scorers, refit_metric = self._get_scorers()
        self._require_mode(scorers, refit_metric)
        X, y = indexable(X, y)
        if groups is not None:
            params["groups"] = groups
        params = check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        tasks = FitCallbacks(self, X, y, params.get("sample_weight"))
        tasks.begin()
        self._checked_cv_orig = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        # Before scikit-learn 1.9, only halving searches have this method.
        if hasattr(self, "_check_input_parameters"):
            self._check_input_parameters(X=X, y=y, split_params=routed.splitter.split)
        self.n_splits_ = self._checked_cv_orig.get_n_splits(X, y, **routed.splitter.split)
        # Candidates are drawn before folds, as in scikit-learn, because both may draw from the same random
        # generator.
        search = None if self._has_own_rounds() else self._search()
        stopping = self._early_stopping(clone(self.estimator), tune_params, in_rounds=search is None)
        task = EvaluationTask(
            clone(self.estimator),
            X,
            y,
            (),
            scorers,
            routed.estimator.fit,
            routed.scorer.score,
            self.return_train_score,
            self.error_score,
            self.verbose,
            SklearnContext.current(),
            decisive=metric_of(self.scoring, self.refit, needed_by=None),
        )
        if search is None:
            evaluated = self._in_rounds(task, routed.splitter.split, tasks, tune_params)
        else:
            splits = self._splits(self._checked_cv_orig, task, routed.splitter.split)
            with tasks.searching(self._announced(search.total)) as callbacks:
                task = replace(task, splits=splits, callbacks=callbacks, candidates=search.total)
                found = self._evaluate(task, search, stopping, tune_params)
            warn_if_few(found, search)
            candidates = comparable_candidates(
                found, task, self._second_fit(stopping), by_portions=stopping is not None
            )
            evaluated = _Evaluated(candidates, self._outcomes(candidates), rounds=[found])
        found, candidates = evaluated.last, evaluated.candidates
        self._keep_results(evaluated, scorers, refit_metric, by_portions=stopping is not None)
        self._forget_refitted()
        if found.interrupted:
            tasks.end()
            raise KeyboardInterrupt
        if self.refit:
            try:
                self._refit(task, stopping, candidates[self.best_index_], tasks)
            except BaseException:  # if the fit on all data fails, a second `fit` repeats only this step
                self._unfinished = found.unfinished
                raise
        for each in evaluated.rounds:
            each.finish()
        tasks.end()
        return self

    @available_if(_refitted_with("partial_fit"))  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Train the best estimator further on more data, without a new search.

        This method exists only after `fit`, and only if the best estimator has a method `partial_fit`.

        Args:
            X: samples of shape (n_samples, n_features), as for `fit`.
            y: labels of shape (n_samples,) or (n_samples, n_outputs); None for estimators that learn without
                labels.
            params: further arguments for the estimator's `partial_fit`.

        Returns:
            This search.
        """
        self.best_estimator_.partial_fit(X, y, **params)
        return self

    # --- parts of fit -----------------------------------------------------------------------------

    def _require_mode(self, scorers: Any, refit_metric: Any) -> None:
        """Raise ConfigError if `mode` is unknown, or if `mode` is "min" although there are several scorers
        and `refit` does not name one of them.
        """
        if self.mode not in (None, "max", "min"):
            raise ConfigError(f"mode must be 'max', 'min', or None for 'max', not {self.mode!r}")
        if self.mode == "min" and isinstance(scorers, MultimetricScorer):
            self._require_name(refit_metric, scorers._scorers)

    def _require_name(self, refit_metric: Any, scorers: Iterable[str]) -> None:
        if not isinstance(refit_metric, str):
            raise ConfigError(
                f"mode='min' applies to one scorer, but refit={self.refit!r:.100} names none of "
                f"{', '.join(map(repr, scorers))}: name the scorer by refit, or leave mode out"
            )

    def _has_own_rounds(self) -> bool:
        """Return True if a subclass overrides `_run_search`, like `HalvingGridSearchCV`."""
        return type(self)._run_search is not BaseSearchCV._run_search

    def _in_rounds(
        self,
        task: EvaluationTask,
        split_params: Mapping[str, Any],
        tasks: FitCallbacks,
        tune_params: Mapping[str, Any] | None,
    ) -> _Evaluated:
        """Evaluate the candidates that `_run_search` chooses, round by round."""
        all_ = _Evaluated()
        before = getattr(self, "_unfinished", None)
        started = SYSTEM.monotonic()

        def evaluate_candidates(
            candidate_params: Iterable[Mapping[str, Any]],
            cv: Any = None,
            more_results: Mapping[str, Sequence[Any]] | None = None,
            callback_ctx: Any = None,
        ) -> dict[str, Any]:
            source = CandidateSource(CandidateList(list(candidate_params)), seed=self._own_seed())
            splits = self._splits(cv or self._checked_cv_orig, task, split_params)
            self._announced(source.total)
            own = replace(
                task, splits=splits, callbacks=tasks.folds_within(callback_ctx), candidates=source.total
            )
            spent_s = SYSTEM.monotonic() - started
            found = self._evaluate(own, source, None, tune_params, before=before, spent_s=spent_s)
            all_.rounds.append(found)
            complete = comparable_candidates(
                found, own, self._second_fit(None), by_portions=False, may_be_none=bool(all_.candidates)
            )
            all_.candidates += complete
            all_.outcomes += self._outcomes(complete)
            places = {id(each.result): place for place, each in enumerate(found.candidates)}
            for key, values in (more_results or {}).items():
                all_.more_results[key] += [values[places[id(each.result)]] for each in complete]
            if found.ended_by is not None:
                raise _Ended
            return self._formatted(all_)

        takes = inspect.signature(self._run_search).parameters
        context = {"callback_ctx": tasks.root} if "callback_ctx" in takes else {}
        with contextlib.suppress(_Ended):
            self._run_search(evaluate_candidates, **context)
        return all_

    def _own_seed(self) -> int | None:
        seed = getattr(self, "random_state", None)
        return int(seed) if isinstance(seed, Integral) else None

    def _splits(
        self, splitter: Any, task: EvaluationTask, split_params: Mapping[str, Any]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        splits = list(splitter.split(task.X, task.y, **split_params))
        if len(splits) != self.n_splits_:
            raise ValueError(
                "cv.split and cv.get_n_splits return inconsistent results. "
                f"Expected {self.n_splits_} splits, got {len(splits)} of cv={self.cv!r:.200}"
            )
        if not splits:
            raise ValueError(f"{NO_FITS} cv={self.cv!r:.200} produces no folds")
        return splits

    def _early_stopping(
        self, estimator: Any, tune_params: Mapping[str, Any] | None, *, in_rounds: bool
    ) -> EarlyStopping | None:
        asked = self._early_stopping_asked()
        if in_rounds and asked:
            raise ConfigError(
                f"early_stopping={asked!r:.100} is not supported by {type(self).__name__}, whose "
                "_run_search decides which candidates are evaluated: leave early_stopping out"
            )
        stopping = early_stopping_of(
            asked,
            self.max_iters,
            metric=metric_of(self.scoring, self.refit, needed_by="early_stopping" if asked else None),
            mode=self.mode or "max",
            last_step=self.pipeline_auto_early_stop,
            searched=self._searched(),
            watched=self._is_watched(tune_params or {}),
            of_samples=not in_rounds and self.resource is not None,
        )
        if stopping is not None:
            if has_callbacks(self):
                raise ConfigError(
                    "early_stopping trains in portions, which scikit-learn's callbacks cannot "
                    "observe: leave early_stopping out, or remove the callbacks by set_callbacks()"
                )
            stopping.require_able(estimator, self._searched())
        return stopping

    def _is_watched(self, tune_params: Mapping[str, Any]) -> bool:
        """Return True if an object other than the scheduler reads the candidates' reports or ends
        candidates.
        """
        asked = {"stop", "callbacks", "progress_reporter", "time_budget_s", "default_loggers"}
        own = (self.stopper, self.time_budget_s, self.loggers)
        return any(each is not None for each in own) or not asked.isdisjoint(tune_params)

    def _early_stopping_asked(self) -> Any:
        return self.early_stopping

    def _announced(self, total: int | None) -> int | None:
        """Return the number of fits; None if it is unknown. If `verbose` is set, print the number."""
        if total is None:
            return None
        if total == 0:
            raise ValueError(f"{NO_FITS} the parameter space has no candidates")
        fits: int = total * self.n_splits_
        if self.verbose:
            say(f"Fitting {self.n_splits_} folds for each of {total} candidates, totalling {fits} fits")
        return fits

    def _evaluate(
        self,
        task: EvaluationTask,
        search: CandidateSource,
        stopping: EarlyStopping | None,
        tune_params: Mapping[str, Any] | None,
        *,
        before: PartialSearch | None = None,
        spent_s: float = 0.0,
    ) -> SearchResult:
        trial = with_parameters(FoldTrial, task=task)
        if stopping is not None:
            by_class = is_classifier(task.estimator) and np.ndim(task.y) == 1
            stopping.require_divisible(task.splits, len(np.unique(task.y)) if by_class else 1)
            trial = with_parameters(IncrementalTrial, task=task, portions=stopping.portions)
        needed_by = f"search_optimization={type(search.searcher).__name__}" if search.learns else None
        metric = metric_of(self.scoring, self.refit, needed_by="early_stopping" if stopping else needed_by)
        if search.learns:
            require_goal(search.searcher, type(search.searcher).__name__, metric, self.mode or "max")
        with named_as(names_of_settings(self._space_argument, self.refit, tune_params)):
            chosen = settings_of(
                self,
                search,
                metric=metric,
                scheduler=None if stopping is None else stopping.scheduler,
                folds=self.n_splits_,
                machine_cpus=cpu_count(),
                results_dir=str(results_dir()),
                tune_params=tune_params,
            )
            found = evaluate(
                with_resources(trial, as_request(chosen.resources)),
                search.space,
                with_budget_left(chosen.tune, spent_s),
                chosen.run,
                folds=self.n_splits_,
                resumes=stopping is None,
                cpus=chosen.cpus,
                before=before or getattr(self, "_unfinished", None),
            )
        self._require_refit_metric(found.candidates)
        error = error_to_raise(found.candidates, self.error_score, by_portions=stopping is not None)
        if error is not None:
            # The error's traceback refers to this frame, and `found` contains the error. When both names are
            # deleted, Python can free the error and X.
            del found
            try:
                raise error
            finally:
                del error
        self.analysis_ = ExperimentAnalysis.of(found.grid)
        self._unfinished = None if found.ended_by is None else found.unfinished
        return found

    def _keep_results(
        self, evaluated: _Evaluated, scorers: Any, refit_metric: Any, *, by_portions: bool
    ) -> None:
        """Set all result attributes except the attributes that the fit on all data sets."""
        outcomes = evaluated.outcomes
        self.multimetric_ = isinstance(outcomes[0]["test_scores"], dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(outcomes[0]["test_scores"])
            refit_metric = self.refit
        results = self._formatted(evaluated)
        if by_portions:
            results["training_iteration"] = np.array([each.iterations for each in evaluated.candidates])
        if self.mode == "min":
            self._require_name(refit_metric, outcomes[0]["test_scores"] if self.multimetric_ else ())
            rank_lowest_first(results, refit_metric)
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, refit_metric, results)
            if by_portions and self.resource is not None and not callable(self.refit):
                # As in halving searches, only the candidates with the most samples are compared, because a
                # score on few samples says little about the score on all samples.
                reached = results["training_iteration"]
                furthest = np.flatnonzero(reached == reached.max())
                self.best_index_ = furthest[results[f"rank_test_{refit_metric}"][furthest].argmin()]
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{refit_metric}"][self.best_index_]
            self.best_params_ = results["params"][self.best_index_]
        self.scorer_ = scorers._scorers if isinstance(scorers, MultimetricScorer) else scorers
        self.cv_results_ = results

    def _formatted(self, evaluated: _Evaluated) -> dict[str, Any]:
        parameters = [dict(candidate.parameters) for candidate in evaluated.candidates]
        results: dict[str, Any] = self._format_results(
            parameters, self.n_splits_, evaluated.outcomes, evaluated.more_results
        )
        return results

    def _require_refit_metric(self, candidates: Sequence[CandidateResult]) -> None:
        """Raise an error if `refit` names none of the scores that the scoring function returned."""
        if callable(self.scoring):
            for outcome in (each for candidate in candidates for each in candidate.outcomes):
                if outcome is not None and isinstance(outcome["test_scores"], dict):
                    self._check_refit_for_multimetric(outcome["test_scores"])
                    return

    def _second_fit(self, stopping: EarlyStopping | None) -> str:
        """Return a sentence that says what a second `fit` does after a search that ended early."""
        if stopping is not None:
            return "with early stopping, a second fit starts from the beginning"
        if getattr(self, "random_state", 0) is None:
            return "a second fit samples new candidates; with random_state it evaluates only the missing ones"
        return "a second fit on the same data evaluates only the missing folds"

    def _outcomes(self, candidates: Sequence[CandidateResult]) -> list[Outcome]:
        """Return the outcome of each fold of each candidate, in one list."""
        outcomes: list[Outcome] = [each for one in candidates for each in one.outcomes if each is not None]
        warn_or_raise_about_fit_failures(outcomes, self.error_score)
        if callable(self.scoring):
            insert_error_scores(outcomes, self.error_score)
        return outcomes

    def _forget_refitted(self) -> None:
        """Delete the best estimator of an earlier fit, because it does not belong to the new results."""
        for name in ("best_estimator_", "refit_time_", "feature_names_in_"):
            if name in vars(self):
                delattr(self, name)

    def _refit(
        self, task: EvaluationTask, stopping: EarlyStopping | None, best: CandidateResult, tasks: FitCallbacks
    ) -> None:
        """Fit the best candidate on all data; if this fit fails, the results of the search stay set."""
        # The parameters are also cloned, because they may be estimators.
        fitted = clone(task.estimator).set_params(**clone(self.best_params_, safe=False))
        started = SYSTEM.monotonic()
        with tasks.refitting(fitted):
            if stopping is not None:
                fitted = stopping.refitted(task.estimator, best.history, task.X, task.y, task.fit_params)
            elif task.y is not None:
                fitted.fit(task.X, task.y, **task.fit_params)
            else:
                fitted.fit(task.X, **task.fit_params)
        self.refit_time_ = SYSTEM.monotonic() - started
        self.best_estimator_ = fitted
        if hasattr(fitted, "feature_names_in_"):
            self.feature_names_in_ = fitted.feature_names_in_
