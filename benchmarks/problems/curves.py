"""Tables of real learning curves, from small data sets of scikit-learn.

`python -m benchmarks.problems.curves` computes both tables again, in a few minutes of CPU. They lie beside
this file, so that all runs use the same numbers. Each has 27 reports for each configuration of a grid:

- "boosting": regression trees of gradient boosting on the diabetes data, 8 trees a report, and the root of
  the mean squared error on the test rows. These curves cross: small learning rates are the worst at first
  and the best in the end, so the rank correlation of the first report with the last is -0.5.
- "network": a small neural network on the digits, a pass over the training rows a report, and its test log
  loss. The learning rate is constant, or falls with a cosine to zero. Few of these curves cross: the rank
  correlation of the first report with the last is 0.9.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

REPORTS = 27
TREES = 8
FILE = Path(__file__).with_name("curves.npz")
GRIDS: Mapping[str, Mapping[str, list[Any]]] = {
    "boosting": {
        "learning_rate": [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64],
        "max_depth": [1, 2, 3, 5],
        "subsample": [0.3, 0.6, 1.0],
        "min_samples_leaf": [1, 5, 20],
    },
    "network": {
        "learning_rate": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
        "schedule": ["constant", "cosine"],
        "hidden": [8, 32, 128],
        "alpha": [1e-5, 1e-2, 1.0],
        "momentum": [0.0, 0.9],
    },
}
"""Lists of each parameter; a table has a row for each combination, the last parameter changing fastest."""


def configurations(name: str) -> list[dict[str, Any]]:
    """Return the configurations of a table, in the order of its rows."""
    grid = GRIDS[name]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@cache
def table(name: str) -> np.ndarray:
    """Return the losses of a table, by configuration and report."""
    with np.load(FILE) as tables:
        return tables[name].astype(float)


def _boosting() -> Iterator[list[float]]:
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.model_selection import train_test_split

    train_x, test_x, train_y, test_y = train_test_split(
        *load_diabetes(return_X_y=True), test_size=0.4, random_state=0
    )
    for config in configurations("boosting"):
        model = GradientBoostingRegressor(n_estimators=TREES * REPORTS, random_state=0, **config)
        stages = model.fit(train_x, train_y).staged_predict(test_x)
        losses = [float(np.sqrt(np.mean((test_y - guess) ** 2))) for guess in stages]
        yield losses[TREES - 1 :: TREES]


def _network() -> Iterator[list[float]]:
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels / 16, labels, test_size=0.3, stratify=labels, random_state=0
    )
    for config in configurations("network"):
        model = MLPClassifier(
            (config["hidden"],),
            solver="sgd",
            alpha=config["alpha"],
            momentum=config["momentum"],
            batch_size=64,
            random_state=0,
        )
        losses = []
        for step in range(REPORTS):
            share = (1 + np.cos(np.pi * step / REPORTS)) / 2 if config["schedule"] == "cosine" else 1.0
            model.set_params(learning_rate_init=share * config["learning_rate"])
            if step:
                model._optimizer.learning_rate = share * config["learning_rate"]
            order = np.random.default_rng(step).permutation(len(train_x))
            try:
                model.partial_fit(train_x[order], train_y[order], classes=np.arange(10))
                loss = log_loss(test_y, model.predict_proba(test_x), labels=np.arange(10))
            except ValueError:  # weights that overflowed
                loss = np.inf
            losses.append(float(min(loss, 10.0)) if np.isfinite(loss) else 10.0)
        yield losses


def main() -> None:
    """Compute both tables, and write them beside this file."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tables = {"boosting": list(_boosting()), "network": list(_network())}
    np.savez_compressed(FILE, **{name: np.array(rows, np.float32).round(5) for name, rows in tables.items()})


if __name__ == "__main__":
    main()
