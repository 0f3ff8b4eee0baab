"""What a trial's process does in a search with early stopping: all folds, a portion further each report."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from sklearn.base import clone

from trainkit.clock import SYSTEM
from trainkit.runtime import preload
from trainkit.sklearn.cv_results import Outcome, report_of
from trainkit.sklearn.evaluation import Task, own_parameters
from trainkit.sklearn.incremental import COUNTED_BY, portions_at, to_report
from trainkit.sklearn.internals import (
    BaseScorer,
    MultimetricScorer,
    PassthroughScorer,
    check_method_params,
    routing_enabled,
    safe_split,
    score,
)
from trainkit.sklearn.piecewise import Data, Piecewise
from trainkit.tune.domains import same
from trainkit.tune.trainable import Trainable

preload.register("trainkit.sklearn.epochs")

STATE = "folds.pkl"


class EpochTrial(Trainable):
    """Trains a candidate in all folds at once; each report holds all scores, after some portions more."""

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], *, task: Task, reports: Sequence[int], last_step: bool
    ) -> None:
        self._task = task
        self._reports = reports
        self._last_step = last_step
        self._begin(config)

    def _begin(self, config: Mapping[str, Any]) -> None:
        parameters = own_parameters(config, self._trial.driver_pid)
        self._folds = [
            Fold(self._task, split, parameters, self._reports, last_step=self._last_step)
            for split in range(len(self._task.splits))
        ]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        with self._task.surroundings.entered():
            outcomes = [fold.advance() for fold in self._folds]
        counted = {COUNTED_BY: portions_at(self._reports, self.iteration + 1)}
        return report_of(outcomes) | counted | {"done": all(fold.over for fold in self._folds)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        with self._task.surroundings.entered():
            state = {"config": self.config, "folds": [fold.state() for fold in self._folds]}
        with Path(checkpoint_dir, STATE).open("wb") as file:
            cloudpickle.dump(state, file, protocol=5)

    def load_checkpoint(self, checkpoint: Any) -> None:
        with Path(checkpoint, STATE).open("rb") as file:
            state = cloudpickle.load(file)
        # It may be another candidate's, whose training goes on with the parameters of this one.
        changed = {
            name: value
            for name, value in self.config.items()
            if name not in state["config"] or not _alike(value, state["config"][name])
        }
        with self._task.surroundings.entered():
            for fold, stored in zip(self._folds, state["folds"], strict=True):
                fold.resume(stored, changed)

    def cleanup(self) -> None:
        self._folds = []


class Fold:
    """A candidate in one fold, in the course of its training.

    Args:
        task: what it is evaluated on.
        split: which fold.
        parameters: of the candidate.
        reports: after how many portions it is scored; the last is a whole training.
        last_step: of a pipeline, its last step is trained by portions.
    """

    def __init__(
        self,
        task: Task,
        split: int,
        parameters: Mapping[str, Any],
        reports: Sequence[int],
        *,
        last_step: bool,
    ) -> None:
        self._task = task
        self._split = split
        self._train, self._test = task.splits[split]
        self._parameters = parameters
        self._reports = reports
        self._last_step = last_step
        self._piecewise: Piecewise | None = None
        self._fit_time = 0.0
        self._failure: str | None = None
        self._transformed_test: Any = None

    @property
    def over(self) -> bool:
        """True if nothing is left to train: all was, or it has failed."""
        return self._failure is not None or self._started.done >= self._reports[-1]

    def advance(self) -> Outcome:
        """Train to the next report, and score; a fold that has failed stays as it is.

        Raises:
            Exception: what the estimator raised, if `error_score` is "raise"; else it is in the outcome.
        """
        started = SYSTEM.monotonic()
        if self._failure is None:
            try:
                self._started.advance(self._data, to_report(self._reports, self._started.done))
            except Exception:
                if self._task.error_score == "raise":
                    raise
                self._failure = traceback.format_exc()
            self._fit_time += SYSTEM.monotonic() - started
        return self._outcome()

    @property
    def _started(self) -> Piecewise:
        if self._piecewise is None:
            estimator = clone(self._task.estimator)
            # Parameters may be estimators, which each fold trains for itself.
            estimator.set_params(**clone(dict(self._parameters), safe=False))
            self._piecewise = Piecewise(
                estimator,
                self._reports[-1],
                last_step=self._last_step,
                labels=self._task.y,
                searched=self._parameters,
            )
        return self._piecewise

    def _data(self) -> Data:
        task = self._task
        # No views: the estimator may keep what it is given, from one report to the next.
        with task.lent(self._split, views=False) as lent:
            X, y = safe_split(self._started.estimator, lent, task.y, self._train)
        return X, y, dict(check_method_params(task.X, params=task.fit_params, indices=self._train))

    # --- scores -----------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        outcome: Outcome = {
            "fit_error": self._failure,
            "fit_time": self._fit_time,
            "n_test_samples": len(self._test),
        }
        if self._failure is not None:
            kinds = ("test_scores", "train_scores") if self._task.return_train_score else ("test_scores",)
            return outcome | {"score_time": 0.0} | {kind: self._no_scores() for kind in kinds}
        started = SYSTEM.monotonic()
        outcome["test_scores"] = self._scores(self._test)
        outcome["score_time"] = SYSTEM.monotonic() - started
        if self._task.return_train_score:
            outcome["train_scores"] = self._scores(self._train)
        return outcome

    def _no_scores(self) -> Any:
        scorer, value = self._task.scorer, self._task.error_score
        return dict.fromkeys(scorer._scorers, value) if isinstance(scorer, MultimetricScorer) else value

    def _scores(self, samples: Any) -> Any:
        task = self._task
        scored = self._started.estimator
        with task.lent(self._split, views=False) as lent:
            X, y = safe_split(scored, lent, task.y, samples, self._train)
        params = check_method_params(task.X, params=task.score_params, indices=samples)
        if samples is self._test and self._started.transforms and _asks_for_predictions(task.scorer):
            if self._transformed_test is None:
                self._transformed_test = scored[:-1].transform(X)
            scored, X = self._started.trained, self._transformed_test
        return score(scored, X, y, task.scorer, params, task.error_score)

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what `resume` takes."""
        failed = self._failure is not None
        return {
            "fit_time": self._fit_time,
            "failure": self._failure,
            "piecewise": None if failed else self._started.state(self._data),
        }

    def resume(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """Go on from `state`, with the parameters that have changed since.

        Raises:
            ConfigError: one of them can't change in the course of a training.
        """
        self._fit_time = state["fit_time"]
        self._failure = state["failure"]
        if state["piecewise"] is not None:
            self._started.resume(state["piecewise"], self._data)
            self._started.change(clone(dict(changed), safe=False))


def _alike(one: Any, other: Any) -> bool:
    """Equality that takes estimators with the same parameters for equal."""
    return same(one, other) or (type(one) is type(other) and repr(one) == repr(other))


def _asks_for_predictions(scorer: Any) -> bool:
    """Whether nothing but predictions of the estimator matter to the score, so its last step will do."""
    if routing_enabled():
        return False  # transformers may ask for arguments
    scorers = scorer._scorers.values() if isinstance(scorer, MultimetricScorer) else [scorer]
    return all(isinstance(each, (BaseScorer, PassthroughScorer)) for each in scorers)
