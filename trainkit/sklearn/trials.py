"""Trials that evaluate candidates in worker processes."""

from __future__ import annotations

import functools
import math
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from trainkit.clock import SYSTEM
from trainkit.errors import message_of
from trainkit.runtime import serialize, session
from trainkit.sklearn import internals
from trainkit.sklearn.context import SklearnContext
from trainkit.sklearn.incremental import COUNTED_BY, descends, end_of, growing_order, portions_at, to_report
from trainkit.sklearn.incremental_fit import Data, IncrementalFit, Portions, RepeatedFit
from trainkit.sklearn.internals import FoldCallbacks
from trainkit.sklearn.outcomes import CANDIDATE_KEY, Outcome, candidate_key, digest, outcomes_of, report_of
from trainkit.sklearn.shared_memory import FoldCopies, SharedCopies, fold_array
from trainkit.tune.core.seeds import trial_seed
from trainkit.tune.space.domains import same
from trainkit.tune.trial.actor import seed_generators
from trainkit.tune.trial.steps import SerializedTrainable
from trainkit.tune.trial.trainable import Trainable

REPORT_EVERY_S = 0.1
"""Seconds during which short folds are collected into one report, as each report costs a round trip."""

session.register("trainkit.sklearn.trials")


@dataclass(frozen=True)
class EvaluationTask:
    """Data and settings for evaluating all candidates.

    A task is sent to each worker once, with its arrays in shared memory.

    Attributes:
        estimator: unfitted estimator to clone.
        X, y: arguments of the search's `fit`, which can be indexed by sample; y may be None.
        splits: indices of the training and test samples of each fold.
        scorer: one scorer, several scorers as scikit-learn's multimetric scorer, or the user's callable.
        fit_params, score_params: parameters routed to the estimator and to the scorer.
        return_train_score, error_score, verbose: scikit-learn's arguments.
        context: context in which `fit` was called, applied around each fold.
        callbacks: scikit-learn's callbacks; None without callbacks.
        candidates: number of candidates; None if unknown.
        known: outcomes of candidates' first folds, from an interrupted search, by candidate key.
        digest: digest of the task without `known`, if the search is kept in a folder; otherwise ''.
        copies: copies of the folds' samples that workers share; None if each worker makes its own copies.
        decisive: metric that compares candidates; None if the scorers' names are unknown.
    """

    estimator: Any
    X: Any
    y: Any
    splits: Sequence[tuple[np.ndarray, np.ndarray]]
    scorer: Any
    fit_params: Mapping[str, Any]
    score_params: Mapping[str, Any]
    return_train_score: bool
    error_score: Any
    verbose: int
    context: SklearnContext
    callbacks: FoldCallbacks | None = None
    candidates: int | None = None
    known: Mapping[str, Sequence[Outcome]] = field(default_factory=dict)
    digest: str = ""
    copies: SharedCopies | None = None
    decisive: str | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The estimator's arrays must be writable, because all clones share the arrays of a `FrozenEstimator`.
        # X and y stay shared and read-only.
        self.__dict__.update(state, estimator=writable_copy(state["estimator"]))

    def known_outcomes(self, key: str) -> Sequence[Outcome]:
        """Return the outcomes of a candidate's first folds that are known from an earlier search."""
        return self.known.get(key, ())

    def in_context(self) -> AbstractContextManager[None]:
        """Return a context manager that applies the context in which `fit` was called."""
        return self.context.applied()

    def digested(self) -> str:
        """Return a digest of everything on which the outcomes depend."""
        data = self.X, self.y, self.splits, self.fit_params, self.score_params
        return digest((*data, self.estimator, self.scorer, self.return_train_score, self.error_score), "X, y")

    def failure(self, split: int, error: BaseException) -> Outcome:
        """Return the outcome of fold `split` after the death of its process."""
        # The times are unknown, because the process has died.
        times = {"fit_time": math.nan, "score_time": math.nan}
        counts = {"n_test_samples": len(self.splits[split][1])}
        why = {"fit_error": f"{type(error).__name__}: {message_of(error)}"}
        return self.error_scores() | times | counts | why

    def error_scores(self) -> Outcome:
        """Return the scores of a fold that could not be fitted."""
        score = self.error_score
        if isinstance(self.scorer, internals.MultimetricScorer):
            score = dict.fromkeys(self.scorer._scorers, score)
        kinds = ("test_scores", "train_scores") if self.return_train_score else ("test_scores",)
        return dict.fromkeys(kinds, score)

    def outcome(self, parameters: Mapping[str, Any], split: int, candidate: int) -> Outcome:
        """Fit a clone with `parameters` on a fold's training samples; score the clone on the test samples.

        Args:
            parameters: parameters of the candidate; copied, because they may be estimators.
            split: number of the fold, from 0.
            candidate: number of the candidate, from 0.

        Raises:
            Exception: the estimator's error, if `error_score` is "raise"; otherwise the outcome contains the
                error.
        """
        with self.context.applied(), self.fold_array(split) as X:
            return self._scored(X, parameters, split, candidate)

    def fold_array(self, split: int, *, views: bool = True) -> AbstractContextManager[Any]:
        """Yield X as an array that returns the samples of fold `split`, without a copy if possible.

        Args:
            split: number of the fold, from 0.
            views: True allows views, which must only be used inside the block.
        """
        samples = self.splits[split]
        shared = None if self.copies is None else FoldCopies(self.copies, split, samples)
        return fold_array(self.X, *samples, views=views, shared=shared)

    def _scored(self, X: Any, parameters: Mapping[str, Any], split: int, candidate: int) -> Outcome:
        train, test = self.splits[split]
        folds = len(self.splits)
        outcome: Outcome = internals.fit_and_score(
            with_own_threads(clone(self.estimator)),
            X,
            self.y,
            scorer=self.scorer,
            train=train,
            test=test,
            verbose=self.verbose,
            parameters={name: with_own_threads(value) for name, value in parameters.items()},
            fit_params=self.fit_params,
            score_params=self.score_params,
            return_train_score=self.return_train_score,
            return_n_test_samples=True,
            return_times=True,
            split_progress=(split, folds),
            candidate_progress=None if self.candidates is None else (candidate, self.candidates),
            error_score=self.error_score,
            **({} if self.callbacks is None else self.callbacks.arguments(candidate, split, folds)),
        )
        return outcome


