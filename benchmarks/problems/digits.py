"""A table of real learning curves: 243 linear classifiers of scikit-learn's digits, with 27 passes each.

Making the table takes about a minute of CPU, once. Then every search replays it in milliseconds.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

CONFIGURATIONS, PASSES = 243, 27
FORM = "1"
"""Version of the cached table; it changes when the computation changes."""
QUANTILES = {0.0: 0.0296, 0.05: 0.0333, 0.25: 0.0481, 0.5: 0.0944, 0.75: 0.1991}
"""Quantiles of the final error in the table of the reference rows."""
SPEARMAN = {1: 0.906, 3: 0.959, 9: 0.963}
"""Rank correlations of the error after some passes with the final error, in that table."""


def table() -> np.ndarray:
    """Return the share of wrongly classified test digits, by configuration and pass."""
    import sklearn

    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "trainkit-benchmarks")
    path = caches / f"digits-{FORM}-{sklearn.__version__}.npy"
    if not path.exists():
        caches.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.npy")
        np.save(aside, _built())
        os.replace(aside, path)
    return np.load(path)


def check(errors: np.ndarray) -> list[str]:
    """Return the differences between `errors` and the table of the reference rows; [] if they are equal."""
    from scipy.stats import spearmanr

    last = errors[:, -1]
    found = [
        (f"quantile {q:g} of the final error", float(np.quantile(last, q)), value, 5e-5)
        for q, value in QUANTILES.items()
    ]
    found += [
        (f"rank correlation of pass {t}", float(spearmanr(errors[:, t - 1], last).statistic), value, 5e-4)
        for t, value in SPEARMAN.items()
    ]
    return [
        f"{name} is {ours:.5f}, not {theirs}"
        for name, ours, theirs, most in found
        if abs(ours - theirs) > most
    ]


def _built() -> np.ndarray:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels / 16, labels, test_size=0.3, stratify=labels, random_state=0
    )
    orders = [np.random.default_rng(number).permutation(len(train_x)) for number in range(PASSES)]
    rng = np.random.default_rng(0)
    errors = np.zeros((CONFIGURATIONS, PASSES))
    for row in range(CONFIGURATIONS):
        model = SGDClassifier(
            loss="log_loss",
            penalty="elasticnet",
            learning_rate="constant",
            alpha=10 ** rng.uniform(-7, 0),
            eta0=10 ** rng.uniform(-5, 1),
            l1_ratio=rng.uniform(0, 1),
            average=bool(rng.integers(2)),
            random_state=0,
        )
        # The largest learning rates overflow; such configurations are among the table's bad ones.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for number, order in enumerate(orders):
                model.partial_fit(train_x[order], train_y[order], classes=np.arange(10))
                errors[row, number] = 1 - model.score(test_x, test_y)
    return errors
