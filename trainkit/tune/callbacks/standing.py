"""Where an experiment stands: what a table or a line is made of. Counted as it goes on; pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.checks import is_number
from trainkit.tune.schedulers.base import score_of
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import first_line, flatten, lookup

MAX_ROWS = 16
"""Of trials, in a table."""
MAX_CONFIG = 400
"""Characters of a configuration."""


class Standing:
    """Knows all trials, and looks only at those that are new or have not ended.

    Args:
        metric, mode: what "best" means; None: there is no best.
        started: when, in seconds.
    """

    def __init__(self, metric: str | None, mode: str | None, started: float) -> None:
        self.metric = metric
        self.mode = mode
        self.started = started
        self.best: tuple[float, Trial, dict[str, Any]] | None = None
        self._known = 0
        self._open: list[Trial] = []
        self._ended: Counter[TrialStatus] = Counter()
        self._latest: deque[Trial] = deque(maxlen=MAX_ROWS)
        self._failed: deque[Trial] = deque(maxlen=MAX_ROWS)

    def take(self, trial: Trial, result: Mapping[str, Any]) -> bool:
        """Note a report; True if it is the best so far."""
        value = lookup(result, self.metric) if self.metric else None
        if not is_number(value):
            return False
        score = score_of(value, self.mode)
        if score == float("-inf") or (self.best is not None and score <= self.best[0]):
            return False
        self.best = (score, trial, dict(result))
        return True

    def look(self, trials: Sequence[Trial]) -> None:
        """Note what has become of the trials: `trials` is all of them, in the order suggested."""
        candidates = [*self._open, *trials[self._known :]]
        self._known = len(trials)
        self._open = []
        for trial in candidates:
            if not trial.status.is_finished:
                self._open.append(trial)
                continue
            self._ended[trial.status] += 1
            self._latest.append(trial)
            if trial.status is TrialStatus.ERROR:
                self._failed.append(trial)

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

    def shown(self) -> list[Trial]:
        """At most MAX_ROWS trials: those that run, then those that failed, then the latest; as suggested."""
        running = [trial for trial in self._open if trial.status is TrialStatus.RUNNING]
        waiting = [trial for trial in self._open if trial.status is not TrialStatus.RUNNING]
        telling = {
            trial.index: trial
            for trial in [*running, *reversed(self._failed), *reversed(self._latest), *waiting[:MAX_ROWS]]
        }
        return sorted(list(telling.values())[:MAX_ROWS], key=lambda trial: trial.index)

    def best_words(self) -> str:
        """The best report so far, and whose it is; '' before there is one."""
        if self.best is None or self.metric is None:
            return ""
        _, trial, result = self.best
        return (
            f"best {self.metric}={lookup(result, self.metric):.6g} "
            f"at iteration {result['training_iteration']} of {trial.trial_id}"
        )

    def best_config(self) -> str:
        """The configuration of the best report, in one line."""
        return "" if self.best is None else config_words(self.best[1].config)

    def progress_words(self, total: int | None) -> str:
        """Such as '12 of 20 trials: 2 RUNNING, 10 TERMINATED'."""
        of = "" if total is None else f" of {total}"
        return f"{self.created}{of} trials: {self.counts()}"


def config_words(config: Mapping[str, Any]) -> str:
    """A configuration in one line, its values shortened; one that would fill a screen is cut."""
    text = ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={str(value)[:30]}"
        for key, value in flatten(config).items()
    )
    return text if len(text) <= MAX_CONFIG else f"{text[: MAX_CONFIG - 3]}..."


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
