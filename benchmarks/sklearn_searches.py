"""trainkit's searches over scikit-learn estimators compared with scikit-learn's own searches.

    python -m benchmarks.sklearn_searches [--only SECTION] [--small]

Both sides take turns in one run with two jobs each. The factor by which trainkit is better is the median over
the rounds, so that other load on the machine affects both. "Warm" means that the workers of both sides exist:
joblib's from the previous round, ours in a session that `trainkit.init` began. Prints a table, and its rows
as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from benchmarks.interleaved import output_of
from benchmarks.rows import MORE, Report, Row, parser

LONG = "many_more"
"""Section that takes minutes, so it runs only on request or with little work."""
SECTIONS = ("svm", "tiny", "folds", "many", LONG, "stopping", "growing", "alone", "cold", "first", "memory")
ROWS = {
    "svm": Row("48 fits of an SVM on the digits", "s"),
    "tiny": Row("300 tiny fits, warm", "s"),
    "folds": Row("4 candidates of an SVM in 50 folds", "s"),
    "many": Row("1,000 tiny candidates", "s"),
    "many_memory": Row("memory of that program and its workers, of 1,000", "MB"),
    "many_more": Row("5,000 tiny candidates", "s"),
    "many_more_memory": Row("memory of that program and its workers, of 5,000", "MB"),
    "stopping_random": Row("SGD with early stopping (RandomizedSearchCV)", "s"),
    "stopping_halving": Row("SGD with early stopping (HalvingRandomSearchCV)", "s"),
    "stopping_score": Row("its best score (RandomizedSearchCV)", better=MORE),
    "halving_score": Row("its best score (HalvingRandomSearchCV)", better=MORE),
    "growing": Row("SGD on growing samples (HalvingRandomSearchCV)", "s"),
    "growing_epochs": Row("SGD on growing samples (HalvingRandomSearchCV, by epochs)", "s"),
    "growing_score": Row("its best score, on growing samples", better=MORE),
    "growing_epochs_score": Row("its best score, by epochs", better=MORE),
    "svm_alone": Row("the SVM, with a session that a fit began", "s"),
    "tiny_alone": Row("the tiny fits, with such a session", "s"),
    "cold": Row("300 tiny fits in a new program", "s"),
    "cold_program": Row("the whole of that program, imports included", "s"),
    "iris_first": Row("2 candidates on the iris, first search of a program", "s"),
    "iris_second": Row("2 candidates on the iris, second search", "s"),
    "wide_first": Row("4 logistic regressions on 20,000 x 50, first search", "s"),
    "wide_second": Row("4 logistic regressions on 20,000 x 50, second search", "s"),
    "memory_grows": Row("unshared memory of 4 workers on 500 MB grows by", "MB"),
    "memory_in_all": Row("that with the copies that they share", "MB"),
}

Figures = dict[str, list[list[float]]]
"""Rounds of our side and of theirs, by row."""


def figures_of(names: Sequence[str], scale: float) -> Figures:
    """Return the figures of some sections, from a separate process."""
    command = [sys.executable, "-m", "benchmarks.sklearn_work", *names, str(scale)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    figures: Figures = json.loads(output_of(command, environment).splitlines()[-1])
    return figures


def main() -> None:
    """Measure and print the rows."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=SECTIONS, action="append", help="may be given again")
    given = arguments.parse_args()
    names = given.only or [name for name in SECTIONS if given.small or name != LONG]
    with Report("sklearn_searches", "scikit-learn", small=given.small) as report:
        # A small run uses one process for all sections, because starting processes would take half the time.
        for group in [names] if given.small else [[name] for name in names]:
            for key, sides in figures_of(group, 0.0 if given.small else 1.0).items():
                report.add(ROWS[key].measured(*sides))


if __name__ == "__main__":
    main()
