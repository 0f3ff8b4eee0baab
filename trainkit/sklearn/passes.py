"""Several passes over the data by `partial_fit`, which is one.

scikit-learn's linear models by stochastic gradient descent do the passes of `fit` in one loop in C, and
`partial_fit` is the same with one pass: for data of thousands of samples most of its time goes by outside of
that loop. So they are asked for several at once, which is what their `fit` asks for.
"""

from __future__ import annotations

import functools
from typing import Any

from trainkit.sklearn.incremental import descends


def train_passes(estimator: Any, passes: int, *data: Any, **params: Any) -> None:
    """Train so many passes more.

    From an unfitted estimator it comes to the same, to the last bit, as `fit` with `max_iter=passes` and
    `tol=None` where the estimator loops over passes by itself; else as calls of `partial_fit`.

    Args:
        estimator: with `partial_fit`; it is trained in place.
        passes: from 1.
        data: X, and y unless it learns without.
        params: further arguments of `partial_fit`.
    """
    if passes > 1 and _loops(estimator):
        _train_at_once(estimator, passes, *data, **params)
        return
    for _ in range(passes):
        estimator.partial_fit(*data, **params)


def _loops(estimator: Any) -> bool:
    """Whether `partial_fit` is that of scikit-learn's own linear models, and no subclass's."""
    if not descends(estimator, "sklearn", "BaseSGD"):
        return False
    return getattr(type(estimator).partial_fit, "__module__", "").startswith("sklearn.linear_model.")


def _train_at_once(estimator: Any, passes: int, *data: Any, **params: Any) -> None:
    usual = estimator.tol
    estimator.tol = None  # the loop would end by it, which single passes never do
    # Both `fit` and `partial_fit` of all these classes call this, with the number of passes by name.
    estimator._partial_fit = functools.partial(_with_passes, estimator._partial_fit, passes)
    try:
        estimator.partial_fit(*data, **params)
    finally:
        del estimator._partial_fit
        estimator.tol = usual


def _with_passes(call: Any, passes: int, *args: Any, max_iter: int, **kwargs: Any) -> Any:
    """`call` with another number of passes than the one it is asked for."""
    del max_iter
    return call(*args, max_iter=passes, **kwargs)
