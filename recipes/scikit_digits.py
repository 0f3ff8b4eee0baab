"""Search over scikit-learn estimators: a grid, and a random search with early stopping, beside scikit-learn's own.

    python -m recipes.scikit_digits                    # handwritten digits; under a minute on two cores
    python -m recipes.scikit_digits --data cancer      # breast cancer, 569 samples of 30 features
    python -m recipes.scikit_digits --output results   # keep the experiments: trainkit show, trainkit dashboard

It needs `pip install 'trainkit[sklearn]'`; the data comes with scikit-learn. The grid is over a pipeline with
an SVM, so both sides fit the same models; the random search is over a linear model trained by stochastic gradient
descent, of which scikit-learn trains each candidate to the end and trainkit stops most after a few epochs. It
prints a table: best parameters, scores in cross-validation and on held-out data, and seconds.
"""

from __future__ import annotations

import argparse
import time
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
SVM_GRID = {"svc__C": [0.1, 1, 10, 100], "svc__gamma": [1e-4, 1e-3, 1e-2, 1e-1]}
SGD_SPACE = {
    "sgdclassifier__alpha": loguniform(1e-6, 1e0),
    "sgdclassifier__loss": ["hinge", "log_loss", "modified_huber"],
    "sgdclassifier__penalty": ["l2", "l1", "elasticnet"],
}


def svm() -> Any:
    """What the grid is over."""
    return make_pipeline(StandardScaler(), SVC())


def linear_model(epochs: int) -> Any:
    """What the random search is over; `tol=None`: trained for all epochs, unless a scheduler stops it."""
    return make_pipeline(StandardScaler(), SGDClassifier(max_iter=epochs, tol=None, random_state=0))


def searches(args: argparse.Namespace) -> dict[str, Any]:
    """By title, in the order in which they run; scikit-learn's before ours."""
    common = {"cv": args.folds, "n_jobs": args.jobs}
    ours = common | ({"local_dir": str(args.output)} if args.output else {})
    drawn = {"random_state": args.seed}
    linear = linear_model(args.epochs)
    return {
        "GridSearchCV": GridSearchCV(svm(), SVM_GRID, **common),
        "TuneGridSearchCV": TuneGridSearchCV(svm(), SVM_GRID, **ours),
        "RandomizedSearchCV": RandomizedSearchCV(linear, SGD_SPACE, n_iter=args.trials, **common, **drawn),
        "TuneSearchCV, early stopping": TuneSearchCV(
            linear,
            SGD_SPACE,
            n_trials=args.trials,
            early_stopping=True,
            max_iters=args.epochs,
            **ours,
            **drawn,
        ),
    }


def table(args: argparse.Namespace) -> Table:
    """Run them all; a row each."""
    X, y = DATA[args.data](return_X_y=True)
    X, held_X, y, held_y = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    result = Table(title=f"{args.data}: {len(X):,} samples in {args.folds} folds, {len(held_X):,} held out")
    for heading, justify in [("search", "left"), ("best parameters", "left"), ("CV score", "right")]:
        result.add_column(heading, justify=justify)
    result.add_column("held out", justify="right")
    result.add_column("seconds", justify="right")
    for title, search in searches(args).items():
        started = time.perf_counter()
        search.fit(X, y)
        seconds = time.perf_counter() - started
        best = "\n".join(
            f"{name.rpartition('__')[2]}={value:.3g}"
            if isinstance(value, float)
            else f"{name.rpartition('__')[2]}={value}"
            for name, value in search.best_params_.items()
        )
        scores = [f"{search.best_score_:.4f}", f"{search.score(held_X, held_y):.4f}"]
        result.add_row(title, best, *scores, f"{seconds:.2f}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=list(DATA), default="digits", help="%(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="candidates at once (%(default)s)")
    parser.add_argument("--folds", type=int, default=3, help="%(default)s")
    parser.add_argument("--trials", type=int, default=40, help="of the random searches (%(default)s)")
    parser.add_argument("--epochs", type=int, default=81, help="of a candidate not stopped (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="that draws the candidates (%(default)s)")
    parser.add_argument("--output", type=Path, help="a folder for the experiments; default, none are kept")
    Console().print(table(parser.parse_args()))


if __name__ == "__main__":
    main()
