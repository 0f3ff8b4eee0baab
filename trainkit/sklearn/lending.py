"""Rows of data in shared memory, lent to an estimator where scikit-learn would copy them for each fold.

A fold whose rows lie side by side, as those of `TimeSeriesSplit` or of a hold-out do, is a view of X. The
worker's mapping is copy-on-write, so an estimator may write to the view as to a copy: what it wrote is
dropped when the fold is done, and no other process ever sees it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Rows = Any
"""Indices as a splitter gives them, or a slice that means the same."""


def side_by_side(indices: Any) -> slice | None:
    """Return the slice that means the same as `indices`; None: there is none.

    Args:
        indices: of rows, whole numbers.
    """
    if not isinstance(indices, np.ndarray) or indices.dtype.kind not in "iu" or len(indices) == 0:
        return None
    first, last = int(indices[0]), int(indices[-1])
    if first < 0 or last - first + 1 != len(indices) or not bool(np.all(np.diff(indices) == 1)):
        return None
    return slice(first, last + 1)


@contextmanager
def lent(X: Any, y: Any, train: Any, test: Any) -> Iterator[tuple[Any, Any, Rows, Rows]]:
    """Give X, y and the rows of a fold, as slices where that spares a copy; what is written there is dropped.

    Args:
        X: of any kind; lent are arrays that the runtime has mapped.
        y: of its rows.
        train: indices of the fold's training rows.
        test: and of the others.
    """
    mapping = _mapping_of(X)
    ours, others = side_by_side(train), side_by_side(test)
    # Rows in both would see what is written to the one in the other.
    apart = (
        ours is not None
        and others is not None
        and max(ours.start, others.start) >= min(ours.stop, others.stop)
    )
    if mapping is None or not apart or not (y is None or isinstance(y, np.ndarray)):
        yield X, y, train, test
        return
    if y is not None:
        y = _writable(y) if _mapping_of(y) is mapping else y.copy()
    try:
        yield _writable(X), y, ours, others
    finally:
        mapping.madvise(mmap.MADV_DONTNEED)


def _writable(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = True
    return view


def _mapping_of(array: Any) -> mmap.mmap | None:
    """The copy-on-write mapping that holds `array`, as the runtime makes one; None: it lies elsewhere."""
    if not isinstance(array, np.ndarray) or array.flags.writeable:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None
