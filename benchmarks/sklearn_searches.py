"""The scikit-learn door beside scikit-learn's own searches.

    python -m benchmarks.sklearn_searches [--only SECTION] [--small]

Both sides take turns in one run with two jobs each, and ratios are medians over the rounds, so that what else
the machine does meets both. "Warm" means that the workers of both sides are there: joblib's from the round
before, ours in a session that `trainkit.init` began. Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.interleaved import output_of

SECTIONS = ("svm", "tiny", "alone", "cold", "stopping", "memory")


class Row(NamedTuple):
    """One line of the table; less is better."""

    key: str
    label: str
    most: float | None = None
    parts: tuple[str, str] | None = None  # figures of ours and theirs to show beside


def ratio(name: str, label: str, most: float | None = None) -> Row:
    """A ratio of times, with the times."""
    return Row(f"{name}_times", label, most, (f"{name}_s", f"{name}_theirs_s"))


def megabytes(name: str, label: str, most: float | None = None) -> Row:
    """Memory that workers hold, and theirs beside."""
    return Row(f"memory_{name}_mb", label, most, (f"memory_{name}_mb", f"memory_theirs_{name}_mb"))


ROWS = [
    ratio("svm", "48 fits of an SVM on the digits, of GridSearchCV's time", 1.05),
    ratio("tiny", "300 tiny fits, warm", 1.1),
    ratio("svm_alone", "  the SVM, with a session that fit begins and ends"),
    ratio("tiny_alone", "  the tiny ones, with such a session"),
    ratio("cold", "300 tiny fits in a new program", 0.5),
    ratio("cold_program", "  the whole of that program, imports included"),
    ratio("stopping_random", "SGD with early stopping, of RandomizedSearchCV's time", 0.4),
    ratio("stopping_halving", "  of HalvingRandomSearchCV's time", 1.0),
    Row("stopping_score_short_of_random", "  best score, short of RandomizedSearchCV's by", 0.005),
    megabytes("grows", "unshared memory of 4 workers on 500 MB grows by, MB", 600),
    megabytes("in_all", "  with the copies that they share"),
]


def figures_of(names: Sequence[str], scale: float) -> dict[str, float]:
    """The figures of some sections, from a process of their own."""
    command = [sys.executable, "-m", "benchmarks.sklearn_work", *names, str(scale)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    figures: dict[str, float] = json.loads(output_of(command, environment).splitlines()[-1])
    return figures


def line(row: Row, figures: dict[str, float], *, judge: bool) -> str:
    """One line of the table; with `judge`, whether the aim is met."""
    ours, theirs = ("", "") if row.parts is None else (f"{figures[part]:.2f}" for part in row.parts)
    value = figures[row.key]
    text = f"{row.label:<58}{ours:>10}{theirs:>14}{value:>10.3g}"
    if row.most is None or not judge:
        return text
    return f"{text}{f'< {row.most:g}':>10}{'' if value <= row.most else '  not met'}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="may be given again")
    parser.add_argument("--small", action="store_true", help="little work: only shows that it runs")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    names = arguments.only or SECTIONS
    if arguments.small:  # one process for all, as half of the time would be spent on starting them
        figures = figures_of(names, 0.0)
    else:
        for name in names:
            figures |= figures_of([name], 1.0)
    print(f"{'work':<58}{'trainkit':>10}{'theirs':>14}{'figure':>10}{'aim':>10}")
    for row in ROWS:
        if row.key in figures:
            print(line(row, figures, judge=not arguments.small))
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(json.dumps({"benchmark": "sklearn_searches", "cores": os.cpu_count(), **rounded}))


if __name__ == "__main__":
    main()
