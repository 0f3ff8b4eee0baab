"""Search over scikit-learn estimators: a grid, and a random search that stops early, beside scikit-learn's.

    python -m recipes.scikit_digits                    # handwritten digits; less than a minute on two cores
    python -m recipes.scikit_digits --data cancer      # breast cancer, 569 samples of 30 features
    python -m recipes.scikit_digits --output results   # keep the experiments, for `trainkit ls results`

This needs `pip install '.[sklearn]'`; the data comes with scikit-learn. The grid is over a pipeline with an
SVM, so both libraries fit the same models. The random search is over a linear model that learns by stochastic
gradient descent. scikit-learn trains each candidate to the end, but trainkit stops those that fall behind.
The program prints a table of best parameters, scores in cross-validation and on held-out data, and seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy.stats import loguniform
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

DATA = {"digits": load_digits, "cancer": load_breast_cancer}
GRID = {"svc__C": [0.1, 1, 10, 100], "svc__gamma": [1e-4, 1e-3, 1e-2, 1e-1]}
SPACE = {
    "sgdclassifier__alpha": loguniform(1e-6, 1e0),
    "sgdclassifier__loss": ["hinge", "log_loss", "modified_huber"],
    "sgdclassifier__penalty": ["l2", "l1", "elasticnet"],
}


@dataclass(frozen=True)
class Row:
    """Result of one search."""

    search: str
    best: dict[str, Any]
    score: float  # mean over the folds
    held_out: float
    seconds: float


def searches(
    *, jobs: int, folds: int, trials: int, epochs: int, seed: int, output: Path | None
) -> dict[str, Any]:
    """Return the searches by name, in the order in which they run."""
    svm = make_pipeline(StandardScaler(), SVC())
    # tol=None makes the estimator train for all epochs, unless a scheduler stops it.
    linear = make_pipeline(StandardScaler(), SGDClassifier(max_iter=epochs, tol=None, random_state=0))
    theirs = {"cv": folds, "n_jobs": jobs}
    ours = theirs | {"local_dir": None if output is None else str(output)}
    drawn = {"random_state": seed}
    stopped = {"early_stopping": True, "max_iters": epochs}
    return {
        "GridSearchCV": GridSearchCV(svm, GRID, **theirs),
        "TuneGridSearchCV": TuneGridSearchCV(svm, GRID, **ours),
        "RandomizedSearchCV": RandomizedSearchCV(linear, SPACE, n_iter=trials, **drawn, **theirs),
        "TuneSearchCV": TuneSearchCV(linear, SPACE, n_trials=trials, **drawn, **stopped, **ours),
    }


def compare(data: str, **options: Any) -> Iterator[Row]:
    """Run each search on three quarters of the data; yield a row after each."""
    X, y = DATA[data](return_X_y=True)
    X, held_out_X, y, held_out_y = train_test_split(X, y, stratify=y, random_state=0)
    for name, search in searches(**options).items():
        started = time.perf_counter()
        search.fit(X, y)
        seconds = time.perf_counter() - started
        best = {parameter.partition("__")[2]: value for parameter, value in search.best_params_.items()}
        yield Row(name, best, search.best_score_, search.score(held_out_X, held_out_y), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=list(DATA), default="digits", help="%(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="at once (%(default)s)")
    parser.add_argument("--folds", type=int, default=3, help="%(default)s")
    parser.add_argument("--trials", type=int, default=40, help="of the random searches (%(default)s)")
    parser.add_argument("--epochs", type=int, default=81, help="of a candidate that keeps up (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="that draws the candidates (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder to keep the experiments in; default, none is")

    table = Table(title=__doc__.splitlines()[0].partition(":")[0])
    for heading in ("search", "best parameters"):
        table.add_column(heading)
    for heading in ("CV score", "held out", "seconds"):
        table.add_column(heading, justify="right")
    for row in compare(**vars(parser.parse_args())):
        best = "\n".join(
            f"{name} = {value if isinstance(value, str) else format(value, '.3g')}"
            for name, value in row.best.items()
        )
        table.add_row(row.search, best, f"{row.score:.4f}", f"{row.held_out:.4f}", f"{row.seconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
