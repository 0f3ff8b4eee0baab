"""Progress of an experiment as text and tables for the terminal, the notebook and the log."""

from __future__ import annotations

import codecs
import heapq
import html
import os
import re
import shlex
import sys
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.resources import describe_use
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.objectives import NONE_BEST, trial_score
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.core.values import first_line, flatten, lookup

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


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


METRIC = "metric"
COLUMNS = {
    "trial": 10,
    "status": 10,
    "iteration": 9,
    METRIC: 10,
    "seconds": 7,
    "parameters": 10,
    "why": 10,
}
"""Of the table of trials, with the width that each keeps in a narrow terminal."""


@dataclass(frozen=True)
class Picture:
    """What is to be shown.

    Attributes:
        lines: above the table.
        columns: their names, with the width that each keeps in a narrow terminal.
        rows: texts, one for each column.
        below: a line below the table; "": none.
        strong: the line of `lines` that matters most; None: none does.
    """

    lines: Sequence[str]
    columns: Mapping[str, int]
    rows: Sequence[Sequence[str]]
    below: str = ""
    strong: int | None = None


def table_of(standing: Standing, info: Mapping[str, Any], path: str, ending: str = "") -> Picture:
    """The experiment as the console shows it.

    Args:
        standing: of the experiment.
        info: what callbacks hear at a step's end.
        path: of the experiment's folder; "": it is not kept.
        ending: why it has ended; "" while it runs.
    """
    now, total = info["time"], info["total_samples"]
    left = info.get("remaining_s")
    clock = f"{duration(now - standing.started)} gone"
    if ending:
        clock = f"ended after {duration(now - standing.started)}: {ending}"
    elif left:
        clock += f", about {duration(left)} left"
    lines = [
        clock,
        standing.progress_words(total),
        f"in use: {describe_use(info['resources_used'], info['resources'])}",
        f"kept in {path or 'memory'}",
    ]
    best = standing.best
    if words := standing.best_config_words():
        lines.append(words)
    if ending and (failed := standing.failed_words(path)):
        lines.append(failed)
    shown = standing.shown(ended=bool(ending))
    below = f"{len(shown)} of {standing.created} trials"
    if best is not None:
        below += f", best last {standing.metric} ({standing.mode}) first"
    table = [_cells(trial, standing.metric) for trial in shown]
    metric = standing.metric or ""
    idle = {METRIC if not metric else "", "" if any(row["parameters"] for row in table) else "parameters"}
    columns = [name for name in COLUMNS if name not in idle]
    if metric in COLUMNS and metric != METRIC:
        metric += " "  # a column beside ours of that name
    headings = {metric if name == METRIC else name: COLUMNS[name] for name in columns}
    return Picture(
        lines,
        headings,
        [[row[name] for name in columns] for row in table],
        below=below if best is not None or len(shown) < standing.created else "",
        strong=4 if best is not None else None,
    )


def _cells(trial: Trial, metric: str | None) -> dict[str, str]:
    result = trial.last_result
    seconds = number_words(result.get("time_total_s"))
    return {
        "trial": trial.trial_id,
        "status": str(trial.status),
        "iteration": str(trial.iteration or ""),
        METRIC: number_words(lookup(result, metric)) if metric else "",
        "seconds": f"{float(seconds):.1f}" if seconds else "",
        "parameters": config_words(trial.evaluated_params),
        "why": short_reason(trial.reason),
    }


def in_terminal(picture: Picture) -> RenderableType:
    """For rich: what is too wide is cut, the names and reasons first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    # Each text says itself that it is not wrapped: columns that do are not narrowed, but left out.
    cell = partial(Text, no_wrap=True, overflow="ellipsis")
    for column, width in picture.columns.items():
        table.add_column(cell(one_line(column)), min_width=width)
    for row in picture.rows:
        table.add_row(*map(cell, map(one_line, row)))
    lines = [
        Text(one_line(line), style="bold" if place == picture.strong else "")
        for place, line in enumerate(picture.lines)
    ]
    return Group(*lines, table, *([Text(picture.below)] if picture.below else []))


def as_html(picture: Picture) -> str:
    """For a notebook."""
    lines = [
        f"<b>{html.escape(line)}</b>" if place == picture.strong else html.escape(line)
        for place, line in enumerate(picture.lines)
    ]
    head = "".join(f"<th style='text-align:left'>{html.escape(column)}</th>" for column in picture.columns)
    cells = [
        "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
        for row in picture.rows
    ]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    below = f"<div>{html.escape(picture.below)}</div>" if picture.below else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if picture.rows else ""
    return f"<div>{'<br>'.join(lines)}</div>{table}{below}"


def as_text(picture: Picture) -> str:
    """For where nothing else is understood: aligned columns."""
    text = list(map(one_line, picture.lines))
    if picture.rows:
        table = [[*map(one_line, row)] for row in [list(picture.columns), *picture.rows]]
        widths = [max(_places(row[place]) for row in table) for place in range(len(picture.columns))]
        text += [
            "  ".join(
                cell + " " * (width - _places(cell)) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in table
        ]
    return "\n".join([*text, *([picture.below] if picture.below else [])])


def _places(text: str) -> int:
    """How many characters wide a terminal shows it."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


Say = Callable[[str], None]
"""Prints a line for whoever reads along."""


class Outlet(Protocol):
    """Shows pictures, each in place of the last."""

    def show(self, picture: Picture) -> None:
        """Show this one."""

    def close(self) -> None:
        """The last one stays."""


class Terminal:
    """A block of a terminal; what is printed meanwhile appears above it."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live: Live = Live(auto_refresh=False)
        self._live.start()

    def show(self, picture: Picture) -> None:
        self._live.update(in_terminal(picture), refresh=True)

    def close(self) -> None:
        self._live.stop()


class Notebook:
    """One output of a notebook's cell, as HTML, and as text for front ends that know no HTML.

    Args:
        display: IPython's.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, *pictures: Picture) -> None:
        output = {
            "text/html": "".join(map(as_html, pictures)),
            "text/plain": "\n".join(map(as_text, pictures)),
        }
        if self._handle is None:
            self._handle = self._display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        pass


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` if this runs in a notebook's kernel; None elsewhere, a terminal's IPython too."""
    ipython = sys.modules.get("IPython")  # imported by the kernel long before
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


def has_screen() -> bool:
    """Whether standard output is a terminal in which a block can be drawn anew, of any letters."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


QUIET_S = 1.0
"""Seconds that the end of an experiment waits for something before it says so."""


def wait_saying(what: str, wait: Callable[[float], object], timeout_s: float, say: Say) -> None:
    """Call `wait` with seconds to wait, and again for the rest of `timeout_s`, which `say` is told of.

    Args:
        what: is waited for, in words.
        wait: returns as soon as there is nothing more to wait for.
        timeout_s: for both together.
        say: prints a line; not called where the first wait was enough.
    """
    if wait(min(QUIET_S, timeout_s)) or timeout_s <= QUIET_S:
        return
    say(f"waiting for {what}, up to {timeout_s:g} s")
    wait(timeout_s - QUIET_S)


def say(line: str) -> None:
    """Print a line, for whoever reads along; letters that the output can't hold are spelled out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
