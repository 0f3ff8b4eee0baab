"""Early stopping of candidates: a scheduler, and the portions of training that candidates report to it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from trainkit.errors import ConfigError
from trainkit.sklearn.incremental import COUNTED_BY, DECISIVE, end_of, to_report
from trainkit.sklearn.incremental_fit import Portions
from trainkit.tune.core.checks import is_whole
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.schedulers import SCHEDULERS, create_scheduler
from trainkit.tune.schedulers.async_hyperband import ASHAScheduler
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.schedulers.halving import rung_levels

REDUCTION = 4
"""ASHA's reduction factor with `early_stopping=True`: one of 4 candidates at a rung is promoted."""


@dataclass(frozen=True)
class EarlyStopping:
    """Early stopping of a search whose candidates are trained in portions.

    Attributes:
        scheduler: scheduler that stops candidates.
        portions: portions into which a candidate's training is divided.
    """

    scheduler: TrialScheduler
    portions: Portions

    def require_able(self, estimator: Any, searched: Collection[str]) -> None:
        """Check, before anything runs, that the estimator can be trained in portions.

        Args:
            estimator: the estimator with the parameters that all candidates share.
            searched: names of the parameters that candidates change.

        Raises:
            ConfigError: the estimator can't be trained in portions, whatever parameters the candidates have.
        """
        mutated = getattr(self.scheduler.deciding, "hyperparam_mutations", None) or {}
        names = {*searched, *mutated}
        if self.portions.of_samples or _decides(estimator, names, last_step=self.portions.last_step):
            return  # if candidates change the estimator, each candidate's trial checks its own estimator
        self.portions.begin(clone(estimator), searched=names)

    def require_divisible(self, splits: Iterable[tuple[Any, Any]], classes: int) -> None:
        """Check that all folds have enough training samples, where each portion is a fit on more samples.

        Args:
            splits: training and test samples of each fold.
            classes: number of classes of a classifier; 1 for other estimators.

        Raises:
            ConfigError: the first portion would have no sample, or would lack a class.
        """
        fewest, most = min(len(train) for train, _ in splits), self.portions.reports[-1]
        if self.portions.of_samples and end_of(self.portions.reports[0], fewest, most) < classes:
            of_all = f" of all {classes} classes" if classes > 1 else ""
            raise ConfigError(
                f"resource='n_samples': the first of max_iters={most} portions has no sample{of_all}, as "
                f"a fold has {fewest} training samples: set max_iters to {max(fewest // classes, 1)} or less"
            )

    def refitted(
        self,
        estimator: Any,
        history: Iterable[tuple[Mapping[str, Any], int]],
        X: Any,
        y: Any,
        params: Mapping[str, Any],
    ) -> Any:
        """Return a clone of the estimator, trained on all data in the same portions as a candidate.

        If each portion is a fit on more samples, the clone is fitted only once, on all samples.

        Args:
            estimator: the estimator to clone.
            history: pairs of parameters and the number of portions trained with these parameters, in order.
            X: samples for the estimator's `fit`.
            y: labels; None if the estimator learns without labels.
            params: further arguments of `fit`.
        """
        trained = [(clone(dict(parameters), safe=False), portions) for parameters, portions in history]
        if not any(portions for _, portions in trained):
            raise ConfigError("no candidate was trained, so none can be refitted: set refit=False")
        whole = clone(estimator)
        if self.portions.of_samples:
            for parameters, _ in trained:
                whole.set_params(**parameters)
            return whole.fit(X, *(() if y is None else (y,)), **params)
        first, _ = trained[0]
        piecewise = self.portions.begin(whole.set_params(**first), labels=y)
        for place, (parameters, portions) in enumerate(trained):
            if place:
                piecewise.change(parameters)
            until = piecewise.done + portions
            while piecewise.done < until:
                step = min(to_report(self.portions.reports, piecewise.done), until - piecewise.done)
                piecewise.advance(lambda: (X, y, dict(params)), step)
        return piecewise.estimator


def early_stopping_of(
    early_stopping: Any,
    max_iters: Any,
    *,
    metric: str | None,
    mode: str,
    last_step: bool,
    searched: Collection[str] = (),
    watched: bool = False,
    of_samples: bool = False,
) -> EarlyStopping | None:
    """Return the early stopping for these arguments of a search; None if candidates are fitted completely.

    Args:
        early_stopping: None or False means no early stopping. True means ASHA with promotion, which trains
            one candidate to the end. The argument may also be a scheduler or the name of a scheduler.
        max_iters: number of portions of a complete training.
        metric: metric that compares candidates; None if the metric is unknown and not needed.
        mode: "max" or "min".
        last_step: True if only the last step of a pipeline is trained in portions.
        searched: names of the parameters that differ between candidates.
        watched: True if a stopper, a time budget or a callback needs a report of each portion. If `watched`
            is False and early_stopping=True, candidates report only at rungs and after the last portion.
        of_samples: True if each portion is a new fit on more samples.

    Raises:
        ConfigError: an argument has an impossible value, or contradicts another argument.
    """
    if not is_whole(max_iters) or max_iters < 1:
        raise ConfigError(f"max_iters must be a positive integer, not {max_iters!r}")
    if early_stopping is None or early_stopping is False:
        if max_iters > 1:
            warnings.warn(
                f"max_iters={max_iters} has no effect without early_stopping: every candidate is "
                "fitted completely. Set early_stopping=True, or leave max_iters out",
                stacklevel=5,
            )
        if of_samples:
            raise ConfigError(
                "resource='n_samples' has no effect without early_stopping: every candidate is "
                "fitted completely. Set early_stopping=True and max_iters, or leave resource out"
            )
        return None
    if max_iters == 1:
        warnings.warn(
            "early_stopping with max_iters=1 stops no candidate, because each candidate reports "
            "once: set max_iters to the number of portions of a complete training, such as 10, or "
            "leave early_stopping out",
            stacklevel=5,
        )
    scheduler = _scheduler_of(early_stopping, int(max_iters), searched)
    _require_agreement(scheduler, int(max_iters), metric, mode)
    at_rungs = early_stopping is True and not watched
    reports = rung_levels(1, max_iters, REDUCTION) if at_rungs else range(1, int(max_iters) + 1)
    return EarlyStopping(scheduler, Portions(tuple(map(int, reports)), last_step, of_samples))


