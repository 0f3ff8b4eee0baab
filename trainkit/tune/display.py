"""Tables for terminals, notebooks and logs, and the progress of an experiment, which these tables show."""

from __future__ import annotations

import codecs
import heapq
import html
import io
import os
import re
import shlex
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.resources import describe_use
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.constraints import VIOLATION, is_feasible, violation_in
from trainkit.tune.core.metrics import first_line, flatten, lookup
from trainkit.tune.core.objectives import NONE_BEST, NONE_FEASIBLE, trial_score
from trainkit.tune.core.trial import STATES, Trial, TrialStatus

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MAX_ROWS = 16
"""Maximum number of trials in the table of an experiment."""
MAX_BEST = 8
"""Maximum number of best trials in the table while other trials run."""
MAX_CONFIG = 400
"""Maximum number of characters of a configuration's text."""
MAX_VALUE = 30
"""Maximum number of characters of one value in a configuration's text."""
WIDEST = 100_000
"""Line width, in characters, at which no line is folded or cut."""


# --- short texts ----------------------------------------------------------------------------------


def value_text(value: Any, limit: int | None = None, digits: int = 6) -> str:
    """Return a value as one line of text, cut to `limit`; a float gets `digits` significant digits."""
    text = f"{value:.{digits}g}" if isinstance(value, float) else one_line(str(value))
    return text if limit is None else shortened(text, limit)


def cell_text(value: Any, limit: int | None = None) -> str:
    """Return a value for a table cell; None gives an empty cell."""
    return "" if value is None else value_text(value, limit)


def pairs_text(values: Mapping[str, Any], limit: int | None = None, digits: int = 6) -> str:
    """Return names and values as a line, such as 'lr=0.001, net=wide'."""
    return ", ".join(f"{name}={value_text(value, limit, digits)}" for name, value in values.items())


def config_words(config: Mapping[str, Any]) -> str:
    """Return a configuration as one line; each value and the whole line are cut to a maximum length."""
    return shortened(pairs_text(flatten(config), MAX_VALUE, digits=4), MAX_CONFIG)


def number_words(value: Any) -> str:
    """Return a metric's value as text with six significant digits; '' if the value is not a number."""
    return f"{value:.6g}" if is_number(value) else ""


def count_words(count: int, noun: str) -> str:
    """Return a count with its noun, such as '1 report' or '2 reports'."""
    return f"{count} {noun}{'s' * (count != 1)}"


