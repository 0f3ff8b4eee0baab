"""Changes between two records beyond their noise: `python -m benchmarks.compare BEFORE AFTER [--all]`.

A row has changed if its medians differ by more than the spread of its rounds in either record, and by more
than the variation of plain work. A row with another side, such as a plain loop, is compared by its factor
over that side, so that a slower machine matters little. A row is not judged if its plain work varied by more
than 3%, or if it was measured once. A time without another side is also not judged if plain work took 3%
longer or shorter than in the other record. The exit code is 1 if a row is worse.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rows import MORE, STEADY, Row, shown, spread

BETTER, WORSE, CHANGED, EQUAL, NEW, GONE = "better", "WORSE", "changed", "equal", "new", "gone"
UNSTEADY, ONCE, ELSEWHERE = "unsteady", "measured once", "another machine"
PACE, UNLIKE = "another pace", "not comparable"

Rows = Mapping[tuple[str, str], Row]
"""Rows by benchmark and name."""


class Change(NamedTuple):
    """Verdict on a row, with the row before and after."""

    benchmark: str
    name: str
    verdict: str
    before: Row | None
    after: Row | None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the changes of all rows of two records."""
    old, new, same = _rows(before), _rows(after), before["machine"] == after["machine"]
    return [
        Change(*key, verdict(old.get(key), new.get(key), same_machine=same), old.get(key), new.get(key))
        for key in [*new, *(key for key in old if key not in new)]
    ]


def verdict(before: Row | None, after: Row | None, *, same_machine: bool = True) -> str:
    """Return the verdict on a row."""
    if before is None or after is None:
        return NEW if before is None else GONE
    if (before.unit, before.better) != (after.unit, after.better):
        return UNLIKE
    if not (before.steady and after.steady):
        return UNSTEADY
    held = bool(before.others and after.others)
    if not (same_machine or held) and after.timed:
        return ELSEWHERE
    if not held and before.plain_s and after.plain_s and abs(after.plain_s / before.plain_s - 1) > STEADY:
        return PACE
    figures = [_figure(row, held=held) for row in (before, after)]
    noises = [noise for _, noise in figures if noise is not None]
    if len(noises) < 2:
        return ONCE
    rise = figures[1][0] - figures[0][0]
    if abs(rise) <= max(noises):
        return EQUAL
    if not after.better:
        return CHANGED
    return BETTER if (rise > 0) == (held or after.better == MORE) else WORSE


def _figure(row: Row, *, held: bool) -> tuple[float, float | None]:
    """Return the figure that is compared, and its noise."""
    value, apart = (row.times or 0.0, spread(row.ratios)) if held else (row.value, row.spread)
    if row.exact:
        return value, 0.0
    return value, None if apart is None else max(apart, abs(value) * (row.itself or 0.0))


def _rows(record: Mapping[str, Any]) -> Rows:
    return {
        (benchmark, row["name"]): Row.of_json(row)
        for benchmark, told in record["benchmarks"].items()
        for row in told.get("rows", ())
    }


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[str]:
    """Yield the facts of machine, versions and load that differ."""
    for part in ("machine", "versions", "load"):
        old, new = before.get(part, {}), after.get(part, {})
        for name in [*new, *(name for name in old if name not in new)]:
            if old.get(name) != new.get(name):
                yield f"{part}: {name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
    for when, record in (("before", before), ("after", after)):
        if record.get("small"):
            yield f"{when}: little work, which only shows that the benchmarks run"
        for benchmark, told in record["benchmarks"].items():
            if "error" in told:
                yield f"{when}: {benchmark} {told['error']}"


def line(change: Change) -> str:
    """Return a text on a change: its values, and its factors over the other side."""
    cells = []
    for row in (change.before, change.after):
        times = "" if row is None or row.times is None else f" ({row.times:.2f}x)"
        cells.append("none" if row is None else f"{shown(row.value)} {row.unit}".rstrip() + times)
    row = change.after or change.before
    if change.verdict == PACE and change.before is not None and change.after is not None:
        longer = (change.after.plain_s or 0.0) / (change.before.plain_s or 1.0) - 1
        cells[1] += f"; plain work took {longer:+.0%}"
    direction = "" if row is None or not row.better else f"; {row.better} is better"
    name = f"{change.benchmark}: {change.name}"
    return f"{change.verdict:<14} {name:<72} {cells[0]:>20} -> {cells[1]:<20}{direction}"


def main() -> int:
    """Print the changes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a record of `make bench`")
    parser.add_argument("after", type=Path, help="another")
    parser.add_argument("--all", action="store_true", help="print rows that are equal or not judged, too")
    given = parser.parse_args()
    before, after = (json.loads(path.read_text()) for path in (given.before, given.after))
    for fact in differing(before, after):
        print(fact)
    found = changes(before, after)
    for change in found:
        if given.all or change.verdict in (BETTER, WORSE, CHANGED, UNLIKE, NEW, GONE):
            print(line(change))
    counts = Counter(change.verdict for change in found)
    print("; ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "no rows")
    return int(counts[WORSE] > 0)


if __name__ == "__main__":
    sys.exit(main())
