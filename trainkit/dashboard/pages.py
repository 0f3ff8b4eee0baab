"""HTML pages of the dashboard, as pure functions of what is known of an experiment, with curves as SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from trainkit.dashboard.reading import TrialRow, View
from trainkit.tune.core.metrics import flatten, without_objects
from trainkit.tune.core.trial import Trial
from trainkit.tune.display import duration

WIDTH, HEIGHT = 900, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 34
MAX_POINTS = 200
"""Points of one curve; a longer curve is thinned out."""
FARTHEST = 1e300
"""Farthest value from zero in a picture, so that differences of values are finite."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One line of the picture.

    Attributes:
        label: shown when the pointer is over the line.
        points: (x, y).
        stands_out: drawn on top and in a stronger colour.
    """

    label: str
    points: Points
    stands_out: bool = False


def picture(curves: Sequence[Curve], x_name: str, y_name: str) -> str:
    """Return the curves in one frame, or a line of text if there is no point."""
    drawn = [
        Curve(each.label, [(x, _near(y)) for x, y in thinned(each.points)], each.stands_out)
        for each in curves
        if each.points
    ]
    if not drawn:
        return f'<p class="quiet">No report has a finite {escape(y_name)} yet.</p>'
    xs = [x for curve in drawn for x, _ in curve.points]
    ys = [y for curve in drawn for _, y in curve.points]
    across = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _Axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="learning curves">']
    for value in up.ticks:
        y = up.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<text x="{across.place(value):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{value:g}</text>'
        for value in across.ticks
    ]
    parts += [_line(curve, across, up) for curve in sorted(drawn, key=lambda each: each.stands_out)]
    parts.append(f'<text class="name" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">')
    parts.append(f'{escape(x_name)}</text><text class="name" x="{LEFT}" y="10">{escape(y_name)}</text></svg>')
    return "".join(parts)


def thinned(points: Points, limit: int = MAX_POINTS) -> Points:
    """Return at most `limit` of the points, spread evenly, the first and the last among them."""
    if len(points) <= limit:
        return points
    step = (len(points) - 1) / (limit - 1)
    return [points[round(place * step)] for place in range(limit)]


def _near(value: float) -> float:
    return min(max(value, -FARTHEST), FARTHEST)


def _line(curve: Curve, across: _Axis, up: _Axis) -> str:
    kind = "best" if curve.stands_out else "one"
    title = f"<title>{escape(curve.label)}</title>"
    if len(curve.points) == 1:
        x, y = curve.points[0]
        at = f'cx="{across.place(x):.1f}" cy="{up.place(y):.1f}"'
        return f'<circle class="dot {kind}" {at} r="3">{title}</circle>'
    path = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in curve.points)
    return f'<polyline class="{kind}" points="{path}">{title}</polyline>'


class _Axis:
    """Axis from `low` to `high` between two edges of the frame."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        largest = max(abs(low), abs(high))
        if high - low <= max(largest * 1e-12, 1e-300):  # equal, up to rounding
            margin = max(0.5, largest * 0.1)
            low, high = low - margin, high + margin
        self._low, self._high, self._start, self._end = low, high, start, end

    def place(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    @property
    def ticks(self) -> list[float]:
        """About five round values on the axis."""
        rough = (self._high - self._low) / 5
        scale = 10.0 ** math.floor(math.log10(rough))
        step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough)
        first = math.ceil(self._low / step)
        count = math.floor(self._high / step) - first + 1
        return [float(f"{(first + place) * step:.12g}") for place in range(count)]


MAX_ROWS = 200
"""Rows of a table; the rest is behind a link."""

REFRESH = """<script>
const refresh = async () => {
  if (document.hidden || document.activeElement?.tagName === "INPUT") return;
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (document.activeElement?.tagName === "INPUT") return;
  document.querySelector("main").replaceWith(page.querySelector("main"));
};
const again = async () => {  // a page that takes long to make is asked for less often
  const begun = performance.now();
  await refresh().catch(() => {});
  setTimeout(again, Math.max(2000, 10 * (performance.now() - begun)));
};
setTimeout(again, 2000);
</script>"""


@dataclass(frozen=True)
class TableQuery:
    """Query of the table of trials: the text of the address after '?'.

    Attributes:
        sort: name of a column.
        falling: the largest first.
        search: text to look for in the cells.
        page: number of the page, from 0.
    """

    sort: str = "index"
    falling: bool = False
    search: str = ""
    page: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> TableQuery:
        """Read an address; defaults stand for parts that are missing or wrong."""
        page = query.get("page", "0")
        return cls(
            sort=query.get("sort", "index"),
            falling=query.get("falling") == "1",
            search=query.get("search", ""),
            page=int(page) if page.isdecimal() and len(page) < 10 else 0,
        )

    def address(self, **changes: Any) -> str:
        """Return the link to the table with these changes."""
        wanted = {**vars(self), **changes}
        texts = {
            name: str(int(value) if isinstance(value, bool) else value) for name, value in wanted.items()
        }
        return "?" + urlencode({name: text for name, text in texts.items() if text not in ("", "0")})


