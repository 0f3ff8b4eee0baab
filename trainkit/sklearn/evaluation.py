"""What a trial's process does: one candidate's folds, each by scikit-learn's own fit and score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from trainkit.clock import SYSTEM
from trainkit.runtime import preload
from trainkit.sklearn.cv_results import Outcome, report_of
from trainkit.sklearn.internals import fit_and_score
from trainkit.sklearn.surroundings import Surroundings
from trainkit.sklearn.tasks import FoldTasks
from trainkit.tune.trainable import Trainable

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

    def _outcome(self, parameters: Mapping[str, Any], split: int, candidate: int) -> Outcome:
        folds = len(self.splits)
        train, test = self.splits[split]
        outcome: Outcome = fit_and_score(
            clone(self.estimator),
            self.X,
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


class FoldTrial(Trainable):
    """Evaluates a candidate; it reports what it has when a fold is done, or several short ones are."""

    def setup(self, config: dict[str, Any], *, task: Task) -> None:  # type: ignore[override]
        self._task = task
        self._outcomes: list[Outcome] = []

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._outcomes = []
        return True

    def step(self) -> dict[str, Any]:
        folds = len(self._task.splits)
        candidate = int(self.trial_id.rsplit("_", 1)[1])
        until = SYSTEM.monotonic() + REPORT_EVERY_S
        while len(self._outcomes) < folds:
            self._outcomes.append(self._task.outcome(self.config, len(self._outcomes), candidate))
            if SYSTEM.monotonic() > until:
                break
        return report_of(self._outcomes) | {"done": len(self._outcomes) == folds}
