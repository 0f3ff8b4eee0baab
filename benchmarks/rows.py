"""A figure as every benchmark reports it: its rounds, the other side's, and the machine's steadiness."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any

from benchmarks.aims import AIMS, NO_AIM, Aim

LESS, MORE = "less", "more"
STEADY = 0.03
"""If plain work varies by more than this share, the machine is too busy to judge."""


@dataclass(frozen=True)
class Row:
    """A figure, or its description before it is measured.

    Attributes:
        name: description, unique in a benchmark.
        unit: unit such as "ms" or "1/s"; "" for a count or a ratio.
        better: `LESS` or `MORE`; "" if neither is better.
        aim: aim for judging the row; a `Report` takes it from the table.
        exact: True if the value changes only when the code changes.
        rounds: values of the row.
        others: values of the other side by round, such as a plain loop, a bare limit or another library.
        itself: variation of plain work in the same run, as a share; a time is judged only if this is given.
        plain_s: seconds of the plain work; None if the other side is the plain work.
    """

    name: str
    unit: str = ""
    better: str = LESS
    aim: Aim = NO_AIM
    exact: bool = False
    rounds: Sequence[float] = ()
    others: Sequence[float] = ()
    itself: float | None = None
    plain_s: float | None = None

    def measured(
        self, rounds: Iterable[float], others: Iterable[float] = (), plain: Sequence[float] = ()
    ) -> Row:
        """Return the row with its values.

        Args:
            rounds: values of the row.
            others: values of the other side.
            plain: seconds of plain work, in the order of measurement; if empty, the other side is the plain
                work.
        """
        made = replace(self, rounds=tuple(rounds), others=tuple(others))
        if not self.timed:
            return made
        if not plain:
            return replace(made, itself=apart(made.others))
        return replace(made, itself=apart(plain), plain_s=statistics.median(plain))

    @property
    def timed(self) -> bool:
        """True if the figure depends on time."""
        return not self.exact and self.unit not in ("", "MB", "KB", "files")

    @property
    def value(self) -> float:
        """Median of the row's values."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float | None:
        """Spread of the row's values; None if it has only one."""
        return 0.0 if self.exact else spread(self.rounds)

    @property
    def other(self) -> float | None:
        """Median of the other side's values."""
        return statistics.median(self.others) if self.others else None

    @property
    def ratios(self) -> Sequence[float]:
        """Factors over the other side by round, so that load on both sides matters little."""
        pairs = list(zip(self.rounds, self.others, strict=len(self.others) > 0))
        if self.better == LESS:
            pairs = [(other, own) for own, other in pairs]
        return [up / down if down else float("inf") for up, down in pairs]

    @property
    def times(self) -> float | None:
        """Median factor over the other side."""
        return statistics.median(self.ratios) if self.others else None

    @property
    def steady(self) -> bool:
        """True if the machine was steady, or the figure does not depend on time."""
        return not self.timed or (self.itself is not None and self.itself <= STEADY)

    @property
    def verdict(self) -> str:
        """Return "met", "NOT MET" or "not judged"; "" if the row has no aim."""
        met = []
        if self.aim.value is not None:
            met.append(self.value >= self.aim.value if self.better == MORE else self.value <= self.aim.value)
        if self.aim.times is not None and self.times is not None:
            met.append(self.times >= self.aim.times)
        if not met or not self.steady:
            return "not judged" if met else ""
        return "met" if all(met) else "NOT MET"

    def as_json(self) -> dict[str, Any]:
        """Return the row for a record; value, spread, times, aims and verdict are only for readers."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        del found["aim"]
        found |= {"aim": self.aim.value, "aim_times": self.aim.times, "verdict": self.verdict}
        found |= {"value": self.value, "spread": self.spread, "times": self.times}
        empty: tuple[Any, ...] = (None, False, "", ())
        return {
            name: _rounded(each) for name, each in found.items() if not any(each is none for none in empty)
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Row:
        """Return the row from the output of `as_json`."""
        names = {field.name for field in fields(cls)} - {"aim"}
        return cls(**{"better": "", **{name: each for name, each in found.items() if name in names}})


def spread(values: Sequence[float]) -> float | None:
    """Return the range of the values without the outermost eighth on either side; None for one value."""
    outer = len(values) // 8
    kept = sorted(values)[outer : len(values) - outer]
    return kept[-1] - kept[0] if len(kept) > 1 else None


def apart(rounds: Sequence[float]) -> float | None:
    """Return the variation of the same work, as a share; None for one round.

    Half of the rounds are compared with the rest: every second round, the first half, the middle half. A load
    during half of the rounds, whenever it begins, affects one of these halves more than its rest.
    """
    count = len(rounds)
    if count < 2:
        return None
    middle = range(count // 4, count // 4 + count // 2)
    halves: list[Container[int]] = [range(0, count, 2), range(count // 2), middle]
    medians = (
        [
            statistics.median(each for at, each in enumerate(rounds) if (at in half) == inside)
            for inside in (True, False)
        ]
        for half in halves
    )
    return max(abs(one / other - 1) for one, other in medians)


class Report:
    """Printer of rows as they are measured, and at the end of all rows as a line of JSON.

    Args:
        benchmark: name of the benchmark.
        other: name of the other side.
        small: True: the work is too little for its figures to be judged.
    """

    def __init__(self, benchmark: str, other: str = "", *, small: bool = False) -> None:
        self._told: dict[str, Any] = {"benchmark": benchmark, "small": small, "rows": [], "skipped": {}}
        self._small = small
        self._itself: float | None = None
        self._aims = AIMS.get(benchmark, {})
        print(f"{'':<66}{'trainkit':>12} {'':<6}{other:>12}{'times':>8}{'aim':>15}", flush=True)

    def add(self, row: Row) -> None:
        """Print and store a row, with its aim."""
        row = replace(row, aim=self._aims.get(row.name, row.aim))
        self._told["rows"].append(row.as_json())
        times = "" if row.times is None else f"{row.times:.2f}" if row.times < 10 else f"{row.times:,.0f}"
        text = f"{row.name:<66}{shown(row.value):>12} {row.unit:<6}{shown(row.other):>12}{times:>8}"
        print(f"{text}{_aim(row):>15}  {'' if self._small else row.verdict}".rstrip(), flush=True)
        if row.itself not in (None, self._itself):
            print(f"  plain work was {row.itself:.1%} from itself", flush=True)
            self._itself = row.itself

    def skip(self, name: str, reason: str) -> None:
        """Record why a row is missing."""
        self._told["skipped"][name] = reason
        print(f"{name:<66}  skipped: {reason}", flush=True)

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            sys.stdout.write(json.dumps(self._told) + "\n")
            sys.stdout.flush()


def rows_of(printed: str) -> dict[str, Row]:
    """Return the rows by name, from all output of a benchmark."""
    return {row["name"]: Row.of_json(row) for row in json.loads(printed.splitlines()[-1])["rows"]}


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a benchmark's argument parser; it has a flag for the small form, which a test runs."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--small", action="store_true", help="little work: only shows that it runs")
    return made


def shown(value: float | None) -> str:
    """Return a figure with three significant digits."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aim(row: Row) -> str:
    value, times = row.aim
    aims = [] if value is None else [f"{'>=' if row.better == MORE else '<='} {value:,g}"]
    return ", ".join(aims + ([] if times is None else [f"{times:.3g}x"]))


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