def listing(root: str, experiments: Sequence[View], problems: Sequence[str]) -> str:
    """Return the page of all experiments in a folder; `problems` are messages on unreadable files."""
    rows = [
        [
            f'<a href="experiments/{quote(each.name, safe="")}">{escape(each.name)}</a>',
            _state(each),
            _counts(each),
            escape(each.overview.best_words),
        ]
        for each in experiments
    ]
    body = f"<h1>Experiments</h1><p class=quiet>in {escape(root)}</p>"
    body += (
        _table(["experiment", "state", "trials", "best by last report"], rows)
        if rows
        else "<p>There is none yet.</p>"
    )
    body += "".join(f'<p class="ERROR">{escape(problem)}</p>' for problem in problems)
    return _page("Experiments", body)


def experiment(seen: View, curves: Sequence[Curve], query: TableQuery, token: str) -> str:
    """Return the page of an experiment: its state, its learning curves and the table of its trials."""
    best = seen.best
    tiles = [(str(count), status.lower()) for status, count in seen.overview.counted.items()]
    if (left := seen.overview.remaining_s) is not None:
        tiles.append((duration(left), "left, about"))
    if best is not None:
        tiles.append((f"{best.last:.6g}", f"{seen.overview.metric}, best by last report, of {best.trial_id}"))
    stop = _stop_form("stop", token, "Stop the experiment") if seen.overview.owner is not None else ""
    body = [
        f'<p><a href="../">Experiments</a></p><h1>{escape(seen.name)}</h1>',
        f"<p class=quiet>{_state(seen)}, in {escape(str(seen.overview.folder))} {stop}</p>",
        '<div class="tiles">',
        *(f'<div class="tile"><b>{number}</b>{escape(what)}</div>' for number, what in tiles),
        "</div>",
    ]
    if seen.overview.metric is not None:
        which = f" of the {len(curves)} best trials" if len(curves) < len(seen.ranked) else ""
        body += [f"<h2>Learning curves{which}</h2>", picture(curves, "iteration", seen.overview.metric)]
    body.append(f"<h2>Trials</h2>{_trials(seen, query)}")
    return _page(seen.name, "".join(body))


def trial(
    seen: View,
    row: TrialRow,
    kept: Trial,
    curve: Points,
    decisions: Sequence[Mapping[str, Any]],
    token: str,
) -> str:
    """Return the page of a trial: configuration, learning curve, last report, decisions, error."""
    stop = ""
    if seen.overview.owner is not None and not row.status.is_finished:
        stop = _stop_form(f"{quote(row.trial_id, safe='')}/stop", token, "Stop this trial")
    why = f": {escape(row.reason)}" if row.reason else ""
    back = quote(seen.name, safe="")
    body = [
        f'<p><a href="../../{back}">{escape(seen.name)}</a></p><h1>{escape(row.trial_id)}</h1>',
        f'<p><span class="{row.status}">{row.status}</span>{why} {stop}</p>',
        f"<h2>Configuration</h2>{_pairs(row.config)}",
    ]
    if seen.overview.metric is not None:
        line = Curve(row.trial_id, curve, stands_out=True)
        body += ["<h2>Learning curve</h2>", picture([line], "iteration", seen.overview.metric)]
    if last_result := flatten({name: value for name, value in kept.last_result.items() if name != "config"}):
        body.append(f"<h2>Last report</h2>{_pairs(last_result)}")
    if decisions:
        names = list(dict.fromkeys(name for decision in decisions for name in decision))
        rows = [[escape(_text(each.get(name, ""))) for name in names] for each in decisions]
        body.append(f"<h2>Decisions</h2>{_table(names, rows)}")
    if (failure := kept.failure) is not None:
        error = failure.traceback or f"{failure.kind}: {failure.message}"
        body.append(f"<h2>Error</h2><pre>{escape(error)}</pre>")
    body.append(f"<p class=quiet>kept in {escape(str(seen.overview.folder))}/{escape(kept.dirname)}</p>")
    return _page(row.trial_id, "".join(body))


def problem(title: str, text: str) -> str:
    """Return the page of an error."""
    return _page(title, f'<h1>{escape(title)}</h1><p>{escape(text)}</p><p><a href="/">Experiments</a></p>')


