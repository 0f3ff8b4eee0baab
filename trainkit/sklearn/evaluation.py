"""What a trial's process does: one candidate's folds, each by scikit-learn's own fit and score."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
from sklearn.base import clone

from trainkit.clock import SYSTEM
from trainkit.errors import message_of
from trainkit.runtime import preload
from trainkit.sklearn.copies import Copies, CopiesOfFold
from trainkit.sklearn.cv_results import Outcome, report_of
from trainkit.sklearn.internals import MultimetricScorer, fit_and_score
from trainkit.sklearn.keys import CANDIDATE, Known, candidate_key, digest
from trainkit.sklearn.lending import lent
from trainkit.sklearn.surroundings import Surroundings
from trainkit.sklearn.tasks import FoldTasks
from trainkit.tune.running.steps import PortableTrainable
from trainkit.tune.running.trial_actor import seed_generators
from trainkit.tune.seeds import trial_seed

REPORT_EVERY_S = 0.1
"""Folds that take less are reported together: a report is a round trip."""

preload.register("trainkit.sklearn.evaluation")


@dataclass(frozen=True)
class Task:
    """What every candidate is evaluated on; it travels to the workers once, its arrays as shared memory.

    Attributes:
        estimator: to clone, unfitted.
        X, y: as given to `fit`, indexable; y may be None.
        splits: of each fold, the indices of its training and of its test samples.
        scorer: one scorer, several as scikit-learn's multimetric scorer, or the user's callable.
        fit_params, score_params: as routed to the estimator and to the scorer.
        return_train_score, error_score, verbose: as scikit-learn means them.
        surroundings: of the call of `fit`, which hold for each fold too.
        told: what to tell callbacks of each fold; None: there are none.
        candidates: how many there will be; None: that isn't known.
        known: by a candidate's key, what its first folds came to in a search that was cut off.
        digest: of the above but `known`, where the search is kept in a folder; else ''.
        copies: where workers share copies of folds' samples; None: each makes its own.
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
    surroundings: Surroundings
    told: FoldTasks | None = None
    candidates: int | None = None
    known: Known = field(default_factory=dict)
    digest: str = ""
    copies: Copies | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # An estimator may be frozen, which a clone shares; of data and folds the arrays stay shared memory.
        self.__dict__.update(state, estimator=own(state["estimator"]))

    def digested(self) -> str:
        """Return a text that differs for tasks whose outcomes may."""
        data = self.X, self.y, self.splits, self.fit_params, self.score_params
        return digest((*data, self.estimator, self.scorer, self.return_train_score, self.error_score), "X, y")

    def failure(self, split: int, error: BaseException) -> Outcome:
        """What fold `split` came to where the process died that was at it."""
        score = self.error_score
        if isinstance(self.scorer, MultimetricScorer):
            score = dict.fromkeys(self.scorer._scorers, score)
        outcome: Outcome = {"test_scores": score}
        if self.return_train_score:
            outcome["train_scores"] = score
        # Nobody knows how long it took.
        times = {"fit_time": math.nan, "score_time": math.nan}
        counts = {"n_test_samples": len(self.splits[split][1])}
        return outcome | times | counts | {"fit_error": f"{type(error).__name__}: {message_of(error)}"}

    def outcome(self, parameters: Mapping[str, Any], split: int, candidate: int) -> Outcome:
        """Fit a clone with `parameters` on the training samples of fold `split`; score it on the others.

        Args:
            parameters: of the candidate; copied, as they may be estimators.
            split: which fold, from 0.
            candidate: which candidate, from 0.

        Raises:
            Exception: what the estimator raised, if `error_score` is "raise"; else it is in the outcome.
        """
        with self.surroundings.entered():
            return self._outcome(parameters, split, candidate)

    def lent(self, split: int, *, views: bool = True) -> AbstractContextManager[Any]:
        """Give X, or what gives the samples of fold `split` without a copy where it can, as `lent` does.

        Args:
            split: which fold, from 0.
            views: whether its samples may be views, which are used within the block only.
        """
        samples = self.splits[split]
        shared = None if self.copies is None else CopiesOfFold(self.copies, split, samples)
        return lent(self.X, *samples, views=views, shared=shared)

    def _outcome(self, parameters: Mapping[str, Any], split: int, candidate: int) -> Outcome:
        with self.lent(split) as X:
            return self._scored(X, parameters, split, candidate)

    def _scored(self, X: Any, parameters: Mapping[str, Any], split: int, candidate: int) -> Outcome:
        train, test = self.splits[split]
        folds = len(self.splits)
        outcome: Outcome = fit_and_score(
            clone(self.estimator),
            X,
            self.y,
            scorer=self.scorer,
            train=train,
            test=test,
            verbose=self.verbose,
            parameters=dict(parameters),
            fit_params=self.fit_params,
            score_params=self.score_params,
            return_train_score=self.return_train_score,
            return_n_test_samples=True,
            return_times=True,
            split_progress=(split, folds),
            candidate_progress=None if self.candidates is None else (candidate, self.candidates),
            error_score=self.error_score,
            **({} if self.told is None else self.told.told(candidate, split, folds)),
        )
        return outcome


