"""The two searches that halve: scikit-learn's, whose rounds are experiments of a tuner."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from trainkit.sklearn.base import TuneBaseSearchCV
from trainkit.sklearn.internals import HalvingGridSearchCV, HalvingRandomSearchCV

_OURS = ("local_dir", "name", "use_gpu", "loggers", "time_budget_s", "sk_n_jobs")


_KNOWN_AT_THE_END = (
    "n_remaining_candidates_",
    "n_iterations_",
    "n_required_iterations_",
    "n_possible_iterations_",
)


class _Halving(TuneBaseSearchCV):
    """Common part of both searches beyond scikit-learn's: they may end early."""

    def _in_rounds(self, *args: Any) -> Any:
        for name in _KNOWN_AT_THE_END:  # an earlier fit's
            self.__dict__.pop(name, None)
        found = super()._in_rounds(*args)
        if not hasattr(self, "n_iterations_"):  # it was ended early
            self.n_iterations_ = len(self.n_resources_)
        return found

    def _second_fit(self, stopping: Any) -> str:
        words = "a second fit evaluates the rounds before this one again"
        if self.random_state is None:
            return f"{words}, and this one too: it draws anew, as there is no random_state"
        return f"{words}, and of this one what is missing"


class TuneHalvingGridSearchCV(HalvingGridSearchCV, _Halving):  # type: ignore[misc]
    """scikit-learn's `HalvingGridSearchCV`, whose candidates are trials of a tuner.

    All candidates are evaluated with few resources, by default samples; the best third of them with three
    times as many, and so on. Which candidates survive, their scores and `cv_results_` are scikit-learn's, as
    its own code decides. Each round is an experiment of its own; `analysis_` is of the last.

    Args:
        estimator, param_grid: as for `TuneGridSearchCV`.
        factor: candidates of which one goes on to the next round; resources grow by as much.
        resource: "n_samples", or a parameter of the estimator that is a whole number, such as "n_estimators".
        max_resources: of a candidate in a round; "auto": all samples.
        min_resources: of a candidate in the first round; "exhaust": so many that the last round has
            `max_resources`; "smallest": as few as make sense.
        aggressive_elimination: True repeats the first round until so few candidates are left that the last
            round has fewer than `factor`.
        cv: folds, or a splitter that gives the same folds each time.
        scoring: one scorer.
        refit, error_score, return_train_score, verbose: as scikit-learn means them.
        random_state: of the samples that are drawn.
        n_jobs: processes that fit, as joblib counts; None: all CPUs.
        local_dir, name, use_gpu, loggers, sk_n_jobs: as for `TuneGridSearchCV`.
        time_budget_s: seconds, or a timedelta, for all rounds together. What is complete then counts; the
            best is the best of the last round that has a complete candidate.

    Attributes:
        cv_results_: a row for each candidate of each round, with `iter` and `n_resources`.
        n_resources_, n_candidates_: of each round.
        n_remaining_candidates_, n_iterations_, n_required_iterations_, n_possible_iterations_,
            min_resources_, max_resources_: as scikit-learn means them. After a search that was ended early,
            by its budget or Ctrl-C, n_iterations_ is the number of rounds begun, and n_remaining_candidates_,
            n_required_iterations_ and n_possible_iterations_ are absent.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **HalvingGridSearchCV._parameter_constraints,
        **{name: TuneBaseSearchCV._parameter_constraints[name] for name in _OURS},
    }

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: int | str = "auto",
        min_resources: int | str = "exhaust",
        aggressive_elimination: bool = False,
        cv: Any = 5,
        scoring: Any = None,
        refit: bool = True,
        error_score: Any = math.nan,
        return_train_score: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        local_dir: str | None = None,
        name: str | None = None,
        use_gpu: bool = False,
        loggers: Any = None,
        time_budget_s: Any = None,
        sk_n_jobs: int | None = None,
    ) -> None:
        self._keep(locals())


class TuneHalvingRandomSearchCV(HalvingRandomSearchCV, _Halving):  # type: ignore[misc]
    """scikit-learn's `HalvingRandomSearchCV`, whose candidates are trials of a tuner.

    Args:
        estimator: to search the parameters of.
        param_distributions: lists of values, or distributions with `rvs`, by name; or several such spaces.
        n_candidates: of the first round; "exhaust": so many that the last round has `max_resources`.
        factor, resource, max_resources, min_resources, aggressive_elimination, cv, scoring, refit,
            error_score, return_train_score, n_jobs, verbose, local_dir, name, use_gpu, loggers,
            time_budget_s, sk_n_jobs: as for `TuneHalvingGridSearchCV`.
        random_state: of the candidates, and of the samples that are drawn.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **HalvingRandomSearchCV._parameter_constraints,
        **{name: TuneBaseSearchCV._parameter_constraints[name] for name in _OURS},
    }

    _space_argument = "param_distributions"

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_candidates: int | str = "exhaust",
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: int | str = "auto",
        min_resources: int | str = "smallest",
        aggressive_elimination: bool = False,
        cv: Any = 5,
        scoring: Any = None,
        refit: bool = True,
        error_score: Any = math.nan,
        return_train_score: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        local_dir: str | None = None,
        name: str | None = None,
        use_gpu: bool = False,
        loggers: Any = None,
        time_budget_s: Any = None,
        sk_n_jobs: int | None = None,
    ) -> None:
        self._keep(locals())
