"""Base of callbacks that keep one log per trial: files, a board, a tracking service.

on_trial_result -> log_trial_result -> kept -- a second later, or when the trial ends --> log_trial_results
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.trial import Trial

FLUSH_S = 1.0
"""How late a log may be while a trial runs; once it has ended, its log is whole."""
MAX_KEPT = 5_000
"""Results that are kept for writing, of all trials together."""


class LoggerCallback(Callback):
    """Implement the methods below; a trial that runs again has its log rewritten to what was committed.

    Reports are kept and handed to `log_trial_results` together, at most a second late, and before any
    other word on the end of a trial. Where each must be told at once, override `log_trial_result`.
    """

    folder: Path

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Trial, list[Mapping[str, Any]]]] = {}
        self._count = 0
        self._due: float | None = None

    # --- to override ------------------------------------------------------------------------------

    def log_trial_start(self, trial: Trial) -> None:
        """A trial begins, or goes on."""

    def log_trial_restore(self, trial: Trial) -> None:
        """A trial is about to run again; its log is rewritten by then."""

    def log_trial_save(self, trial: Trial) -> None:
        """A trial has a new checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: Mapping[str, Any]) -> None:
        """A trial has reported; kept for `log_trial_results`, unless a subclass does something else.

        Args:
            iteration: of the experiment's loop; the trial's own is in the result.
            trial: that reported.
            result: with what was filled in.
        """
        del iteration
        kept = self._of_instance().get(trial.trial_id)
        if kept is None:
            kept = self._kept[trial.trial_id] = trial, []
        kept[1].append(result)
        self._count += 1

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Write these reports of a trial, oldest first, behind those that are written."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """A trial has ended; one that was interrupted may begin again."""

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Make the log hold these results, and no others."""

    def length(self, trial: Trial) -> int:
        """How many results the log holds."""
        return 0

    # --- to use -----------------------------------------------------------------------------------

    def trial_dir(self, trial: Trial) -> Path:
        """The trial's own folder."""
        return self.folder / trial.dirname

    def lines(self, trial: Trial, filename: str) -> int:
        """How many lines a file in the trial's folder has; 0 if there is none."""
        try:
            with open(f"{self.folder}/{trial.dirname}/{filename}", "rb") as file:
                return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
        except FileNotFoundError:
            return 0

    def flush(self, trial: Trial | None = None) -> None:
        """Write what is kept, of one trial or of all; where one can't be written, the others are."""
        every = self._of_instance()
        names = list(every) if trial is None else [trial.trial_id] if trial.trial_id in every else []
        problem: Exception | None = None
        for name in names:
            of, results = every.pop(name)
            self._count -= len(results)
            try:
                self.log_trial_results(of, results)
            except Exception as error:
                problem = problem or error
        if not every:
            self._due = None
        if problem is not None:
            raise problem

    def _of_instance(self) -> dict[str, tuple[Trial, list[Mapping[str, Any]]]]:
        if "_kept" not in vars(self):  # of a subclass whose constructor doesn't call ours, as Ray's needn't
            LoggerCallback.__init__(self)
        return self._kept

    # --- what the experiment calls ----------------------------------------------------------------

    @property
    def refresh_s(self) -> float | None:  # type: ignore[override]  # wanted only while something is kept
        """How soon to be called again though nothing happens."""
        return FLUSH_S if self._of_instance() else None

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        self.folder = Path(info["experiment_path"])
        # A kill may have come between a commit and the log of it.
        for trial, results in info["past"]():
            if self.length(trial) != len(results):
                self.rewrite(trial, results)

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.flush(trial)
        self.log_trial_end(trial)
        self.rewrite(trial, info["results"])
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.flush(trial)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._end(trial, info, failed=False)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._end(trial, info, failed=True)

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if not self._of_instance():
            return
        if self._due is None:
            self._due = info["time"] + FLUSH_S
        elif info["time"] >= self._due or self._count > MAX_KEPT:
            self._due = None
            self.flush()

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        try:
            self.flush()
        finally:
            for trial in trials:
                if not trial.status.is_finished:
                    self.log_trial_end(trial)

    def _end(self, trial: Trial, info: Mapping[str, Any], *, failed: bool) -> None:
        try:
            self.flush(trial)
        finally:
            self.log_trial_end(trial, failed=failed)
        if "results" in info:
            self.rewrite(trial, info["results"])
