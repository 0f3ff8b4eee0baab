"""What a trial's process does: one candidate's folds, each by scikit-learn's own fit and score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection._validation import _fit_and_score

from trainkit.clock import SYSTEM
from trainkit.runtime import preload
from trainkit.sklearn.cv_results import Outcome, report_of
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

    def outcome(self, parameters: Mapping[str, Any], split: int) -> Outcome:
        """Fit a clone with `parameters` on the training samples of fold `split`; score it on the others.

        Raises:
            Exception: what the estimator raised, if `error_score` is "raise"; else it is in the outcome.
        """
        train, test = self.splits[split]
        outcome: Outcome = _fit_and_score(
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
            split_progress=(split, len(self.splits)),
            error_score=self.error_score,
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
        until = SYSTEM.monotonic() + REPORT_EVERY_S
        while len(self._outcomes) < folds:
            self._outcomes.append(self._task.outcome(self.config, len(self._outcomes)))
            if SYSTEM.monotonic() > until:
                break
        return report_of(self._outcomes) | {"done": len(self._outcomes) == folds}