_HEEDLESS = {
    "lightgbm": ("LGBMModel", ("n_jobs", "num_threads", "num_thread", "nthread", "nthreads")),
    "catboost": ("CatBoost", ("thread_count",)),
}
"""Packages that ignore `OMP_NUM_THREADS`, with a base class and the names of the argument for threads."""


def with_own_threads(value: Any) -> Any:
    """Return an estimator whose parts use this process's number of threads, unless the user chose a number.

    Args:
        value: an estimator, which is not changed; other values are returned unchanged.
    """
    heedless = [package for package in _HEEDLESS if package in sys.modules]
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if not heedless or not threads.isdigit() or isinstance(value, type) or not hasattr(value, "get_params"):
        return value
    value = clone(value)
    for each in (value, *value.get_params(deep=True).values()):
        for package in heedless:
            base, names = _HEEDLESS[package]
            if descends(each, package, base):
                given = each.get_params(deep=False)
                if all(given.get(name) is None for name in names):
                    each.set_params(**{names[0]: int(threads)})
    return value


def writable_copy(value: Any) -> Any:
    """Return a copy with writable arrays, because arrays in shared memory are read-only.

    Estimators may write to their arrays, or set the arrays' flag WRITEABLE. The copy uses pickle, because
    some values can't be copied otherwise, such as a value that contains a module.
    """
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    # Protocol 5 would keep arrays read-only, so protocol 4 is used.
    return pickle.loads(serialize.dumps(value, protocol=4))


