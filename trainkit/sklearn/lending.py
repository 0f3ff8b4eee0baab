"""Samples in shared memory, lent to an estimator where scikit-learn would copy them for each fold.

A part of a fold whose rows lie side by side, as those of `TimeSeriesSplit` or of a hold-out do, is a view of
X. The worker's mapping is copy-on-write, so an estimator may write to the view as to a copy: what it wrote is
dropped when the fold is done, and no other process ever sees it. Other parts may be copies that are shared.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

Shared: TypeAlias = Callable[[np.ndarray, Any, Callable[[], None]], Any]
"""Takes X, indices of rows, and what to call when a piece of X was read; gives these rows, or None."""


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


def lendable(train: Any, test: Any) -> tuple[slice | None, slice | None]:
    """Return which rows of a fold may be views, of its training samples and of the others.

    Args:
        train: indices of the fold's training rows.
        test: and of the others.
    """
    ours, others = side_by_side(train), side_by_side(test)
    # Rows in both would see what is written to the one in the other.
    apart = ours is None or others is None or max(ours.start, others.start) >= min(ours.stop, others.stop)
    return (ours, others) if apart else (None, None)


class Lender(np.ndarray):
    """An array that gives rows lying side by side as a view, or shared, where NumPy would copy them."""

    views = False
    shared: Shared | None = None
    forget: Callable[[], None]

    def __getitem__(self, key: Any) -> Any:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, (...,))
        whole = self.view(np.ndarray)
        if len(rest) != 1 or rest[0] is not Ellipsis:
            return whole[key]
        found = side_by_side(rows) if self.views else None
        if found is not None:
            return whole[found]
        copy = None if self.shared is None else self.shared(whole, rows, self.forget)
        return whole[key] if copy is None else copy


@contextmanager
def lent(X: Any, train: Any, test: Any, *, views: bool = True, shared: Shared | None = None) -> Iterator[Any]:
    """Give X, or what lends its rows in its place; what is written to views is dropped at the end.

    Args:
        X: of any kind; lent are arrays that the runtime has mapped.
        train: indices of the fold's training rows.
        test: and of the others.
        views: whether rows side by side are views; they must not be used after the end.
        shared: gives other rows; they may be.
    """
    mapping = _mapping_of(X)
    if mapping is None:
        yield X
        return
    views = views and lendable(train, test) != (None, None)
    if not views and shared is None:
        yield X
        return

    def forget() -> None:
        """Drop this process's pages: what was written to them, and what was only read."""
        mapping.madvise(mmap.MADV_DONTNEED)

    lender = _writable(X).view(Lender)
    lender.views, lender.shared, lender.forget = views, shared, forget
    try:
        yield lender
    finally:
        if views:
            forget()


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