# --- the table of trials --------------------------------------------------------------------------


def columns(seen: View) -> dict[str, Callable[[TrialRow], Any]]:
    """Return the columns of the table by name, each with its value for a trial."""
    shown: dict[str, Callable[[TrialRow], Any]] = {
        "trial": lambda row: row.trial_id,
        "status": lambda row: str(row.status),
        "reports": lambda row: row.reports,
    }
    if seen.overview.metric is not None:
        shown[f"last {seen.overview.metric}"] = lambda row: row.last
        shown[f"best {seen.overview.metric}"] = lambda row: row.best
    for name in dict.fromkeys(name for row in seen.rows for name in row.config):
        shown[f"config/{name}" if name in shown else name] = lambda row, name=name: row.config.get(name)  # type: ignore[misc]
    return shown


def selected(seen: View, query: TableQuery) -> list[TrialRow]:
    """Return the trials of a query in its order; those without a value come last."""
    cells = columns(seen)
    rows = seen.rows
    if query.search:
        text = query.search.lower()
        rows = [
            row
            for row in rows
            if text in row.reason.lower() or any(text in _text(cell(row)).lower() for cell in cells.values())
        ]
    value = cells.get(query.sort)
    if value is None:
        return sorted(rows, key=lambda row: row.index, reverse=query.falling)
    there = [row for row in rows if value(row) is not None]
    numbers = all(isinstance(value(row), (int, float)) for row in there)
    there.sort(key=lambda row: value(row) if numbers else _text(value(row)), reverse=query.falling)
    return there + [row for row in rows if value(row) is None]


def _trials(seen: View, query: TableQuery) -> str:
    cells, rows = columns(seen), selected(seen, query)
    first = min(query.page, max(0, len(rows) - 1) // MAX_ROWS) * MAX_ROWS
    shown, best = rows[first : first + MAX_ROWS], seen.best
    heads = []
    for name in cells:
        here = query.sort == name
        link = query.address(sort=name, falling=here and not query.falling, page=0)
        mark = (" ↓" if query.falling else " ↑") if here else ""
        heads.append(f'<th><a href="{escape(link)}">{escape(name)}{mark}</a></th>')
    lines = []
    for row in shown:
        link = f"{quote(seen.name, safe='')}/trials/{quote(row.trial_id, safe='')}"
        texts = [escape(_text(cell(row))) for cell in cells.values()]
        texts[0] = f'<a href="{link}">{texts[0]}</a>'
        texts[1] = f'<span class="{row.status}">{texts[1]}</span>'
        filled = "".join(f"<td>{text}</td>" for text in texts)
        kind = ' class="best"' if best is not None and row.trial_id == best.trial_id else ""
        lines.append(f'<tr{kind}>{filled}<td class="long quiet">{escape(row.reason)}</td></tr>')
    pages = []
    if first > 0:
        pages.append(f'<a href="{escape(query.address(page=first // MAX_ROWS - 1))}">before</a>')
    if first + MAX_ROWS < len(rows):
        pages.append(f'<a href="{escape(query.address(page=first // MAX_ROWS + 1))}">next</a>')
    count = f"{len(rows)} of {len(seen.rows)}" if query.search else str(len(rows))
    search = f'<form><input name="search" value="{escape(query.search)}" placeholder="search"></form>'
    return (
        f'<p>{search} <span class="quiet">{count} trials</span> {" ".join(pages)}</p>'
        '<div class="wide"><table>'
        f"<thead><tr>{''.join(heads)}<th>why</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


# --- pieces ---------------------------------------------------------------------------------------


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>{escape(title)} - trainkit</title><link rel="stylesheet" href="/style.css"></head>'
        f"<body><main>{body}</main>{REFRESH}</body></html>"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the cells are HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _pairs(values: Mapping[str, Any]) -> str:
    return _table(
        ["name", "value"], [[escape(str(name)), escape(_text(value))] for name, value in values.items()]
    )


def _stop_form(action: str, token: str, words: str) -> str:
    hidden = f'<input type="hidden" name="token" value="{escape(token)}">'
    return f'<form method="post" action="{escape(action)}">{hidden}<button>{words}</button></form>'


def _state(seen: View) -> str:
    runs = seen.overview.owner is not None
    return f'<span class="{"RUNNING" if runs else "quiet"}">{escape(seen.overview.state)}</span>'


def _counts(seen: View) -> str:
    return ", ".join(
        f'<span class="{name}">{count} {name}</span>' for name, count in seen.overview.counted.items()
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(without_objects(value))