def writable_parameters(config: Mapping[str, Any], driver_pid: int) -> Mapping[str, Any]:
    """Return a copy of `config` that this process may change; in the driver, return `config` itself."""
    if os.getpid() == driver_pid:
        return config
    return {name: writable_copy(value) for name, value in config.items()}


class FoldTrial(SerializedTrainable):
    """Trial that fits and scores each fold, and reports after each fold, or after several short folds."""

    def setup(self, config: dict[str, Any], *, task: EvaluationTask) -> None:  # type: ignore[override]
        self._task = task
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._key = candidate_key(new_config, self._task.digest)
        self._outcomes: list[Outcome | None] = [None] * len(self._task.splits)
        known = self._task.known_outcomes(self._key)
        self._outcomes[: len(known)] = known
        self._parameters = writable_parameters(new_config, self._trial_spec.driver_pid)
        return True

    def step(self) -> dict[str, Any]:
        until = SYSTEM.monotonic() + REPORT_EVERY_S
        part, parts = self._trial_spec.part
        for split in self._missing[part::parts]:
            self._evaluate(split)
            if SYSTEM.monotonic() > until:
                break
        return self._report()

    @property
    def state(self) -> list[Outcome | None]:
        """Outcome of each fold; None for unfinished folds."""
        return self._outcomes

    @state.setter
    def state(self, outcomes: list[Outcome | None]) -> None:
        self._outcomes = list(outcomes)

    @property
    def _missing(self) -> list[int]:
        return [split for split, outcome in enumerate(self._outcomes) if outcome is None]

    def _evaluate(self, split: int) -> None:
        candidate = int(self.trial_id.rsplit("_", 1)[1])
        seed = self._trial_spec.seed
        if seed is not None and os.getpid() != self._trial_spec.driver_pid:
            # Each fold has its own seed, so that it draws the same random numbers in every process and order.
            seed_generators(trial_seed(seed, split))
        self._outcomes[split] = self._task.outcome(self._parameters, split, candidate)

    def _report(self) -> dict[str, Any]:
        known = report_of(self._outcomes, self._task.decisive)
        return known | {CANDIDATE_KEY: self._key, "done": None not in self._outcomes}

    @classmethod
    def joined(
        cls, reports: Sequence[dict[str, Any]], *, task: EvaluationTask
    ) -> tuple[dict[str, Any], list[Outcome | None] | None]:
        """Merge the reports of parallel tasks that have evaluated different folds.

        Return the merged report and the trial's state.
        """
        whole = {name: value for report in reports for name, value in report.items()}
        outcomes = outcomes_of(whole, len(task.splits))
        return whole | report_of(outcomes, task.decisive), outcomes if None in outcomes else None


