"""A figure as every benchmark gives it: its rounds, the other side's, and how steady the machine was."""

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
"""Further than this part from itself, plain work says that the machine is too busy to judge by."""


@dataclass(frozen=True)
class Row:
    """A figure, or before it is measured what it will be.

    Attributes:
        name: its words, once in a benchmark.
        unit: such as "ms" or "1/s"; "" for a count or a ratio.
        better: `LESS` or `MORE`; "" if neither is.
        aim: that the row is judged by, which a `Report` takes from the table.
        exact: the same each time, but for a change of the code.
        rounds: its values.
        others: those of the other side, round by round: of a plain loop, a bare limit, another library.
        itself: how far plain work in the same run is from itself, as a part of 1; no time is judged without.
        plain_s: seconds that this plain work takes; None where the other side is the plain work.
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
            rounds: its values.
            others: those of the other side.
            plain: seconds of plain work, in the order of the looks; without it, the other side is the plain
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
        """True if it is a matter of time."""
        return not self.exact and self.unit not in ("", "MB", "KB", "files")

    @property
    def value(self) -> float:
        """Its median."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float | None:
        """How far its rounds lie apart; None if there is one only."""
        return 0.0 if self.exact else spread(self.rounds)

    @property
    def other(self) -> float | None:
        """The other side's median."""
        return statistics.median(self.others) if self.others else None

    @property
    def ratios(self) -> Sequence[float]:
        """How many times better than the other side: by round, so that what disturbs both counts little."""
        pairs = list(zip(self.rounds, self.others, strict=len(self.others) > 0))
        if self.better == LESS:
            pairs = [(other, own) for own, other in pairs]
        return [up / down if down else float("inf") for up, down in pairs]

    @property
    def times(self) -> float | None:
        """The median of these."""
        return statistics.median(self.ratios) if self.others else None

    @property
    def steady(self) -> bool:
        """True if the machine was, as far as it matters."""
        return not self.timed or (self.itself is not None and self.itself <= STEADY)

    @property
    def verdict(self) -> str:
        """Return "met", "NOT MET" or "not judged"; "" without aims."""
        met = []
        if self.aim.value is not None:
            met.append(self.value >= self.aim.value if self.better == MORE else self.value <= self.aim.value)
        if self.aim.times is not None and self.times is not None:
            met.append(self.times >= self.aim.times)
        if not met or not self.steady:
            return "not judged" if met else ""
        return "met" if all(met) else "NOT MET"

    def as_json(self) -> dict[str, Any]:
        """For a record: value, spread, times, aims and verdict are there to be read, not to be taken back."""
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
        """From what `as_json` gave."""
        names = {field.name for field in fields(cls)} - {"aim"}
        return cls(**{"better": "", **{name: each for name, each in found.items() if name in names}})


def spread(values: Sequence[float]) -> float | None:
    """Distance of the largest from the smallest, without the outermost eighth on either side; None of one."""
    outer = len(values) // 8
    kept = sorted(values)[outer : len(values) - outer]
    return kept[-1] - kept[0] if len(kept) > 1 else None


def apart(rounds: Sequence[float]) -> float | None:
    """Return how far the same work is from itself, as a part of 1; None of one round.

    Half of the rounds are compared with the rest: every other, the first half, the middle half. A load on
    half of them is in one of these more than in its rest, whenever it begins.
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
    """Prints rows as they come, and in the end all of them as a line of JSON.

    Args:
        benchmark: its name.
        other: the other side's.
        small: the work is too little for its figures to be judged.
    """

    def __init__(self, benchmark: str, other: str = "", *, small: bool = False) -> None:
        self._told: dict[str, Any] = {"benchmark": benchmark, "small": small, "rows": [], "skipped": {}}
        self._small = small
        self._itself: float | None = None
        self._aims = AIMS.get(benchmark, {})
        print(f"{'':<66}{'trainkit':>12} {'':<6}{other:>12}{'times':>8}{'aim':>15}", flush=True)

    def add(self, row: Row) -> None:
        """Print and keep it, beside its aim."""
        row = replace(row, aim=self._aims.get(row.name, row.aim))
        self._told["rows"].append(row.as_json())
        times = "" if row.times is None else f"{row.times:.2f}" if row.times < 10 else f"{row.times:,.0f}"
        text = f"{row.name:<66}{shown(row.value):>12} {row.unit:<6}{shown(row.other):>12}{times:>8}"
        print(f"{text}{_aim(row):>15}  {'' if self._small else row.verdict}".rstrip(), flush=True)
        if row.itself not in (None, self._itself):
            print(f"  plain work was {row.itself:.1%} from itself", flush=True)
            self._itself = row.itself

    def skip(self, name: str, reason: str) -> None:
        """Say why there is no such row."""
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
    """The rows by name, from all that a benchmark has printed."""
    return {row["name"]: Row.of_json(row) for row in json.loads(printed.splitlines()[-1])["rows"]}


def parser(description: str | None) -> argparse.ArgumentParser:
    """A benchmark's command line; each has a small form, which a test runs."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--small", action="store_true", help="little work: only shows that it runs")
    return made


def shown(value: float | None) -> str:
    """A figure with three digits that count."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aim(row: Row) -> str:
    value, times = row.aim
    aims = [] if value is None else [f"{'>=' if row.better == MORE else '<='} {value:,g}"]
    return ", ".join(aims + ([] if times is None else [f"{times:.3g}x"]))


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
