"""`TuneSearchCV`: candidates drawn from distributions, at random or by what was learned so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval

from trainkit.errors import ConfigError
from trainkit.sklearn.base import TuneBaseSearchCV
from trainkit.sklearn.candidates import Search
from trainkit.sklearn.searchers import BOHB, search_of
from trainkit.sklearn.spaces import dictionaries

N_TRIALS = 10


class TuneSearchCV(TuneBaseSearchCV):
    """scikit-learn's `RandomizedSearchCV`, whose candidates are trials of a tuner.

    With search_optimization="random", of the same `random_state`, the candidates are `RandomizedSearchCV`'s.
    Names, order and defaults of the arguments are tune-sklearn 0.5's.

    Args:
        estimator: to search the parameters of.
        param_distributions: by name, what each parameter may be: a list of values, of any kind; a range
            `(low, high)` or `(low, high, "log-uniform")`, of whole numbers with both ends if both are whole;
            a frozen distribution of scipy.stats; a domain such as `tune.loguniform(1e-4, 1)`, with
            `tune.when` where it depends on others; a distribution of Optuna's. The random search also takes a
            list of such dictionaries, and anything with `rvs`; hyperopt's expressions its own search.
        early_stopping: True, the name of a scheduler, or a scheduler: candidates are trained by portions, and
            bad ones are stopped; None: all are fitted whole. With BOHB, HyperBand for BOHB is the one meant.
        n_trials: candidates; fewer where there are no more.
        scoring, refit, cv, error_score, return_train_score: as scikit-learn means them.
        n_jobs: processes that fit, as joblib counts; None: all CPUs.
        verbose: 0: silent; 1: what `RandomizedSearchCV` prints, and a table; 2 and 3: more.
        random_state: seed of candidates, searcher and trials: a number, or a `RandomState`, which goes on;
            None: NumPy's global one.
        local_dir: folder in which the experiment is kept; None: in memory, unless `name` or `loggers` is
            given.
        name: of the experiment's folder; where there is one already, name_2, name_3 ...
        max_iters: reports of a candidate at most, with early stopping; more for one that takes over, by
            population based training, the model of another that was less far.
        search_optimization: "random", "bayesian", "bohb", "hyperopt", "optuna", or a searcher.
        use_gpu: each candidate gets a GPU.
        loggers: of "tensorboard", "csv", "mlflow", "json" and "wandb", callbacks, or their classes. What is
            kept has CSV and JSON files anyway.
        pipeline_auto_early_stop: of a pipeline, the last step is trained by portions.
        stopper: of `trainkit.tune.stopper`, or what else RunConfig(stop=...) takes; it sees reports in which
            all folds have a score.
        time_budget_s: seconds, or a timedelta; candidates that are not complete then are left out.
        sk_n_jobs: CPUs, and threads, of a candidate; None: 1.
        mode: "min" where less is better; None: "max".
        search_kwargs: further arguments of the searcher that is named.
        n_iter: scikit-learn's name of `n_trials`.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TuneBaseSearchCV._parameter_constraints,
        "param_distributions": [Mapping, list, tuple],
        "n_trials": [Interval(Integral, 1, None, closed="left")],
        "n_iter": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
        "search_optimization": "no_validation",
        "search_kwargs": [Mapping, None],
    }

    _space_argument = "param_distributions"

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
