"""Base class of the searches: scikit-learn's search with trials of the tuner as candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from joblib import cpu_count  # type: ignore[import-untyped]
from sklearn.base import clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import indexable
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.settings import results_dir
from trainkit.sklearn.candidates import CandidateSource
from trainkit.sklearn.context import FitCallbacks, SklearnContext, has_callbacks
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
    MultimetricScorer,
    check_method_params,
    fit_context,
    insert_error_scores,
    warn_or_raise_about_fit_failures,
)
from trainkit.sklearn.outcomes import Outcome, rank_lowest_first
from trainkit.sklearn.settings import metric_of, names_of_settings, settings_of
from trainkit.sklearn.trials import EvaluationTask, FoldTrial, IncrementalTrial
from trainkit.tune.core.checks import named_as
from trainkit.tune.core.resources import as_request, with_parameters, with_resources
from trainkit.tune.display import say
from trainkit.tune.results.analysis import ExperimentAnalysis


def _refitted_with(method: str) -> Any:
    def check(search: Any) -> bool:
        getattr(search.best_estimator_, method)  # raises an AttributeError that names what is missing
        return True

    return check


class TuneBaseSearchCV(BaseSearchCV):  # type: ignore[misc]
    """Common base of `TuneGridSearchCV` and `TuneSearchCV`."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseSearchCV._parameter_constraints,
        "early_stopping": "no_validation",  # checked by the tuner, with better messages
        "local_dir": "no_validation",
        "name": [str, None],
        "max_iters": [Integral],
        "use_gpu": ["boolean"],
        "loggers": "no_validation",
        "pipeline_auto_early_stop": ["boolean"],
        "stopper": "no_validation",
        "time_budget_s": "no_validation",
        "sk_n_jobs": [Integral, None],
        "mode": "no_validation",
        "pre_dispatch": [Integral, str, None],
    }
    # Arguments of `fit` itself, which a search around this one does not route.
    __metadata_request__fit: ClassVar[dict[str, str]] = {"groups": UNUSED, "tune_params": UNUSED}

    _space_argument: ClassVar[str]
    """Name of the constructor's argument for the space."""

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Set the arguments of the constructor as attributes, which is all that scikit-learn lets it do."""
        self.__dict__.update({name: value for name, value in arguments.items() if name != "self"})

    @abstractmethod
    def _search(self) -> CandidateSource:
        """Return the source of the candidates."""

    @abstractmethod
    def _searched(self) -> Collection[str]:
        """Return the names of the parameters that candidates differ in."""

    @fit_context(prefer_skip_nested_validation=False)  # type: ignore[untyped-decorator]
    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        tune_params: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Self:
        """Evaluate the candidates by cross-validation, and fit the best one on all data.

        Args:
            X: (n_samples, n_features), or (n_samples, n_samples) where the estimator takes such a matrix:
                arrays, sparse matrices, frames, or lists of anything that the estimator takes.
            y: (n_samples,) or (n_samples, n_outputs); None for estimators that learn without.
            groups: (n_samples,), for splitters that keep groups together.
            tune_params: further settings of the tuner.
            params: passed on to the estimator's `fit`, and with metadata routing enabled to the scorer and
                the splitter, as scikit-learn's `GridSearchCV` does. Those with a value for each sample,
                such as `sample_weight`, are split with X.

        Returns:
            This search, fitted.

        Raises:
            InvalidParameterError: an argument of the constructor has the wrong type; it is a ValueError.
            ConfigError: an argument is out of range, or contradicts another one; it is a ValueError.
            ValueError: all fits failed, or there were none.
            Exception: what the estimator or the scorer raised, if `error_score` is "raise"; what the splitter
                or the fit on all data raised, always.
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
        # The order is scikit-learn's: these calls may draw from the same generator.
        search = self._search()
        splits = self._splits(X, y, routed.splitter.split)
        estimator = clone(self.estimator)
        stopping = self._early_stopping(estimator, tune_params)
        with tasks.searching(self._announced(search.total)) as callbacks:
            task = EvaluationTask(
                estimator,
                X,
                y,
                splits,
                scorers,
                routed.estimator.fit,
                routed.scorer.score,
                self.return_train_score,
                self.error_score,
                self.verbose,
                SklearnContext.current(),
                callbacks,
                search.total,
            )
            found = self._evaluate(task, search, stopping, tune_params)
        warn_if_few(found, search)
        candidates = comparable_candidates(
            found, task, self._second_fit(stopping), by_portions=stopping is not None
        )
        self._keep_results(candidates, scorers, refit_metric, by_portions=stopping is not None)
        self._forget_refitted()
        if found.interrupted:
            tasks.end()
            raise KeyboardInterrupt
        if self.refit:
            try:
                self._refit(task, stopping, candidates[self.best_index_], tasks)
            except BaseException:  # a second `fit` repeats only this step
                self._unfinished = found.unfinished
                raise
        tasks.end()
        return self

    @available_if(_refitted_with("partial_fit"))  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Train the best estimator further on more data, without another search.

        The method exists once `fit` has fitted an estimator that has it.

        Args:
            X: (n_samples, n_features), as for `fit`.
            y: (n_samples,) or (n_samples, n_outputs); None for estimators that learn without.
            params: passed on to the estimator's `partial_fit`.

        Returns:
            This search.
        """
        self.best_estimator_.partial_fit(X, y, **params)
        return self

    # --- parts of fit -----------------------------------------------------------------------------

    def _require_mode(self, scorers: Any, refit_metric: Any) -> None:
        """Refuse an unknown `mode`, and mode='min' where no single scorer decides."""
        if self.mode not in (None, "max", "min"):
            raise ConfigError(f"mode={self.mode!r}: give 'max', 'min', or None for 'max'")
        if self.mode == "min" and isinstance(scorers, MultimetricScorer):
            self._require_name(refit_metric, scorers._scorers)

    def _require_name(self, refit_metric: Any, scorers: Iterable[str]) -> None:
        if not isinstance(refit_metric, str):
            raise ConfigError(
                f"mode='min' is about one scorer, and refit={self.refit!r:.100} names none of "
                f"{', '.join(map(repr, scorers))}: name it by refit, or leave mode out"
            )

    def _splits(self, X: Any, y: Any, split_params: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        self.n_splits_ = splitter.get_n_splits(X, y, **split_params)
        splits = list(splitter.split(X, y, **split_params))
        if len(splits) != self.n_splits_:
            raise ValueError(
                f"cv={self.cv!r:.200} contradicts itself: its get_n_splits says {self.n_splits_}, and its "
                f"split gives {len(splits)}"
            )
        if not splits:
            raise ValueError(f"there is nothing to fit: cv={self.cv!r:.200} gives no split into folds")
        return splits

    def _early_stopping(self, estimator: Any, tune_params: Mapping[str, Any] | None) -> EarlyStopping | None:
        asked = self._early_stopping_asked()
        stopping = early_stopping_of(
            asked,
            self.max_iters,
            metric=metric_of(self.scoring, self.refit, needed_by="early_stopping" if asked else None),
            mode=self.mode or "max",
            last_step=self.pipeline_auto_early_stop,
            searched=self._searched(),
            watched=self._is_watched(tune_params or {}),
        )
        if stopping is not None:
            if has_callbacks(self):
                raise ConfigError(
                    "early_stopping trains by portions, of which scikit-learn's callbacks would not be told: "
                    "leave early_stopping out, or take the callbacks off by set_callbacks()"
                )
            stopping.require_able(estimator, self._searched())
        return stopping

    def _is_watched(self, tune_params: Mapping[str, Any]) -> bool:
        """Return True if anything besides the scheduler watches or ends candidates."""
        asked = {"stop", "callbacks", "progress_reporter", "time_budget_s", "default_loggers"}
        own = (self.stopper, self.time_budget_s, self.loggers)
        return any(each is not None for each in own) or not asked.isdisjoint(tune_params)

    def _early_stopping_asked(self) -> Any:
        return self.early_stopping

    def _announced(self, total: int | None) -> int | None:
        """Return the number of fits and print it if `verbose`; None if it is not known."""
        if total is None:
            return None
        if total == 0:
            raise ValueError("there is nothing to fit: the parameter space holds no candidate")
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
    ) -> SearchResult:
        trial = with_parameters(FoldTrial, task=task)
        if stopping is not None:
            trial = with_parameters(IncrementalTrial, task=task, **stopping.trial_arguments)
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
                chosen.tune,
                chosen.run,
                folds=self.n_splits_,
                resumes=stopping is None,
                cpus=chosen.cpus,
                before=getattr(self, "_unfinished", None),
            )
        error = error_to_raise(found.candidates, self.error_score, by_portions=stopping is not None)
        if error is not None:
            # The traceback holds this frame, so the error would hold itself and X through `found`.
            del found
            try:
                raise error
            finally:
                del error
        self.analysis_ = ExperimentAnalysis.of(found.grid)
        self._unfinished = None if found.ended_by is None else found.unfinished
        return found

    def _keep_results(
        self, candidates: Sequence[CandidateResult], scorers: Any, refit_metric: Any, *, by_portions: bool
    ) -> None:
        """Set the results, all but those of the fit on all data."""
        outcomes = self._outcomes(candidates)
        self.multimetric_ = isinstance(outcomes[0]["test_scores"], dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(outcomes[0]["test_scores"])
            refit_metric = self.refit
        parameters = [dict(candidate.parameters) for candidate in candidates]
        results = self._format_results(parameters, self.n_splits_, outcomes)
        if by_portions:
            results["training_iteration"] = np.array([candidate.iterations for candidate in candidates])
        if self.mode == "min":
            self._require_name(refit_metric, outcomes[0]["test_scores"] if self.multimetric_ else ())
            rank_lowest_first(results, refit_metric)
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, refit_metric, results)
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{refit_metric}"][self.best_index_]
            self.best_params_ = results["params"][self.best_index_]
        self.scorer_ = scorers._scorers if isinstance(scorers, MultimetricScorer) else scorers
        self.cv_results_ = results

    def _second_fit(self, stopping: EarlyStopping | None) -> str:
        """Return a sentence on a second `fit` after one that was ended early."""
        if stopping is not None:
            return "with early stopping a second fit begins anew"
        if getattr(self, "random_state", 0) is None:
            return "a second fit draws other candidates; with a random_state it goes on with what is missing"
        return "a second fit on the same data goes on with what is missing"

    def _outcomes(self, candidates: Sequence[CandidateResult]) -> list[Outcome]:
        """Return the outcome of each fold of each candidate."""
        outcomes: list[Outcome] = [each for one in candidates for each in one.outcomes if each is not None]
        warn_or_raise_about_fit_failures(outcomes, self.error_score)
        if callable(self.scoring):
            insert_error_scores(outcomes, self.error_score)
        return outcomes

    def _forget_refitted(self) -> None:
        """Delete the best estimator of an earlier fit, which does not belong to the new results."""
        for name in ("best_estimator_", "refit_time_", "feature_names_in_"):
            if name in vars(self):
                delattr(self, name)

    def _refit(
        self, task: EvaluationTask, stopping: EarlyStopping | None, best: CandidateResult, tasks: FitCallbacks
    ) -> None:
        """Fit the best candidate on all data; the results stay even if that fails."""
        # Parameters may be estimators, so they are cloned too.
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
