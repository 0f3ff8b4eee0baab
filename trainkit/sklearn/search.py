"""The two searches: `TuneGridSearchCV` over a grid and `TuneSearchCV` over distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar

from sklearn.model_selection import ParameterGrid
from sklearn.utils._param_validation import Interval

from trainkit.errors import ConfigError
from trainkit.sklearn.base import TuneBaseSearchCV
from trainkit.sklearn.candidates import BOHB, CandidateList, CandidateSource, search_of
from trainkit.sklearn.spaces import dictionaries
from trainkit.tune.space.domains import GridSearch


class TuneGridSearchCV(TuneBaseSearchCV):
    """scikit-learn's `GridSearchCV`, whose candidates are trials of a tuner: same results, more ways to run.

    A search is an estimator. Once fitted it predicts as the best candidate does, fitted on all data.

    Args:
        estimator: what is searched for; not changed, as `fit` works on clones.
        param_grid: lists of values by parameter name, of which every combination is a candidate, such as
            {"C": [1, 10], "kernel": ["linear", "rbf"]}; or a list of such dictionaries, whose combinations
            come one after the other. Values may be any objects, estimators too; {} is one candidate, the
            estimator as it is.
        early_stopping: True trains those further that are ahead, by ASHA; or the name of a scheduler, such as
            "MedianStoppingRule", or one of `trainkit.tune.schedulers`. For estimators that can be trained by
            portions: see `max_iters`. None: every candidate is fitted as `GridSearchCV` fits it.
        scoring: how the estimator's predictions are judged: a name, a scorer (estimator, X, y) -> number, or
            one that returns numbers by name; a list of names, or scorers by name, for several; None: the
            estimator's own `score`.
        n_jobs: processes that fit, counted as joblib counts: -1 and None for as many as there are CPUs. At
            scikit-learn's own searches None is 1.
        cv: folds; or a splitter, or an iterable of (train, test) indices. None is 5. With a number, folds
            keep the share of each class for classifiers.
        refit: True fits the best candidate once more, on all data. With several scorers the name of the one
            that decides. A function (cv_results_) -> index decides by itself. False: it is not fitted.
        verbose: 1: what will be done, and the console of the tuner; 2: also each fold, as it is done; 3: its
            scores; 10: its start too.
        error_score: of a fold that could not be fitted; "raise": what the estimator raised leaves `fit`.
        return_train_score: True adds the scores on the training samples to `cv_results_`; they take time.
        local_dir: folder in which the experiment is kept, or an address as `RunConfig.storage_path` may be;
            None: it is kept in memory only, or in $TRAINKIT_RESULTS_DIR where `name` is given.
        name: of the experiment's folder; the next search of this name on the same data takes over what this
            one has evaluated.
        max_iters: with `early_stopping`, portions that the training of a candidate is divided into, at most;
            a scheduler may end it after each, and True after the first, the 4th, the 16th ... It is trained
            by more only if it takes over, by population based training, the model of another that was less
            far.
        use_gpu: True gives each candidate a GPU.
        loggers: who is told of every result: of "tensorboard", "csv", "mlflow", "json", "wandb", callbacks
            or their classes.
        pipeline_auto_early_stop: True: with `early_stopping`, it is the last step of a pipeline that is
            trained by portions, and the steps before are fitted once.
        stopper: a `tune.Stopper`, or another rule of `RunConfig.stop`, that ends candidates or the search.
        time_budget_s: seconds, or a timedelta, for all candidates together. Those that are not complete by
            then are left out of `cv_results_`, and a warning says how many.
        sk_n_jobs: CPUs of one candidate, for estimators that have an `n_jobs` of their own; -1: all.
        mode: "max", or "min" where less is better by `scoring`: it turns the ranks of the scorer that
            decides, the best candidate, and what `early_stopping` ends. None is "max".
        pre_dispatch: as `GridSearchCV` has it; without effect, as X and y are shared by all workers, and
            what is fitted is sent when there is a worker for it.
        resource: "n_samples": with `early_stopping`, for any estimator, a portion is a fit anew on more of
            each fold's training samples, which the classes have equal shares in. None: it is trained further.

    Attributes:
        cv_results_: of each candidate, by column: its parameters as `param_<name>`, masked arrays, and
            `params`, dictionaries; `split<k>_test_<scorer>`, `mean_...`, `std_...` and `rank_...`, and the
            seconds of fitting and scoring. Keys, order and types are those of scikit-learn's, where a scorer
            without a name is called "score". With `early_stopping` also `training_iteration`, the portions
            that a candidate was trained by; for `max_iters` and population based training see there.
        best_index_: row of the best candidate; the first of equals.
        best_params_: its parameters, as in the grid.
        best_score_: its mean score; not there where `refit` is a function.
        best_estimator_: fitted with them on all data; not there without `refit`.
        refit_time_: seconds that this took.
        scorer_: the scorer, or scorers by name.
        multimetric_: whether they are several, by name.
        n_splits_: folds.
        classes_, n_features_in_, feature_names_in_: of `best_estimator_`, where it has them.

    Example:
        >>> search = TuneGridSearchCV(SVC(), {"C": [1, 10], "kernel": ["linear", "rbf"]})
        >>> search.fit(X, y).best_params_
        {'C': 1, 'kernel': 'linear'}
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TuneBaseSearchCV._parameter_constraints,
        "param_grid": [dict, list],
    }

    _space_argument = "param_grid"

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        early_stopping: Any = None,
        scoring: Any = None,
        n_jobs: int | None = None,
        cv: Any = 5,
        refit: Any = True,
        verbose: int = 0,
        error_score: Any = math.nan,
        return_train_score: bool = False,
        local_dir: str | None = None,
        name: str | None = None,
        max_iters: int = 1,
        use_gpu: bool = False,
        loggers: Any = None,
        pipeline_auto_early_stop: bool = True,
        stopper: Any = None,
        time_budget_s: float | None = None,
        sk_n_jobs: int | None = None,
        mode: str | None = None,
        pre_dispatch: int | str | None = "2*n_jobs",
        resource: str | None = None,
    ) -> None:
        self._keep(locals())

    def _search(self) -> CandidateSource:
        return CandidateSource(CandidateList(list(_grid_of(self.param_grid))))

    def _searched(self) -> set[str]:
        return {name for parameters in _grid_of(self.param_grid).param_grid for name in parameters}


