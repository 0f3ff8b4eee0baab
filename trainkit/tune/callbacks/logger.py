"""Base of callbacks that keep one log per trial: files, a board, a tracking service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.trial import Trial


class LoggerCallback(Callback):
    """Implement these four; a trial that runs again has its log rewritten to what was committed."""

    folder: Path

    def log_trial_start(self, trial: Trial) -> None:
        """A trial begins, or goes on."""

    def log_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """A trial has reported."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """A trial has ended; one that was interrupted may begin again."""

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Make the log hold these results, and no others."""

    def length(self, trial: Trial) -> int:
        """How many results the log holds."""
        return 0

    def trial_dir(self, trial: Trial) -> Path:
        """The trial's own folder."""
        return self.folder / trial.dirname

    def setup(self, stop: Any = None, num_samples: int | None = None, **info: Any) -> None:
        self.folder = Path(info["experiment_path"])
        # A kill may have come between a commit and the log of it.
        for trial, results in info["past"]():
            if self.length(trial) != len(results):
                self.rewrite(trial, results)

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial)
        self.rewrite(trial, info["results"])

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial)
        if "results" in info:
            self.rewrite(trial, info["results"])

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        for trial in trials:
            if not trial.status.is_finished:
                self.log_trial_end(trial)
