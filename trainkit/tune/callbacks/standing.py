"""Where an experiment stands: what a table or a line is made of. Counted as it goes on; pure."""

from __future__ import annotations

import heapq
import re
import shlex
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.checks import is_number
from trainkit.tune.outcome.ranking import NONE_BEST, trial_score
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import first_line, flatten, lookup

MAX_ROWS = 16
"""Of trials, in a table."""
MAX_BEST = 8
"""Of the best trials, in a table, while others run."""
MAX_CONFIG = 400
"""Characters of a configuration."""
MAX_VALUE = 30
"""Characters of one value of a configuration."""


class Standing:
    """Knows all trials, and looks only at those that are new or have not ended.

    Args:
        metric, mode: what "best" means, by a trial's last report; None: there is no best.
        started: when, in seconds.

    Attributes:
        ranked: the best trials by their last reports when `look` was last called, at most MAX_ROWS, the best
            first.
    """

    def __init__(self, metric: str | None, mode: str | None, started: float) -> None:
        self.metric = metric
        self.mode = mode
        self.started = started
        self.ranked: list[Trial] = []
        self._leaders: list[tuple[float, int, Trial]] = []
        """The best of the trials that have ended, the best first: negative score, index and trial."""
        self._known = 0
        self._open: list[Trial] = []
        self._ended: Counter[TrialStatus] = Counter()
        self._latest: deque[Trial] = deque(maxlen=MAX_ROWS)
        self._failed: deque[Trial] = deque(maxlen=MAX_ROWS)

    def look(self, trials: Sequence[Trial]) -> None:
        """Note what has become of the trials: `trials` is all of them, in the order suggested."""
        candidates = [*self._open, *trials[self._known :]]
        self._known = len(trials)
        self._open = []
        ended = []
        for trial in candidates:
            if not trial.status.is_finished:
                self._open.append(trial)
                continue
            self._ended[trial.status] += 1
            self._latest.append(trial)
            ended.append(trial)
            if trial.status is TrialStatus.ERROR:
                self._failed.append(trial)
        self._leaders = heapq.nsmallest(MAX_ROWS, [*self._leaders, *self._scored(ended)])
        best = heapq.nsmallest(MAX_ROWS, [*self._leaders, *self._scored(self._open)])
        self.ranked = [trial for _, _, trial in best]

    def _scored(self, trials: Sequence[Trial]) -> list[tuple[float, int, Trial]]:
        """Those of `trials` whose last report has the metric as a finite number."""
        if self.metric is None:
            return []
        found = []
        for trial in trials:
            score = trial_score([trial.last_result], self.metric, self.mode or "max", "last", keep_all=False)
            if score is not None:
                found.append((-score, trial.index, trial))
        return found

    @property
    def best(self) -> Trial | None:
        """The trial whose last report is best, the first suggested of equals.

        None: no last report has the metric, or all trials have failed.
        """
        return None if self.all_failed else next(iter(self.ranked), None)

    @property
    def all_failed(self) -> bool:
        """True if there are trials and each of them has failed."""
        return 0 < self._known == self._ended[TrialStatus.ERROR]

    @property
    def created(self) -> int:
        """Trials that there are."""
        return self._known

    @property
    def ended(self) -> int:
        """Trials that have ended, one way or another."""
        return self._ended.total()

    def counts(self) -> str:
        """Such as '3 RUNNING, 12 TERMINATED'."""
        numbers = Counter(trial.status for trial in self._open) + self._ended
        return (
            ", ".join(f"{numbers[status]} {status}" for status in TrialStatus if numbers[status])
            or "no trial yet"
        )

    def failed_words(self, path: str) -> str:
        """How to see why the latest trial failed that did; '' where none has, or no folder tells."""
        if not self._failed or not path:
            return ""
        latest = self._failed[-1].trial_id
        return f"traceback of the latest that failed: trainkit why {shlex.quote(path)} {latest}"

    def shown(self, *, ended: bool = False) -> list[Trial]:
        """Return at most MAX_ROWS trials: the best, the best first; then those that run, failed, came last.

        The latter are in the order suggested.

        Args:
            ended: the experiment has ended, and the best may take all the room.
        """
        best = self.ranked[: MAX_ROWS if ended else MAX_BEST]
        running = [trial for trial in self._open if trial.status is TrialStatus.RUNNING]
        waiting = [trial for trial in self._open if trial.status is not TrialStatus.RUNNING]
        telling = {
            trial.index: trial
            for trial in [*running, *reversed(self._failed), *reversed(self._latest), *waiting[:MAX_ROWS]]
            if trial not in best
        }
        others = list(telling.values())[: MAX_ROWS - len(best)]
        return [*best, *sorted(others, key=lambda trial: trial.index)]

    def best_words(self) -> str:
        """Return the last report of the best trial, and the trial's id; '' where no trial is best."""
        best = self.best
        if best is None or self.metric is None:
            return ""
        value = lookup(best.last_result, self.metric)
        iteration = best.last_result.get("training_iteration", best.iteration)
        return f"best by last report: {self.metric}={value:.6g} at iteration {iteration} of {best.trial_id}"

    def best_config_words(self) -> str:
        """Return `best_words` with the configuration; or that none is best, as all trials have failed."""
        if self.all_failed and self.metric is not None:
            return f"best by last report: {NONE_BEST}"
        best = self.best
        return "" if best is None else f"{self.best_words()}: {config_words(best.config)}".removesuffix(": ")

    def progress_words(self, total: int | None) -> str:
        """Such as '12 of 20 trials: 2 RUNNING, 10 TERMINATED'."""
        of = "" if total is None else f" of {total}"
        return f"{self.created}{of} trials: {self.counts()}"


def config_words(config: Mapping[str, Any]) -> str:
    """A configuration in one line, its values shortened; one that would fill a screen is cut."""
    text = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={shortened(str(value), MAX_VALUE)}"
        for key, value in flatten(config).items()
    )
    return shortened(text, MAX_CONFIG)


def shortened(text: str, limit: int) -> str:
    """Return `text`, cut with a sign where it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


_SHORTER = (
    # The status beside it tells that it was stopped, and the rest that its scheduler did that.
    (re.compile(r"^(?:stopped|paused) by [^:]+: (?=rung |reached max_t)"), ""),
    (re.compile(r"(rung \S+) of bracket \d+"), r"\1"),
    (re.compile(r"(rank \d+) of (\d+)"), r"\1/\2"),
)


def short_reason(reason: str) -> str:
    """Why a trial stands where it does, in one line and in fewer words, for a table."""
    text = first_line(reason)
    for pattern, shorter in _SHORTER:
        text = pattern.sub(shorter, text)
    return text


def number_words(value: Any) -> str:
    """A metric's value, short; '' where it is no number."""
    return f"{value:.6g}" if is_number(value) else ""


def one_line(text: str) -> str:
    """Ends of lines, and what else a terminal would obey, become spaces."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def duration(seconds: float) -> str:
    """Such as '1.5 s', '2 min 5 s', '3 h 20 min'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
