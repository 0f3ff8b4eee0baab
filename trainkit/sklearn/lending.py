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


class Lender(np.ndarray):
    """An array that gives rows lying side by side as a view, where NumPy would copy them."""

    def __getitem__(self, key: Any) -> Any:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, (...,))
        found = side_by_side(rows) if len(rest) == 1 and rest[0] is Ellipsis else None
        return self.view(np.ndarray)[key if found is None else found]


@contextmanager
def lent(X: Any, train: Any, test: Any) -> Iterator[Any]:
    """Give X, or what lends its rows in its place; what is written to those is dropped at the end.

    Args:
        X: of any kind; lent are arrays that the runtime has mapped.
        train: indices of the fold's training rows.
        test: and of the others.
    """
    mapping = _mapping_of(X)
    ours, others = side_by_side(train), side_by_side(test)
    # Rows in both would see what is written to the one in the other.
    apart = ours is None or others is None or max(ours.start, others.start) >= min(ours.stop, others.stop)
    if mapping is None or (ours is None and others is None) or not apart:
        yield X
        return
    try:
        yield _writable(X).view(Lender)
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
