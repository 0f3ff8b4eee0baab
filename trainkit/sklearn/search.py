"""`TuneSearchCV`: candidates drawn from distributions, at random or by what was learned so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.sklearn.base import TuneBaseSearchCV
from trainkit.sklearn.candidates import Search
from trainkit.sklearn.searchers import BOHB, search_of
from trainkit.sklearn.spaces import dictionaries

N_TRIALS = 10


class TuneSearchCV(TuneBaseSearchCV):
    """scikit-learn's `RandomizedSearchCV`, whose candidates are trials of a tuner."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TuneBaseSearchCV._parameter_constraints,
        "param_distributions": [dict, list],
        "n_trials": [Integral],
        "n_iter": [Integral, None],
        "random_state": ["random_state"],
        "search_optimization": "no_validation",
        "search_kwargs": [dict, None],
    }

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        early_stopping: Any = None,
        n_trials: int = N_TRIALS,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        error_score: Any = math.nan,
        return_train_score: bool = False,
        local_dir: str | None = None,
        name: str | None = None,
        max_iters: int = 1,
        search_optimization: Any = "random",
        use_gpu: bool = False,
        loggers: Any = None,
        pipeline_auto_early_stop: bool = True,
        stopper: Any = None,
        time_budget_s: Any = None,
        sk_n_jobs: int | None = None,
        mode: str | None = None,
        search_kwargs: Mapping[str, Any] | None = None,
        n_iter: int | None = None,
        pre_dispatch: int | str | None = "2*n_jobs",
    ) -> None:
        super().__init__(
            estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.param_distributions = param_distributions
        self.early_stopping = early_stopping
        self.n_trials = n_trials
        self.random_state = random_state
        self.local_dir = local_dir
        self.name = name
        self.max_iters = max_iters
        self.search_optimization = search_optimization
        self.use_gpu = use_gpu
        self.loggers = loggers
        self.pipeline_auto_early_stop = pipeline_auto_early_stop
        self.stopper = stopper
        self.time_budget_s = time_budget_s
        self.sk_n_jobs = sk_n_jobs
        self.mode = mode
        self.search_kwargs = search_kwargs
        self.n_iter = n_iter

    def _early_stopping_asked(self) -> Any:
        # BOHB has a scheduler of its own, for estimators that are trained by portions.
        is_bohb = str(self.search_optimization).lower() == BOHB
        if is_bohb and (self.early_stopping is True or (self.early_stopping is None and self.max_iters != 1)):
            return "HyperBandForBOHB"
        return self.early_stopping

    def _search(self) -> Search:
        if self.n_iter is not None and self.n_trials not in (N_TRIALS, self.n_iter):
            raise ConfigError(
                f"n_trials={self.n_trials} and n_iter={self.n_iter} are two names of one number: give one"
            )
        return search_of(
            self.search_optimization,
            self.param_distributions,
            self.n_trials if self.n_iter is None else self.n_iter,
            self.random_state,
            self.search_kwargs,
        )

    def _searched(self) -> set[str]:
        return {name for each in dictionaries(self.param_distributions) for name in each}
