"""The scikit-learn door beside scikit-learn's own searches.

    python -m benchmarks.sklearn_searches [--only SECTION] [--small]

Both sides take turns in one run with two jobs each, and how many times better trainkit is, is the median over
the rounds, so that what else the machine does meets both. "Warm" means that the workers of both sides are
there: joblib's from the round before, ours in a session that `trainkit.init` began. Prints a table, and its
rows as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from benchmarks.interleaved import output_of
from benchmarks.rows import MORE, Report, Row, parser

SECTIONS = ("svm", "tiny", "stopping", "alone", "cold", "memory")
ROWS = {
    "svm": Row("48 fits of an SVM on the digits", "s", aim_times=0.95),
    "tiny": Row("300 tiny fits, warm", "s", aim_times=0.91),
    "stopping_random": Row("SGD with early stopping (RandomizedSearchCV)", "s", aim_times=2.5),
    "stopping_halving": Row("SGD with early stopping (HalvingRandomSearchCV)", "s", aim_times=1),
    "stopping_score": Row("its best score (RandomizedSearchCV)", better=MORE, aim_times=0.995),
    "halving_score": Row("its best score (HalvingRandomSearchCV)", better=MORE),
    "svm_alone": Row("the SVM, with a session that fit begins and ends", "s"),
    "tiny_alone": Row("the tiny fits, with such a session", "s"),
    "cold": Row("300 tiny fits in a new program", "s", aim_times=2),
    "cold_program": Row("the whole of that program, imports included", "s"),
    "memory_grows": Row("unshared memory of 4 workers on 500 MB grows by", "MB", aim=600),
    "memory_in_all": Row("that with the copies that they share", "MB"),
}

Figures = dict[str, list[list[float]]]
"""By row, the rounds of ours and of theirs."""


def figures_of(names: Sequence[str], scale: float) -> Figures:
    """The figures of some sections, from a process of their own."""
    command = [sys.executable, "-m", "benchmarks.sklearn_work", *names, str(scale)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    figures: Figures = json.loads(output_of(command, environment).splitlines()[-1])
    return figures


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=SECTIONS, action="append", help="may be given again")
    given = arguments.parse_args()
    names = given.only or SECTIONS
    with Report("sklearn_searches", "scikit-learn", small=given.small) as report:
        # A small run is one process for all, as half of the time would be spent on starting them.
        for group in [names] if given.small else [[name] for name in names]:
            for key, sides in figures_of(group, 0.0 if given.small else 1.0).items():
                report.add(ROWS[key].measured(*sides))


if __name__ == "__main__":
    main()
