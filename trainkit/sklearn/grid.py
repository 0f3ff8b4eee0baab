"""`TuneGridSearchCV`: every combination of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sklearn.model_selection import ParameterGrid

from trainkit.sklearn.base import TuneBaseSearchCV
from trainkit.sklearn.candidates import CandidateList, Search
from trainkit.tune.domains import GridSearch


class TuneGridSearchCV(TuneBaseSearchCV):
    """scikit-learn's `GridSearchCV`, whose candidates are trials of a tuner."""

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
    ) -> None:
        super().__init__(
            estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
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
    if isinstance(param_grid, Iterable):
        return ParameterGrid([_listed(each) if isinstance(each, Mapping) else each for each in param_grid])
    return ParameterGrid(param_grid)


def _listed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(values.values) if isinstance(values, GridSearch) else values
        for name, values in parameters.items()
    }