def _scheduler_of(early_stopping: Any, max_iters: int, searched: Collection[str]) -> TrialScheduler:
    if isinstance(early_stopping, TrialScheduler):
        return early_stopping
    if early_stopping is not True and not isinstance(early_stopping, str):
        raise ConfigError(
            "early_stopping must be True, the name of a scheduler such as 'ASHAScheduler', a "
            f"scheduler of trainkit.tune.schedulers, or None, not {early_stopping!r}"
        )
    if early_stopping is True:
        return ASHAScheduler(
            COUNTED_BY, max_t=max_iters, reduction_factor=REDUCTION, type="promotion", finish=True
        )
    cls = SCHEDULERS.get(early_stopping, "early_stopping")
    try:
        return create_scheduler(early_stopping, time_attr=COUNTED_BY, max_t=max_iters, grace_period=1)
    except ConfigError as error:
        raise ConfigError(
            f"early_stopping={early_stopping!r}: this scheduler cannot be made without arguments. "
            f"{_instead(cls.__name__, max_iters, searched)} ({error})"
        ) from error


def _instead(name: str, max_iters: int, searched: Collection[str]) -> str:
    """Return advice for a user whose named scheduler needs further arguments."""
    parameter = min(searched, default="alpha")
    changes = {
        "PopulationBasedTraining": f"hyperparam_mutations={{{parameter!r}: tune.loguniform(1e-4, 1.0)}}",
        "PB2": f"hyperparam_bounds={{{parameter!r}: [1e-4, 1.0]}}",
    }
    if name not in changes:
        return f"Pass an object of trainkit.tune.schedulers.{name}"
    every = max(max_iters // 5, 1)
    return (
        "Pass an object with the parameters that may change during training and their values, such "
        f"as trainkit.tune.schedulers.{name}(time_attr={COUNTED_BY!r}, perturbation_interval={every}, "
        f"{changes[name]})"
    )


def _require_agreement(scheduler: TrialScheduler, max_iters: int, metric: str | None, mode: str) -> None:
    """Raise ConfigError if the scheduler never decides, or needs a value that candidates don't report."""
    deciding, name = scheduler.deciding, type(scheduler.deciding).__name__
    require_goal(deciding, name, metric, mode)
    if deciding.several:
        raise ConfigError(
            f"{name} compares several metrics, but a search compares only the metric named by refit: use a "
            "different scheduler, such as early_stopping=True"
        )
    if deciding.time_attr not in AUTOMATIC:
        raise ConfigError(
            f"{name}(time_attr={deciding.time_attr!r}) needs a count that candidates don't report: "
            f"use time_attr={COUNTED_BY!r}, which counts from 1 to max_iters={max_iters}"
        )
    first = deciding.first_judgement
    first = getattr(deciding, "grace_period", None) if first is None else first
    if deciding.time_attr == COUNTED_BY and first is not None and first > max_iters:
        raise ConfigError(
            f"{name} makes no decision before {COUNTED_BY}={first:g}, but max_iters={max_iters} ends "
            "every candidate earlier: raise max_iters, or let the scheduler decide earlier"
        )


def require_goal(part: Any, name: str, metric: str | None, mode: str) -> None:
    """Raise ConfigError if a scheduler or searcher has a different metric or mode than the search.

    Args:
        part: scheduler or searcher. If its `metric` and `mode` are None, it accepts the metric and mode of
            the search.
        name: class name of `part`.
        metric: metric of the search.
        mode: mode of the search.

    Raises:
        ConfigError: the metrics or modes differ.
    """
    for word, own, given in (("metric", part.metric, metric), ("mode", part.mode, mode)):
        if own is not None and own != given:
            raise ConfigError(
                f"{name}({word}={own!r}) contradicts the search, whose {word} is {given!r}: leave {word} out"
            )


def _decides(estimator: Any, names: Collection[str], *, last_step: bool) -> bool:
    """Return True if candidates change the estimator itself, or parameters that decide how to train it."""
    decisive = set(DECISIVE)
    if isinstance(estimator, Pipeline) and last_step:
        last = estimator.steps[-1][0]
        decisive = {"steps", last, *(f"{last}__{name}" for name in DECISIVE)}
    return not decisive.isdisjoint(names)
