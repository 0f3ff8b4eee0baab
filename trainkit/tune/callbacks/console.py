"""Console output about an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainkit.resources import describe
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.core.metrics import first_line, flatten, lookup
from trainkit.tune.core.setting_names import doing, raises
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.display import (
    Display,
    ExperimentProgress,
    NotebookDisplay,
    Table,
    TerminalDisplay,
    count_words,
    duration,
    has_screen,
    infeasible_words,
    notebook_display,
    number_words,
    one_line,
    progress_table,
    say,
    shortened,
)

REFRESH_S = 0.5
"""Seconds between two updates of the progress block in a terminal or a notebook."""
SUMMARY_S = 30.0
"""Seconds between two summary lines if no progress block is shown.

The interval between summary lines doubles while no trial ends.
"""
MAX_LINES = 100
"""Maximum number of lines about finished trials, of lines about failed trials, and of lines about retries."""
MAX_TRACEBACKS = 5
"""Maximum number of tracebacks, each of a different error."""
MAX_WIDTH = 200


class ConsoleCallback(Callback):
    """Callback that shows an experiment's progress on standard output.

    Args:
        live: True: a progress block that is updated; False: lines; None: a block in a terminal or a notebook,
            and lines elsewhere.
        verbose: 2: also print a line for each report; 3: include all metrics in these lines.
        kept: False if the experiment's folder is removed at the end; the folder is then not shown.
        waits: function that returns text about what the first trial is waiting for; called while trials are
            pending and no trial runs.
    """

    def __init__(
        self, live: bool | None = None, verbose: int = 1, *, kept: bool = True, waits: Callable[[], str] = str
    ) -> None:
        self._live_wanted = live
        self._verbose = verbose
        self._kept = kept
        self._waits = waits
        self._display: Display | None = None
        self._progress = ExperimentProgress(None, None, 0.0)
        self._drawn = 0.0
        self._path = ""
        self._lines = {TrialStatus.TERMINATED: 0, TrialStatus.ERROR: 0, TrialStatus.PENDING: 0}
        self._told: set[tuple[str, str]] = set()
        self._summaries = 0
        self._summary_s = SUMMARY_S
        self._ended = 0

    def setup(self, *given: Any, **info: Any) -> None:
        self._progress = ExperimentProgress(info["metric"], info["mode"], info["time"])
        several = tuple(each.metric for each in info.get("objectives", ()))
        self._metrics = several or tuple(filter(None, [info["metric"]]))
        self._path = info["experiment_path"] if self._kept else ""
        self._drawn = info["time"]
        self._progress.look(info["trials"])
        self._display = self._open()
        if self._display is None:
            where = f"in {self._path}" if self._path else "in memory"
            say(f"{doing()} {where}, with {describe(info['resources'])}")
            self._refresh_s = self._summary_s = SUMMARY_S
        else:
            self._refresh_s = REFRESH_S

    def _open(self) -> Display | None:
        if self._live_wanted is False:
            return None
        display = notebook_display()
        if display is not None:
            return NotebookDisplay(display)
        return TerminalDisplay() if self._live_wanted or has_screen() else None

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        if self._verbose > 1:
            say(f"{trial.trial_id} {_report_words(result, self._metrics, self._verbose)}")

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._line(trial, trial.state, first_line(trial.reason))

    def on_trial_recover(
        self,
        iteration: int,
        trials: Sequence[Trial],
        trial: Trial,
        failure: Failure | None = None,
        **info: Any,
    ) -> None:
        if failure is not None:
            since = "the beginning" if trial.checkpoint is None else f"iteration {trial.checkpoint.iteration}"
            words = f"{failure.kind}: {first_line(failure.message)}"
            self._line(trial, "failed", words, f"{_place(failure)}; {trial.reason}, from {since}")

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        told = raises() and trial.failure is not None
        why = trial.failure.kind if told and trial.failure is not None else first_line(trial.reason)
        self._line(trial, trial.state, why, _place(trial.failure))
        if not told:
            self._traceback(trial)

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if self._display is not None and info["time"] - self._drawn >= REFRESH_S:
            self._draw(trials, info)
        elif self._display is None and info["time"] - self._drawn >= self._summary_s:
            self._summary(trials, info)

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        ending = info.get("ending", "")
        if self._display is not None:
            try:
                self._draw(trials, info, ending or info.get("why_fewer") or "all trials have ended")
            finally:
                self._display.close()
                self._display = None
            return
        self._progress.look(trials)
        elapsed = duration(info["time"] - self._progress.started)
        words = f"{self._progress.counts()} in {elapsed}"
        say(f"Ended early: {ending}. {words}" if ending else words)
        if not ending and (why := info.get("why_fewer")):
            say(f"Fewer trials than asked for: {why}")
        if best := self._progress.best_config_words():
            say(one_line(best))
        if failed := self._progress.failed_words(self._path):
            say(failed)

    def _summary(self, trials: Sequence[Trial], info: Mapping[str, Any]) -> None:
        """Print a summary line about all trials. The number of such lines is at most the number of trials."""
        lines = self._table(trials, info).lines
        since, self._ended = self._progress.ended - self._ended, self._progress.ended
        self._summary_s = SUMMARY_S if since else 2 * self._summary_s
        if self._summaries < self._progress.created:
            self._summaries += 1
            say("; ".join([*lines[:2], *filter(None, [self._progress.best_words()])]))

    def _line(self, trial: Trial, what: str, why: str, rest: str = "") -> None:
        """Print that a trial has ended or failed; print nothing if a progress block is shown.

        Args:
            trial: trial in its new state.
            what: one word for the new state.
            why: reason for the new state; the reason is cut if the line is too long.
            rest: text for the end of the line.
        """
        if self._display is not None or (self._lines[trial.status] >= MAX_LINES and self._verbose < 2):
            return
        self._lines[trial.status] += 1
        shown = _values_words(trial.last_result, self._metrics)
        reports = count_words(trial.iteration, "report")
        line = f"{trial.trial_id} {what} after {reports}{shown}{'' if why == what else f': {why}'}"
        rest = shortened(rest, MAX_WIDTH // 2)
        say(one_line(line[: MAX_WIDTH - len(rest)] + rest))
        if self._lines[trial.status] == MAX_LINES and self._verbose < 2:
            say(f"Further trials are not listed; a summary of all trials follows every {SUMMARY_S:g} s")

    def _traceback(self, trial: Trial) -> None:
        """Print the traceback of a failed trial, once for each kind of error and place in the code."""
        failure = trial.failure
        # If the failure has no Python traceback, the trial's process died, and the last output of the process
        # is already printed.
        if failure is None or "Traceback (" not in failure.traceback or len(self._told) >= MAX_TRACEBACKS:
            return
        if (kind := (failure.kind, failure.where)) not in self._told:
            self._told.add(kind)
            for line in failure.traceback.splitlines():
                say(f"  {line}".rstrip())

    def _draw(self, trials: Sequence[Trial], info: Mapping[str, Any], ending: str = "") -> None:
        if self._display is not None:
            self._display.show(self._table(trials, info, ending))

    def _table(self, trials: Sequence[Trial], info: Mapping[str, Any], ending: str = "") -> Table:
        self._drawn = info["time"]
        self._progress.look(trials)
        waits = self._waits() if self._progress.only_waits and not ending else ""
        return progress_table(self._progress, {**info, "waits": waits}, self._path, ending)


def _place(failure: Failure | None) -> str:
    """Return the line of the user's code that failed, such as ' (train.py:12 in f)'; '' if unknown."""
    return f" ({failure.where})" if failure is not None and failure.where else ""


def _values_words(result: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Return metrics such as ' loss=0.25 infeasible by 0.1'; '' if no metric is a number."""
    words = [(metric, number_words(lookup(result, metric))) for metric in metrics]
    shown = [*(f"{metric}={value}" for metric, value in words if value), infeasible_words(result)]
    return "".join(f" {each}" for each in shown if each)


def _report_words(result: Mapping[str, Any], metrics: Sequence[str], verbose: int) -> str:
    iteration = result.get("training_iteration")
    if verbose > 2:
        reported = {name: value for name, value in result.items() if name != "config"}
        listed = [f"{name}={number_words(value) or value}" for name, value in flatten(reported).items()]
        return f"report {iteration}: {', '.join(listed)}"
    shown = _values_words(result, metrics)
    return f"report {iteration}{f':{shown}' if shown else ''}"