class FoldByFoldTrial(FoldTrial):
    """Trial that reports each fold, so that a different candidate may run next."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        super().reset_config(new_config)
        self._is_told = not any(self._outcomes)
        return True

    def step(self) -> dict[str, Any]:
        if self._is_told and self._missing:
            self._evaluate(self._missing[0])
        self._is_told = True  # the first report has only known outcomes
        return self._report()

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"outcomes": self.state}

    def load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self.state = checkpoint["outcomes"]
        self._is_told = True


STATE = "folds.pkl"


class IncrementalTrial(Trainable):
    """Trial that trains all folds of a candidate in portions, and reports the scores of all folds."""

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], *, task: EvaluationTask, portions: Portions
    ) -> None:
        self._task = task
        self._portions = portions
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        parameters = writable_parameters(new_config, self._trial_spec.driver_pid)
        self._folds = [
            IncrementalFold(self._task, split, parameters, self._portions)
            for split in range(len(self._task.splits))
        ]
        return True

    def step(self) -> dict[str, Any]:
        with self._task.in_context():
            outcomes = [fold.advance() for fold in self._folds]
        counted = {COUNTED_BY: portions_at(self._portions.reports, self.iteration + 1)}
        return (
            report_of(outcomes, self._task.decisive)
            | counted
            | {"done": all(fold.over for fold in self._folds)}
        )

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        with self._task.in_context():
            state = {"config": self.config, "folds": [fold.state() for fold in self._folds]}
        with Path(checkpoint_dir, STATE).open("wb") as file:
            serialize.CodePickler(file, protocol=serialize.PROTOCOL).dump(state)

    def load_checkpoint(self, checkpoint: Any) -> None:
        with Path(checkpoint, STATE).open("rb") as file:
            state = pickle.load(file)
        # The checkpoint may come from a different candidate, but training continues with this trial's
        # parameters.
        changed = {
            name: value
            for name, value in self.config.items()
            if name not in state["config"] or not _alike(value, state["config"][name])
        }
        with self._task.in_context():
            for fold, stored in zip(self._folds, state["folds"], strict=True):
                fold.resume(stored, changed)

    def cleanup(self) -> None:
        self._folds = []


class IncrementalFold:
    """Training of a candidate on one fold.

    Args:
        task: data and settings.
        split: number of the fold.
        parameters: parameters of the candidate.
        portions: portions of the training; the fold is scored at each report.
    """

    def __init__(
        self, task: EvaluationTask, split: int, parameters: Mapping[str, Any], portions: Portions
    ) -> None:
        self._task = task
        self._split = split
        self._all, self._test = task.splits[split]
        self._parameters = parameters
        self._portions = portions
        self._fit: IncrementalFit | RepeatedFit | None = None
        self._fit_time = 0.0
        self._failure: str | None = None
        self._transformed_test: Any = None

    @property
    def over(self) -> bool:
        """True if the training is complete or has failed."""
        return self._failure is not None or self._started.done >= self._portions.reports[-1]

    def advance(self) -> Outcome:
        """Train up to the next report, and return the scores; a failed fold is not trained further.

        Raises:
            Exception: the estimator's error, if `error_score` is "raise"; otherwise the outcome contains the
                error.
        """
        started = SYSTEM.monotonic()
        if self._failure is None:
            try:
                self._started.advance(self._data, to_report(self._portions.reports, self._started.done))
            except Exception:
                if self._task.error_score == "raise":
                    raise
                self._failure = traceback.format_exc()
            self._fit_time += SYSTEM.monotonic() - started
        return self._outcome()

    @property
    def _started(self) -> IncrementalFit | RepeatedFit:
        if self._fit is None:
            estimator = clone(self._task.estimator)
            # The parameters may be estimators, so each fold trains its own clones of the parameters.
            estimator = with_own_threads(estimator.set_params(**clone(dict(self._parameters), safe=False)))
            self._fit = self._portions.begin(estimator, labels=self._task.y, searched=self._parameters)
        return self._fit

    @property
    def _train(self) -> Any:
        """Indices of the training samples: all, or only the samples of the portions trained so far."""
        if not self._portions.of_samples:
            return self._all
        last = self._portions.reports[-1]
        # The number is limited, because the candidate may continue the model of a different candidate, which
        # may be beyond the last portion.
        count = end_of(min(self._started.done, last), len(self._all), last)
        # The samples keep the fold's order, as in a fit on all samples.
        return self._all[np.sort(self._order[:count])]

    @functools.cached_property
    def _order(self) -> Any:
        y = self._task.y
        # All candidates use the same samples, so that their scores can be compared.
        by_class = is_classifier(self._started.estimator) and np.ndim(y) == 1
        labels = np.asarray(y)[self._all] if by_class else None
        return growing_order(labels, len(self._all), np.random.RandomState(self._split))

    def _data(self) -> Data:
        task = self._task
        # The arrays are copies, because the estimator may keep its samples between reports.
        with task.fold_array(self._split, views=False) as array:
            X, y = internals.safe_split(self._started.estimator, array, task.y, self._train)
        return X, y, dict(internals.check_method_params(task.X, params=task.fit_params, indices=self._train))

    # --- scores -----------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        outcome: Outcome = {
            "fit_error": self._failure,
            "fit_time": self._fit_time,
            "n_test_samples": len(self._test),
        }
        if self._failure is not None:
            return outcome | {"score_time": 0.0} | self._task.error_scores()
        started = SYSTEM.monotonic()
        outcome["test_scores"] = self._scores(self._test)
        outcome["score_time"] = SYSTEM.monotonic() - started
        if self._task.return_train_score:
            outcome["train_scores"] = self._scores(self._train)
        return outcome

    def _scores(self, samples: Any) -> Any:
        task = self._task
        scored = self._started.estimator
        with task.fold_array(self._split, views=False) as array:
            X, y = internals.safe_split(scored, array, task.y, samples, self._train)
        params = internals.check_method_params(task.X, params=task.score_params, indices=samples)
        if samples is self._test and self._started.transforms and _uses_only_predictions(task.scorer):
            if self._transformed_test is None:
                self._transformed_test = scored[:-1].transform(X)
            scored, X = self._started.trained, self._transformed_test
        return internals.score(scored, X, y, task.scorer, params, task.error_score)

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state for `resume`."""
        failed = self._failure is not None
        return {
            "fit_time": self._fit_time,
            "failure": self._failure,
            "training": None if failed else self._started.state(self._data),
        }

    def resume(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """Continue from a result of the method `state`, with the parameters `changed`.

        Raises:
            ConfigError: a parameter can't change during a training.
        """
        self._fit_time = state["fit_time"]
        self._failure = state["failure"]
        if state["training"] is not None:
            self._started.resume(state["training"], self._data)
            self._started.change(clone(dict(changed), safe=False))


def _alike(one: Any, other: Any) -> bool:
    """Return True for equal values, and for objects of the same class with an equal `repr`, such as
    estimators.
    """
    return same(one, other) or (type(one) is type(other) and repr(one) == repr(other))


def _uses_only_predictions(scorer: Any) -> bool:
    """Return True if scores need only predictions, so that a pipeline's last step can be scored alone."""
    if internals.routing_enabled():
        return False  # transformers may request metadata
    scorers = scorer._scorers.values() if isinstance(scorer, internals.MultimetricScorer) else [scorer]
    return all(isinstance(each, (internals.BaseScorer, internals.PassthroughScorer)) for each in scorers)


MOST_VALUES = 1 << 21
"""Maximum number of values in X for which the driver itself evaluates the first folds."""

_HARMLESS = {"builtins", "numpy", "scipy", "sklearn"}
"""Packages whose code neither ends the process nor changes its state."""


def may_be_here(task: EvaluationTask, candidates: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if folds can't harm this process: all code is from known packages, and the data is small.

    If this is uncertain, the result is False.
    """
    try:
        shape = getattr(task.X, "shape", None) or (len(task.X),)
        parts = (task.scorer, task.fit_params, task.score_params, candidates)
        data = {type(each).__module__.partition(".")[0] for each in (task.X, task.y)}
        return (
            math.prod(shape) <= MOST_VALUES
            and data <= _HARMLESS | {"pandas", "polars"}
            and task.callbacks is None
            and task.verbose < 2
            and all(map(_is_harmless, (task.estimator, *parts)))
        )
    except Exception:  # a user's object raised the error, which a worker will raise too
        return False


def _is_harmless(value: Any) -> bool:
    named = callable(value) and hasattr(value, "__name__")
    # Methods that are written in C lack `__module__`.
    module = getattr(value, "__module__", None) if named else type(value).__module__
    if str(module).partition(".")[0] not in _HARMLESS:
        return False
    if isinstance(value, Mapping):
        return all(map(_is_harmless, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_harmless, value))
    if isinstance(value, internals.BaseScorer):
        return _is_harmless(value._score_func) and _is_harmless(value._kwargs)
    if isinstance(value, internals.MultimetricScorer):
        return _is_harmless(value._scorers)
    if isinstance(value, type) or not hasattr(value, "get_params"):
        return True
    own = value.get_params(deep=False)
    return own.get("n_jobs") in (None, 1) and all(map(_is_harmless, own.values()))
