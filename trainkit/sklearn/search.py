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
from trainkit.sklearn.candidates import BOHB, CandidateList, CandidateSource, dictionaries, search_of
from trainkit.tune.space.domains import GridSearch


class TuneGridSearchCV(TuneBaseSearchCV):
    """scikit-learn's `GridSearchCV`, with equal results, but with candidates run as trials of the tuner.

    A search is an estimator. A fitted search predicts with the best candidate, fitted on all data.

    Args:
        estimator: the estimator to tune; it is not changed, because `fit` works on clones.
        param_grid: lists of values by parameter name, such as {"C": [1, 10], "kernel": ["linear", "rbf"]}.
            Every combination is a candidate. In a list of such dictionaries, each dictionary adds its
            combinations. Values may be any objects, even estimators; {} is one candidate, the unchanged
            estimator.
        early_stopping: True trains only leading candidates further, by ASHA. `early_stopping` may also be a
            scheduler of `trainkit.tune.schedulers`, or a scheduler's name, such as "MedianStoppingRule". The
            estimator must allow training in portions (see `max_iters`). None: every candidate is fitted
            completely, like in `GridSearchCV`.
        scoring: scorer: a name, a function (estimator, X, y) -> number, or a function that returns a
            dictionary of numbers. For several scores, give a list of names, or a dictionary of scorers. None:
            the estimator's own `score`.
        n_jobs: number of processes that fit, in joblib's notation: -1 and None use all CPUs. In
            scikit-learn's own searches None means 1.
        cv: number of folds, a splitter, or an iterable of (train, test) indices. None means 5. If `cv` is a
            number, the folds of a classifier keep the proportions of the classes.
        refit: True fits the best candidate again on all data. With several scorers, `refit` is the name of
            the scorer that selects the best candidate. A function (cv_results_) -> index selects the best
            candidate. False: no fit on all data.
        verbose: 1 prints the number of fits and the tuner's console. 2 prints each finished fold instead of
            the console, 3 also the fold's scores, and 10 also the fold's start. With `early_stopping`, 2 and
            3 print more lines of the console.
        error_score: score of a fold that could not be fitted; "raise": `fit` raises the estimator's error.
        return_train_score: True adds the scores on the training samples to `cv_results_`, which takes time.
        local_dir: parent folder of the experiment's folder, or an address as in `RunConfig.storage_path`.
            None: the experiment is kept in memory only, or in $TRAINKIT_RESULTS_DIR if `name` is given.
        name: name of the experiment's folder. The next search with this name on the same data reuses the
            evaluations of this search.
        max_iters: with `early_stopping`, maximum number of portions of a candidate's training. A scheduler
            may end the training after each portion; early_stopping=True may end the training after portion 1,
            4, 16 ... A candidate trains for more portions than `max_iters` only if population based training
            gives it the model of a candidate that had trained less.
        use_gpu: True gives each candidate a GPU.
        loggers: list of loggers that receive every result: "tensorboard", "csv", "mlflow", "json", "wandb",
            callbacks or callback classes.
        pipeline_auto_early_stop: True trains only the last step of a pipeline in portions, with
            `early_stopping`, and fits the previous steps once.
        stopper: a `tune.Stopper`, or another rule of `RunConfig.stop`, that ends candidates or the search.
        time_budget_s: seconds, or a timedelta, for all candidates together. When the time is over, incomplete
            candidates are left out of `cv_results_`, and a warning states the number of these candidates.
        sk_n_jobs: CPUs of one candidate, for estimators with their own `n_jobs`; -1: all.
        mode: "min" if lower scores are better. With "min", the ranks of the deciding scorer, the choice of
            the best candidate and early stopping prefer low scores. None means "max".
        pre_dispatch: argument of `GridSearchCV` without effect, because all workers share X and y, and a fit
            is only sent to a free worker.
        resource: "n_samples" allows `early_stopping` for any estimator: each portion is a new fit on more of
            a fold's training samples, in which the classes keep their proportions. None: each portion
            continues the training.

    Attributes:
        cv_results_: dictionary of columns with a value for each candidate. `param_<name>` (masked arrays) and
            `params` (dictionaries) contain the parameters. `split<k>_test_<scorer>`, `mean_...`, `std_...`
            and `rank_...` contain the scores. Further columns contain the seconds of fitting and scoring.
            Keys, order and types are the same as in scikit-learn, which calls a scorer without a name
            "score". With `early_stopping`, `training_iteration` is the number of portions that trained the
            candidate, which is larger than `max_iters` only in the case that `max_iters` describes.
        best_index_: row of the best candidate; of equal candidates, the first row.
        best_params_: parameters of the best candidate.
        best_score_: mean score of the best candidate; missing if `refit` is a function.
        best_estimator_: the best candidate, fitted on all data; missing without `refit`.
        refit_time_: seconds of the fit on all data.
        scorer_: the scorer, or scorers by name.
        multimetric_: True if the scorers have names.
        n_splits_: number of folds.
        classes_, n_features_in_, feature_names_in_: attributes of `best_estimator_`, if it has them.

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
    """Return scikit-learn's grid; `tune.grid_search([...])` may replace a list."""
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
    """scikit-learn's `RandomizedSearchCV`, with its candidates run as trials of the tuner.

    With search_optimization="random" and an equal `random_state`, the candidates equal the candidates of
    `RandomizedSearchCV`. Names, order and defaults of the arguments are the same as in tune-sklearn 0.5.

    Args:
        estimator: the estimator to tune.
        param_distributions: possible values by parameter name. Values may be a list of any objects; a range
            `(low, high)` or `(low, high, "log-uniform")`; a frozen distribution of scipy.stats; a domain such
            as `tune.loguniform(1e-4, 1)`, inside `tune.when` if it depends on other parameters; or a
            distribution of Optuna. A range between two whole numbers has only whole numbers, including both
            ends. The random search also accepts a list of such dictionaries, and any object with `rvs`. The
            hyperopt search also accepts hyperopt's expressions.
        early_stopping: True, the name of a scheduler, or a scheduler: candidates are trained in portions, and
            bad candidates are stopped. None: all candidates are fitted completely. With BOHB, HyperBand for
            BOHB is the scheduler if this argument is True, or if it is None and `max_iters` is not 1.
        n_trials: number of candidates; fewer if the space or the searcher has no more.
        scoring, refit, cv, error_score, return_train_score: scikit-learn's arguments.
        n_jobs: number of processes that fit, in joblib's notation; None: all CPUs.
        verbose: 0 prints nothing; for higher numbers see `TuneGridSearchCV`.
        random_state: seed of candidates, searcher and trials: a number, or a `RandomState`, which each search
            advances. None: NumPy's global `RandomState`.
        local_dir: parent folder of the experiment's folder; None: the experiment is kept in memory, unless
            `name` or `loggers` is given.
        name: name of the experiment's folder. If the folder exists, the name is name_2, name_3 ...
        max_iters: with early stopping, maximum number of reports of a candidate. A candidate reports more
            often only if population based training gives it the model of a candidate that had trained less.
        search_optimization: "random", "auto", "bayesian", "bohb", "hyperopt", "optuna", or a searcher.
        use_gpu: True gives each candidate a GPU.
        loggers: a list of "tensorboard", "csv", "mlflow", "json", "wandb", callbacks or callback classes. An
            experiment in a folder always has CSV and JSON files.
        pipeline_auto_early_stop: True: only the last step of a pipeline is trained in portions.
        stopper: a stopper of `trainkit.tune`, or a different value of RunConfig(stop=...). The stopper
            receives only reports in which all folds have a score.
        time_budget_s: seconds, or a timedelta. When the time is over, incomplete candidates are left out.
        sk_n_jobs: CPUs and threads of a candidate; None: 1.
        mode: "min" if lower scores are better; None: "max".
        search_kwargs: further arguments of the searcher that `search_optimization` names.
        n_iter: scikit-learn's name for `n_trials`.
        pre_dispatch, resource: see `TuneGridSearchCV`.
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
        # If estimators are trained in portions, BOHB has its own scheduler.
        is_bohb = str(self.search_optimization).lower() == BOHB
        if is_bohb and (self.early_stopping is True or (self.early_stopping is None and self.max_iters != 1)):
            return "HyperBandForBOHB"
        return self.early_stopping

    def _search(self) -> CandidateSource:
        if self.n_iter is not None and self.n_trials not in (N_TRIALS, self.n_iter):
            raise ConfigError(
                f"n_trials={self.n_trials} and n_iter={self.n_iter} mean the same: give only one"
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