def _grid_of(param_grid: Any) -> ParameterGrid:
    """Return scikit-learn's grid; `tune.grid_search([...])` may stand for a list."""
    if isinstance(param_grid, Mapping):
        return ParameterGrid(_listed(param_grid))
    return ParameterGrid([_listed(each) if isinstance(each, Mapping) else each for each in param_grid])


def _listed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(values.values) if isinstance(values, GridSearch) else values
        for name, values in parameters.items()
    }


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
        stopper: a stopper of `trainkit.tune`, or what else RunConfig(stop=...) takes; it sees reports in
            which all folds have a score.
        time_budget_s: seconds, or a timedelta; candidates that are not complete then are left out.
        sk_n_jobs: CPUs, and threads, of a candidate; None: 1.
        mode: "min" where less is better; None: "max".
        search_kwargs: further arguments of the searcher that is named.
        n_iter: scikit-learn's name of `n_trials`.
        pre_dispatch, resource: as for `TuneGridSearchCV`.
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
        resource: str | None = None,
    ) -> None:
        self._keep(locals())

    def _early_stopping_asked(self) -> Any:
        # BOHB has a scheduler of its own, for estimators that are trained by portions.
        is_bohb = str(self.search_optimization).lower() == BOHB
        if is_bohb and (self.early_stopping is True or (self.early_stopping is None and self.max_iters != 1)):
            return "HyperBandForBOHB"
        return self.early_stopping

    def _search(self) -> CandidateSource:
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
