"""`TuneGridSearchCV`: every combination of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sklearn.model_selection import ParameterGrid

from trainkit.sklearn.base import TuneBaseSearchCV
from trainkit.sklearn.candidates import CandidateList, Search
from trainkit.tune.domains import GridSearch


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
        error_score: Any = "raise",
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
        self.param_grid = param_grid
        self.early_stopping = early_stopping
        self.local_dir = local_dir
        self.name = name
        self.max_iters = max_iters
        self.use_gpu = use_gpu
        self.loggers = loggers
        self.pipeline_auto_early_stop = pipeline_auto_early_stop
        self.stopper = stopper
        self.time_budget_s = time_budget_s
        self.sk_n_jobs = sk_n_jobs
        self.mode = mode

    def _search(self) -> Search:
        return Search(CandidateList(list(_grid_of(self.param_grid))))

    def _searched(self) -> set[str]:
        return {name for parameters in _grid_of(self.param_grid).param_grid for name in parameters}


def _grid_of(param_grid: Any) -> ParameterGrid:
    """The grid as scikit-learn has it; `tune.grid_search([...])` is one more way to write a list."""
    if isinstance(param_grid, Mapping):
        return ParameterGrid(_listed(param_grid))
    return ParameterGrid([_listed(each) if isinstance(each, Mapping) else each for each in param_grid])


def _listed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(values.values) if isinstance(values, GridSearch) else values
        for name, values in parameters.items()
    }