def shortened(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters with '...' at its end if it is longer."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_line(text: str) -> str:
    """Return `text` with spaces instead of line ends and other control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def duration(seconds: float) -> str:
    """Return a duration as text, such as '1.5 s', '2 min 5 s', '3 h 20 min' or '4 d 7 h'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


_SHORTER = (
    # These words are left out, because the status column says that the trial stopped, and a rung or max_t in
    # the reason implies that the scheduler stopped the trial.
    (re.compile(r"^(?:stopped|paused) by [^:]+: (?=rung |reached max_t)"), ""),
    (re.compile(r"(rung \S+) of bracket \d+"), r"\1"),
    (re.compile(r"(rank \d+) of (\d+)"), r"\1/\2"),
)


def short_reason(reason: str) -> str:
    """Return the reason for a trial's status as one line, abbreviated for a table."""
    text = first_line(reason)
    for pattern, shorter in _SHORTER:
        text = pattern.sub(shorter, text)
    return text


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Table for people, with lines of text above and below the rows.

    The library rich prints the table. If the table is too wide for the terminal, rich cuts the columns with
    the longest texts.

    Attributes:
        columns: headings of the columns.
        rows: cells of each row, one cell for each column.
        lines: lines of text above the rows.
        below: line of text below the rows, or "".
        strong: index of the most important line in `lines`, which is bold, or None.
        widths: minimum width of each column in a narrow terminal, in characters; () for no minimum.
    """

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()
    below: str = ""
    strong: int | None = None
    widths: Sequence[int] = ()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        def cell(text: str) -> Text:
            # A cell must not wrap, because rich drops columns with wrapped text instead of narrowing them.
            return Text(one_line(text), no_wrap=True, overflow="ellipsis")

        parts: list[RenderableType] = [
            Text(one_line(line), style="bold" if place == self.strong else "")
            for place, line in enumerate(self.lines)
        ]
        if self.rows:
            table = RichTable(box=None, pad_edge=False, header_style="bold")
            for place, column in enumerate(self.columns):
                table.add_column(cell(column), min_width=self.widths[place] if self.widths else None)
            for row in self.rows:
                table.add_row(*map(cell, row))
            parts.append(table)
        return Group(*parts, *([Text(one_line(self.below))] if self.below else []))

    def text(self) -> str:
        """Return the table as plain text with aligned columns."""
        output = io.StringIO()
        wide_console(output).print(self)
        return "\n".join(line.rstrip() for line in output.getvalue().rstrip("\n").split("\n"))

    def html(self) -> str:
        """Return the table as HTML for a notebook."""
        lines = [
            f"<b>{html.escape(line)}</b>" if place == self.strong else html.escape(line)
            for place, line in enumerate(self.lines)
        ]
        parts = [f"<div>{'<br>'.join(lines)}</div>"] if lines else []
        if self.columns:
            body = "".join(_html_row("td", row) for row in self.rows)
            head = _html_row("th", self.columns)
            parts.append(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>")
        if self.below:
            parts.append(f"<div>{html.escape(self.below)}</div>")
        return "".join(parts)


def _html_row(tag: str, cells: Iterable[str]) -> str:
    filled = "".join(f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{filled}</tr>"


def wide_console(file: Any = None) -> Console:
    """Return a rich console that does not fold, cut or highlight lines and reads no markup.

    Args:
        file: file to write to; None: standard output, in colours if it is a terminal.
    """
    from rich.console import Console

    return Console(
        file=file,
        width=WIDEST,
        color_system="auto" if file is None else None,
        force_jupyter=False,
        highlight=False,
        emoji=False,
        markup=False,
    )


# --- outputs --------------------------------------------------------------------------------------


class Display(Protocol):
    """Output that shows a table repeatedly and replaces the previous table each time."""

    def show(self, table: Table) -> None:
        """Show this table in place of the previous table."""

    def close(self) -> None:
        """Stop updating; the last table stays visible."""


class TerminalDisplay:
    """Block of lines in a terminal; other output appears above the block."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def show(self, table: Table) -> None:
        self._live.update(table, refresh=True)

    def close(self) -> None:
        self._live.stop()


class NotebookDisplay:
    """Output of a notebook cell, as HTML, and as text for front ends without HTML.

    Args:
        display: the function IPython.display.display.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, *tables: Table) -> None:
        output = {
            "text/html": "".join(table.html() for table in tables),
            "text/plain": "\n".join(table.text() for table in tables),
        }
        if self._handle is None:
            self._handle = self._display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        pass


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` in a notebook; None elsewhere, including IPython in a terminal."""
    ipython = sys.modules.get("IPython")  # in a notebook, the kernel has already imported IPython
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


def has_screen() -> bool:
    """Return True if standard output is a terminal that can redraw a block and prints UTF-8."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


Say = Callable[[str], None]
"""Function that prints a line."""


def say(line: str) -> None:
    """Print a line; escape characters that the encoding of standard output lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


QUIET_S = 1.0
"""Seconds of a wait at the end of an experiment after which a line explains the wait."""


def wait_saying(what: str, wait: Callable[[float], object], timeout_s: float, say: Say) -> None:
    """Wait for at most `timeout_s`, and print a line if the wait takes more than a second.

    Args:
        what: description of the awaited event, for the line.
        wait: function that waits for at most the given number of seconds, and returns a true value as soon as
            the event has occurred.
        timeout_s: maximum seconds of both calls of `wait` together.
        say: function that prints the line.
    """
    if wait(min(QUIET_S, timeout_s)) or timeout_s <= QUIET_S:
        return
    say(f"waiting for {what}, up to {timeout_s:g} s")
    wait(timeout_s - QUIET_S)


# --- progress -------------------------------------------------------------------------------------


class ExperimentProgress:
    """Counts and best trials of an experiment.

    An update reads only trials that are new or were unfinished before.

    Args:
        metric, mode: criterion for the best trial, applied to last reports; None: no trial counts as the
            best.
        started: start time in seconds.

    Attributes:
        ranked: the best trials at the last `look`, best first, at most MAX_ROWS.
    """

    def __init__(self, metric: str | None, mode: str | None, started: float) -> None:
        self.metric = metric
        self.mode = mode
        self.started = started
        self.ranked: list[Trial] = []
        self._leaders: list[tuple[float, float, int, Trial]] = []
        """Violation, negative score, index and trial of the best ended trials, best first."""
        self._known = 0
        self._open: list[Trial] = []
        self._ended: Counter[str] = Counter()
        self._latest: deque[Trial] = deque(maxlen=MAX_ROWS)
        self._failed: deque[Trial] = deque(maxlen=MAX_ROWS)

    def look(self, trials: Sequence[Trial]) -> None:
        """Update the counts; `trials` are all trials, in the order of suggestion."""
        candidates = [*self._open, *trials[self._known :]]
        self._known = len(trials)
        self._open = [trial for trial in candidates if not trial.status.is_finished]
        ended = [trial for trial in candidates if trial.status.is_finished]
        self._ended.update(trial.state for trial in ended)
        self._latest.extend(ended)
        self._failed.extend(trial for trial in ended if trial.status is TrialStatus.ERROR)
        self._leaders = heapq.nsmallest(MAX_ROWS, [*self._leaders, *self._scored(ended)])
        best = heapq.nsmallest(MAX_ROWS, [*self._leaders, *self._scored(self._open)])
        self.ranked = [trial for *_, trial in best]

    def _scored(self, trials: Sequence[Trial]) -> list[tuple[float, float, int, Trial]]:
        """Return the key and the trial of each trial whose last report has a finite metric."""
        # Without a mode, no value of the metric is better than another value.
        if self.metric is None or self.mode is None:
            return []
        found = []
        for trial in trials:
            score = trial_score([trial.last_result], self.metric, self.mode, "last", keep_all=False)
            if score is not None:
                found.append((violation_in([trial.last_result]), -score, trial.index, trial))
        return found

    @property
    def best(self) -> Trial | None:
        """The trial with the best last report; of equal trials, the trial that was suggested first.

        None if no feasible last report has the metric, or if all trials have failed.
        """
        feasible = (trial for trial in self.ranked[:1] if is_feasible(trial.last_result))
        return None if self.all_failed else next(feasible, None)

    @property
    def all_failed(self) -> bool:
        """True if at least one trial exists and every trial has failed."""
        return 0 < self._known == self._ended["failed"]

    @property
    def created(self) -> int:
        """Number of trials created so far."""
        return self._known

    @property
    def ended(self) -> int:
        """Number of trials that have ended, successfully or not."""
        return self._ended.total()

    @property
    def only_waits(self) -> bool:
        """True if at least one trial is unfinished, and all unfinished trials are pending."""
        return {trial.status for trial in self._open} == {TrialStatus.PENDING}

    def counts(self) -> str:
        """Return the number of trials in each state, such as '3 running, 10 finished, 2 stopped'."""
        numbers = Counter(trial.state for trial in self._open) + self._ended
        return ", ".join(f"{numbers[state]} {state}" for state in STATES if numbers[state]) or "no trial yet"

    def failed_words(self, path: str) -> str:
        """Return the command that shows the latest traceback; '' without a failed trial or a `path`."""
        if not self._failed or not path:
            return ""
        latest = self._failed[-1].trial_id
        return f"traceback of the latest failed trial: trainkit why {shlex.quote(path)} {latest}"

    def shown(self, *, ended: bool = False) -> list[Trial]:
        """Return at most MAX_ROWS trials for a table, the best trials first, in order of score.

        The other rows show running, failed and recently ended trials, in the order of suggestion.

        Args:
            ended: True if the experiment has ended; the best trials may then take all rows.
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
        """Return text with the metric in the best trial's last report; '' without a best trial."""
        best = self.best
        if best is None or self.metric is None:
            return ""
        value = lookup(best.last_result, self.metric)
        iteration = best.last_result.get("training_iteration", best.iteration)
        return f"best by last report: {self.metric}={value:.6g} at iteration {iteration} of {best.trial_id}"

    def best_config_words(self) -> str:
        """Return text with the best trial's metric and configuration, or text that says that all trials have
        failed.
        """
        if self.all_failed and self.metric is not None:
            return f"best by last report: {NONE_BEST}"
        best = self.best
        if best is None and self.ranked:
            nearest = self.ranked[0]
            by = f"{violation_in([nearest.last_result]):.4g}, of {nearest.trial_id}"
            return f"best by last report: {NONE_FEASIBLE}; the smallest violation is {by}"
        return "" if best is None else f"{self.best_words()}: {config_words(best.config)}".removesuffix(": ")

    def progress_words(self, total: int | None) -> str:
        """Return the progress as text, such as '12 of 20 trials: 2 running, 10 finished'."""
        of = "" if total is None else f" of {total}"
        return f"{self.created}{of} trials: {self.counts()}"


_METRIC = "metric"
_WIDTHS = {
    "trial": 10,
    "state": 11,
    "iteration": 9,
    _METRIC: 10,
    "seconds": 7,
    "parameters": 10,
    "why": 10,
}
"""Columns of the table of trials, each with its minimum width in a narrow terminal, in characters."""


def progress_table(
    progress: ExperimentProgress, info: Mapping[str, Any], path: str, ending: str = ""
) -> Table:
    """Return the table of an experiment for the console.

    Args:
        progress: progress of the experiment.
        info: arguments that callbacks receive at the end of a step.
        path: folder of the experiment; "" if the experiment is kept in memory only.
        ending: reason for the end of the experiment; "" while the experiment runs.
    """
    elapsed, left = duration(info["time"] - progress.started), info.get("remaining_s")
    clock = f"{elapsed} gone" + (f", about {duration(left)} left" if left else "")
    lines = [
        f"ended after {elapsed}: {ending}" if ending else clock,
        "; ".join(filter(None, [progress.progress_words(info["total_samples"]), info.get("waits")])),
        f"in use: {describe_use(info['resources_used'], info['resources'])}",
        f"kept in {path or 'memory'}",
        *filter(None, [progress.best_config_words()]),
        *filter(None, [progress.failed_words(path)] if ending else []),
        *([f"look closer: trainkit dashboard {shlex.quote(path)}"] if ending and path else []),
    ]
    shown, best = progress.shown(ended=bool(ending)), progress.best
    below = f"{len(shown)} of {progress.created} trials"
    if best is not None:
        below += f", best last {progress.metric} ({progress.mode}) first"
    cells = [_progress_cells(trial, progress.metric) for trial in shown]
    columns = [
        name
        for name in _WIDTHS
        if (name != _METRIC or progress.metric) and (name != "parameters" or any(row[name] for row in cells))
    ]
    return Table(
        [progress.metric or "" if name == _METRIC else name for name in columns],
        [[row[name] for name in columns] for row in cells],
        lines,
        below=below if best is not None or len(shown) < progress.created else "",
        strong=4 if best is not None else None,
        widths=[_WIDTHS[name] for name in columns],
    )


def infeasible_words(report: Mapping[str, Any]) -> str:
    """Return text about the violation of constraints by a report, such as 'infeasible by 0.15'; else ''."""
    if not report or is_feasible(report):
        return ""
    violation = report[VIOLATION]
    return f"infeasible by {violation:.3g}" if violation == violation else "not known to be feasible"


def _progress_cells(trial: Trial, metric: str | None) -> dict[str, str]:
    result = trial.last_result
    seconds = number_words(result.get("time_total_s"))
    return {
        "trial": trial.trial_id,
        "state": trial.state,
        "iteration": str(trial.iteration or ""),
        _METRIC: number_words(lookup(result, metric)) if metric else "",
        "seconds": f"{float(seconds):.1f}" if seconds else "",
        "parameters": config_words(trial.evaluated_params),
        "why": "; ".join(filter(None, [infeasible_words(result), short_reason(trial.reason)])),
    }
