"""An estimator that does what a test asks of it, and writes down what it has done."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin

from trainkit.tune import Stopper


class ScriptedEstimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts the first class.

    Args:
        how: what `fit` does: "fine", "raise", with a `gate` only as long as that file is there, "kill" its
            process, "sleep" for ever in C; or "wait" as long as there is the file `gate`, or "refit": the
            same on all 30 samples alone.
        log: a file that gets a line for each fit that is done; None: none is kept.
        gate: see `how`; "gate.waiting" is there while a fit waits.
        number: told apart by it.
    """

    def __init__(
        self, how: str = "fine", log: str | None = None, gate: str | None = None, number: int = 0
    ) -> None:
        self.how = how
        self.log = log
        self.gate = gate
        self.number = number

    def fit(self, X: Any, y: Any) -> Self:
        self.classes_ = np.unique(y)
        if self.how == "raise" and (self.gate is None or os.path.exists(self.gate)):
            raise ValueError(f"number {self.number} will not do")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "sleep":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
            time.sleep(3600)
        waits = self.how == "wait" or (self.how == "refit" and len(X) == 30)
        if waits and self.gate is not None:
            while os.path.exists(self.gate):
                Path(f"{self.gate}.waiting").touch()
                time.sleep(0.01)
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{self.how} {self.number} {len(X)} {float(np.sum(X)):.0f}\n")
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


class Table(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted step that holds a large array, and writes to it."""

    def fit(self, X: Any, y: Any = None) -> Self:
        self.table_ = np.zeros(100_000)
        return self

    def transform(self, X: Any) -> Any:
        self.table_[0] += 1
        return X


class EndsAfter(Stopper):
    """Ends a search with the report of this number, and with `ends_trials` whatever reports."""

    def __init__(self, reports: float, *, ends_trials: bool = False) -> None:
        self.reports = reports
        self.ends_trials = ends_trials
        self.seen = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen += 1
        return self.ends_trials

    def stop_all(self) -> bool:
        return self.seen >= self.reports


def data(rows: int = 30) -> tuple[Any, Any]:
    """Of two classes, each row its own."""
    return np.arange(2.0 * rows).reshape(rows, 2), np.arange(rows) % 2


def done(log: Path) -> list[str]:
    """The fits that were done, in order."""
    return log.read_text().splitlines() if log.exists() else []
