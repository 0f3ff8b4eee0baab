"""The table of trials: one block that updates in a terminal, short lines where there is none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.resources import describe
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.checks import is_number
from trainkit.tune.schedulers.base import score_of
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import lookup

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

REFRESH_S = 0.5
"""Between two drawings in a terminal."""
MAX_ROWS = 16


class Standing:
    """Where the experiment stands: what a table or a line is made of. Pure."""

    def __init__(self, metric: str | None, mode: str | None, started: float) -> None:
        self.metric = metric
        self.mode = mode
        self.started = started
        self.best: tuple[float, Trial, dict[str, Any]] | None = None

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

    def counts(self, trials: Sequence[Trial]) -> str:
        """Such as '3 RUNNING, 12 TERMINATED'."""
        numbers = Counter(trial.status for trial in trials)
        return (
            ", ".join(f"{numbers[status]} {status}" for status in TrialStatus if numbers[status])
            or "no trial yet"
        )

    def best_words(self) -> str:
        """The best report so far, and whose it is; '' before there is one."""
        if self.best is None or self.metric is None:
            return ""
        _, trial, result = self.best
        return (
            f"best {self.metric}={lookup(result, self.metric):.6g} "
            f"at iteration {result['training_iteration']} of {trial.trial_id}"
        )

    def remaining_s(self, trials: Sequence[Trial], total: int | None, now: float) -> float | None:
        """Seconds left if trials go on ending at the rate so far; None before that says much."""
        ended = sum(trial.status.is_finished for trial in trials)
        if total is None or ended < max(2, total // 4):
            return None
        return (now - self.started) / ended * (total - ended)


class ConsoleCallback(Callback):
    """Shows how the experiment goes, on standard output.

    Args:
        live: True for a block that updates; None: where standard output is a terminal.
    """

    def __init__(self, live: bool | None = None) -> None:
        self._live_wanted = live
        self._live: Live | None = None
        self._standing = Standing(None, None, 0.0)
        self._drawn = 0.0
        self._path = ""

    def setup(self, stop: Any = None, num_samples: int | None = None, **info: Any) -> None:
        self._standing = Standing(info["metric"], info["mode"], info["time"])
        self._path = info["experiment_path"]
        for trial, results in info["past"]():
            for result in results:
                self._standing.take(trial, result)
        live = sys.stdout.isatty() if self._live_wanted is None else self._live_wanted
        if live:
            from rich.live import Live

            self.refresh_s = REFRESH_S
            self._live = Live(auto_refresh=False)
            self._live.start()
        else:
            _say(f"Tuning in {info['experiment_path']}, with {describe(info['resources'])}")

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        self._standing.take(trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._line(trials, trial)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._line(trials, trial)

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if self._live is not None and info["time"] - self._drawn >= REFRESH_S:
            self._draw(trials, info)

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        if self._live is not None:
            self._draw(trials, info)
            self._live.stop()
            self._live = None
            return
        elapsed = duration(info["time"] - self._standing.started)
        _say(
            ". ".join(
                filter(None, [f"{self._standing.counts(trials)} in {elapsed}", self._standing.best_words()])
            )
        )

    def _line(self, trials: Sequence[Trial], trial: Trial) -> None:
        if self._live is not None:
            return
        metric = self._standing.metric
        value = lookup(trial.last_result, metric) if metric else None
        shown = f" {metric}={value:.6g}" if is_number(value) else ""
        _say(f"{trial.trial_id} {trial.status} after {trial.iteration} reports{shown}: {trial.reason}"[:200])

    def _draw(self, trials: Sequence[Trial], info: Mapping[str, Any]) -> None:
        self._drawn = info["time"]
        if self._live is not None:
            self._live.update(self._table(trials, info), refresh=True)

    def _table(self, trials: Sequence[Trial], info: Mapping[str, Any]) -> RenderableType:
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table

        standing, now = self._standing, info["time"]
        left = standing.remaining_s(trials, info["total_samples"], now)
        total = info["total_samples"]
        heading = [
            f"{duration(now - standing.started)} gone" + (f", about {duration(left)} left" if left else ""),
            f"{len(trials)} of {'endless' if total is None else total} trials: {standing.counts(trials)}",
            f"in use: {describe(info['resources_used'])} of {describe(info['resources'])}",
            f"kept in {escape(self._path)}",
        ]
        if standing.best is not None:
            config = ", ".join(f"{key}={_short(value)}" for key, value in standing.best[1].config.items())
            heading.append(f"[bold]{escape(standing.best_words())}[/bold]: {escape(config)}")
        table = Table(box=None, pad_edge=False, header_style="bold")
        # The name and the reason give way when the terminal is narrow; the numbers don't.
        widths = {
            "trial": 12,
            "status": 10,
            "iteration": 9,
            standing.metric or "": 11,
            "seconds": 7,
            "why": 12,
        }
        for column, width in widths.items():
            table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=width)
        shown = _most_telling(trials)
        for trial in shown:
            table.add_row(*map(escape, _cells(trial, standing.metric)))
        if len(trials) > len(shown):
            table.add_row(f"and {len(trials) - len(shown)} more")
        return Group(*heading, table)


def _most_telling(trials: Sequence[Trial]) -> list[Trial]:
    """Those that run, then those that failed, then the latest; in the order suggested."""
    rank = {TrialStatus.RUNNING: 0, TrialStatus.ERROR: 1}
    first = sorted(trials, key=lambda trial: (rank.get(trial.status, 2), -trial.index))[:MAX_ROWS]
    return sorted(first, key=lambda trial: trial.index)


def _cells(trial: Trial, metric: str | None) -> list[str]:
    result = trial.last_result
    value = lookup(result, metric) if metric else None
    return [
        trial.tag[:40] or trial.trial_id,
        str(trial.status),
        str(trial.iteration or ""),
        f"{value:.6g}" if is_number(value) else "",
        f"{result['time_total_s']:.1f}" if is_number(result.get("time_total_s")) else "",
        trial.reason,
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:30]


def duration(seconds: float) -> str:
    """Such as '1.5 s', '2 min 5 s', '3 h 20 min'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