def own(value: Any) -> Any:
    """Return a copy whose arrays can be written to, as those that lie in shared memory can't be.

    Estimators may set the flag WRITEABLE of arrays that they hold, or write to them. The value is pickled, as
    it was to be sent here: what can be pickled can't always be copied otherwise, such as what holds a module.
    """
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    # Protocol 5 would keep arrays that can't be written to as they are.
    return pickle.loads(cloudpickle.dumps(value, protocol=4))


def own_parameters(config: Mapping[str, Any], driver_pid: int) -> Mapping[str, Any]:
    """Return a candidate's parameters as this process may change them; in the driver they are as given."""
    if os.getpid() == driver_pid:
        return config
    return {name: own(value) for name, value in config.items()}


class FoldTrial(PortableTrainable):
    """Evaluates a candidate; it reports what it has when a fold is done, or several short ones are."""

    def setup(self, config: dict[str, Any], *, task: Task) -> None:  # type: ignore[override]
        self._task = task
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._key = candidate_key(new_config, self._task.digest)
        self._outcomes = list(self._task.known.get(self._key, ()))
        self._parameters = own_parameters(new_config, self._trial.driver_pid)
        return True

    def step(self) -> dict[str, Any]:
        until = SYSTEM.monotonic() + REPORT_EVERY_S
        while not self._done:
            self._evaluate_next()
            if SYSTEM.monotonic() > until:
                break
        return self._report()

    @property
    def state(self) -> list[Outcome]:
        """What the folds came to that are done."""
        return self._outcomes

    @state.setter
    def state(self, outcomes: list[Outcome]) -> None:
        self._outcomes = list(outcomes)

    @property
    def _done(self) -> bool:
        return len(self._outcomes) == len(self._task.splits)

    def _evaluate_next(self) -> None:
        candidate, split = int(self.trial_id.rsplit("_", 1)[1]), len(self._outcomes)
        seed = self._trial.seed
        if seed is not None and os.getpid() != self._trial.driver_pid:
            seed_generators(trial_seed(seed, split))  # so that it draws the same, wherever and whenever
        self._outcomes.append(self._task.outcome(self._parameters, split, candidate))

    def _report(self) -> dict[str, Any]:
        folds = len(self._task.splits)
        return report_of(self._outcomes, folds) | {CANDIDATE: self._key, "done": self._done}


class FoldByFoldTrial(FoldTrial):
    """The same, but each fold is a report, after which it may be another candidate's turn."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        super().reset_config(new_config)
        self._is_told = not self._outcomes
        return True

    def step(self) -> dict[str, Any]:
        if self._is_told:
            self._evaluate_next()
        self._is_told = True  # what was known from the start is a report without further folds
        return self._report()

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"outcomes": self.state}

    def load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self.state = checkpoint["outcomes"]
        self._is_told = True
