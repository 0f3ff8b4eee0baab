"""What both searches are: scikit-learn's own search, whose candidates run as trials."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from joblib import cpu_count
from sklearn.base import clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._validation import (
    _insert_error_scores,
    _MultimetricScorer,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils import indexable
from sklearn.utils.validation import _check_method_params

from trainkit.clock import SYSTEM
from trainkit.settings import results_dir
from trainkit.sklearn.candidates import Search
from trainkit.sklearn.cv_results import Outcome
from trainkit.sklearn.evaluation import FoldTrial, Task
from trainkit.sklearn.running import Evaluated, Finding, evaluate
from trainkit.sklearn.settings import metric_of, settings_of
from trainkit.tune.placement import with_parameters, with_resources


class TuneBaseSearchCV(BaseSearchCV):  # type: ignore[misc]
    """Base of the two; see them."""

    @abstractmethod
    def _search(self) -> Search:
        """What suggests the candidates."""

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
            X: (n_samples, n_features), or (n_samples, n_samples) where the estimator takes such a matrix;
                arrays, sparse matrices, frames or lists.
            y: (n_samples,) or (n_samples, n_outputs); None for estimators that learn without.
            groups: (n_samples,), for splitters that keep groups together.
            tune_params: further settings of the tuner.
            params: passed on to the estimator's `fit`, the scorer and the splitter, as scikit-learn does it.

        Raises:
            ValueError: an argument of the constructor is out of range, or all fits failed.
        """
        self._validate_params()
        scorers, refit_metric = self._get_scorers()
        X, y = indexable(X, y)
        if groups is not None:
            params["groups"] = groups
        params = _check_method_params(X, params=params)
        routed = self._get_routed_params_for_fit(params)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(splitter.split(X, y, **routed.splitter.split))
        self.n_splits_ = splitter.get_n_splits(X, y, **routed.splitter.split)
        estimator = clone(self.estimator)
        task = Task(
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
        )
        found = self._evaluate(task, tune_params)
        outcomes = self._outcomes(found.candidates)
        self.multimetric_ = isinstance(outcomes[0]["test_scores"], dict)
        if callable(self.scoring) and self.multimetric_:
            self._check_refit_for_multimetric(outcomes[0]["test_scores"])
            refit_metric = self.refit
        parameters = [candidate.parameters for candidate in found.candidates]
        results = self._format_results(parameters, self.n_splits_, outcomes)
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, refit_metric, results)
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{refit_metric}"][self.best_index_]
            self.best_params_ = results["params"][self.best_index_]
        if self.refit:
            self._refit(estimator, X, y, routed.estimator.fit)
        self.scorer_ = scorers._scorers if isinstance(scorers, _MultimetricScorer) else scorers
        self.cv_results_ = results
        return self

    def _evaluate(self, task: Task, tune_params: Mapping[str, Any] | None) -> Finding:
        search = self._search()
        needed_by = f"search_optimization={type(search.searcher).__name__}" if search.learns else None
        chosen = settings_of(
            self,
            search,
            metric=metric_of(self.scoring, self.refit, needed_by=needed_by),
            scheduler=None,
            folds=self.n_splits_,
            machine_cpus=cpu_count(),
            results_dir=str(results_dir()),
            tune_params=tune_params,
        )
        trainable = with_resources(with_parameters(FoldTrial, task=task), chosen.resources)
        return evaluate(
            trainable, search.space, chosen.tune, chosen.run, folds=self.n_splits_, cpus=chosen.cpus
        )

    def _outcomes(self, candidates: Sequence[Evaluated]) -> list[Outcome]:
        """What each fold of each candidate came to; those that were cut off have failed."""
        outcomes: list[Outcome] = [each for one in candidates for each in one.outcomes if each is not None]
        _warn_or_raise_about_fit_failures(outcomes, self.error_score)
        if callable(self.scoring):
            _insert_error_scores(outcomes, self.error_score)
        return outcomes

    def _refit(self, estimator: Any, X: Any, y: Any, fit_params: Mapping[str, Any]) -> None:
        # The parameters are cloned too, as they may be estimators.
        self.best_estimator_ = clone(estimator).set_params(**clone(self.best_params_, safe=False))
        started = SYSTEM.monotonic()
        if y is not None:
            self.best_estimator_.fit(X, y, **fit_params)
        else:
            self.best_estimator_.fit(X, **fit_params)
        self.refit_time_ = SYSTEM.monotonic() - started
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_
