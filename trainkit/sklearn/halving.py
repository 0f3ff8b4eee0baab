"""The two halving searches: scikit-learn's algorithm, with each round as an experiment of the tuner."""

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
    """Common code of both halving searches.

    Unlike the searches of scikit-learn, these searches may end early.
    """

    def _in_rounds(self, *args: Any) -> Any:
        for name in _KNOWN_AT_THE_END:  # the attributes belong to an earlier fit
            self.__dict__.pop(name, None)
        found = super()._in_rounds(*args)
        if not hasattr(self, "n_iterations_"):  # the search ended early
            self.n_iterations_ = len(self.n_resources_)
        return found

    def _second_fit(self, stopping: Any) -> str:
        words = "a second fit evaluates the previous rounds again"
        if self.random_state is None:
            return f"{words}, and this round too, with new candidates, because random_state is not set"
        return f"{words}, and the missing candidates of this round"


class TuneHalvingGridSearchCV(HalvingGridSearchCV, _Halving):  # type: ignore[misc]
    """scikit-learn's `HalvingGridSearchCV`, with its candidates run as trials of the tuner.

    In the first round, all candidates are evaluated with few resources, by default few samples. The best
    third is then evaluated with three times as many resources, and so on. scikit-learn's own code decides
    which candidates survive, and computes their scores and `cv_results_`. Each round is a separate
    experiment; `analysis_` belongs to the last round.

    Args:
        estimator, param_grid: see `TuneGridSearchCV`.
        factor: one of `factor` candidates enters the next round, with `factor` times the resources.
        resource: "n_samples", or an integer parameter of the estimator, such as "n_estimators".
        max_resources: maximum amount of the resource for a candidate in a round; "auto": all samples.
        min_resources: amount of the resource for each candidate in the first round. "exhaust" chooses the
            amount so that the last round has `max_resources`; "smallest" means scikit-learn's smallest
            sensible amount.
        aggressive_elimination: True repeats the first round until so few candidates are left that the last
            round has fewer than `factor` candidates.
        cv: number of folds, or a splitter that returns the same folds at every call.
        scoring: a single scorer.
        refit, error_score, return_train_score, verbose: scikit-learn's arguments.
        random_state: seed for drawing samples.
        n_jobs: number of processes that fit, in joblib's notation; None: all CPUs.
        local_dir, name, use_gpu, loggers, sk_n_jobs: see `TuneGridSearchCV`.
        time_budget_s: seconds, or a timedelta, for all rounds together. Candidates that are incomplete at the
            end of the budget are left out. The best candidate comes from the last round that has a complete
            candidate.

    Attributes:
        cv_results_: a row for each candidate of each round, with `iter` and `n_resources`.
        n_resources_, n_candidates_: resources of each candidate, and number of candidates, for each round.
        n_remaining_candidates_, n_iterations_, n_required_iterations_, n_possible_iterations_,
            min_resources_, max_resources_: scikit-learn's attributes. If the budget or Ctrl-C ended the
            search early, n_iterations_ is the number of started rounds, and n_remaining_candidates_,
            n_required_iterations_ and n_possible_iterations_ are missing.
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
    """scikit-learn's `HalvingRandomSearchCV`, with its candidates run as trials of the tuner.

    Args:
        estimator: the estimator to tune.
        param_distributions: lists of values, or distributions with `rvs`, by parameter name; or a list of
            such dictionaries.
        n_candidates: number of candidates in the first round. "exhaust" chooses the number so that the last
            round has `max_resources`.
        factor, resource, max_resources, min_resources, aggressive_elimination, cv, scoring, refit,
            error_score, return_train_score, n_jobs, verbose, local_dir, name, use_gpu, loggers,
            time_budget_s, sk_n_jobs: see `TuneHalvingGridSearchCV`.
        random_state: seed for drawing candidates and samples.
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
