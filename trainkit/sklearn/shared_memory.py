"""Samples of folds in shared memory: views of contiguous rows, and copies that workers share.

Contiguous rows of X, for example from `TimeSeriesSplit` or a hold-out, become a view. The worker's mapping is
copy-on-write, so an estimator may write to the view. The estimator's changes are dropped after the fold, and
no other process sees the changes.

If a fold's training or test samples are not contiguous, the driver opens an anonymous file, initially empty,
for one copy that all workers use:

    empty -- a worker that needs the copy locks the file exclusively and writes the copy --> full
    full  -- each user of the copy has a shared lock and its own copy-on-write mapping --> full
    full  -- no process has a lock, and a different copy must be written --> empty

The shared lock belongs to the worker's own open file, which the worker's mapping keeps open. The shared lock
lasts as long as any array uses this mapping, even an array that an estimator has kept. The lock ends when the
process is killed. A full file is one byte longer than the samples, so a file whose writer was killed does not
count as full.

A process that finds the file empty waits for a separate writer's lock, and then checks the file again. So no
process waits until other processes stop using a copy, which may take arbitrarily long. Shared copies never
need more memory than separate copies in each worker, and far less if workers use the same fold. A worker that
can't open the driver's files makes its own copies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

RowProvider: TypeAlias = Callable[[np.ndarray, Any, Callable[[], None]], Any]
"""Function (X, row indices, function to call after each piece of X was read) -> the rows, or None."""


def contiguous_slice(indices: Any) -> slice | None:
    """Return the slice for contiguous `indices`; None if they are not contiguous.

    Args:
        indices: row indices, whole numbers.
    """
    if not isinstance(indices, np.ndarray) or indices.dtype.kind not in "iu" or len(indices) == 0:
        return None
    first, last = int(indices[0]), int(indices[-1])
    if first < 0 or last - first + 1 != len(indices) or not bool(np.all(np.diff(indices) == 1)):
        return None
    return slice(first, last + 1)


def view_slices(train: Any, test: Any) -> tuple[slice | None, slice | None]:
    """Return the slices of a fold's training and test rows that may become views; None for other rows.

    Args:
        train: indices of the fold's training rows.
        test: indices of the fold's test rows.
    """
    ours, others = contiguous_slice(train), contiguous_slice(test)
    # If the two slices had a common row, a write to one view would be visible in the other view.
    apart = ours is None or others is None or max(ours.start, others.start) >= min(ours.stop, others.stop)
    return (ours, others) if apart else (None, None)


class FoldArray(np.ndarray):
    """Array that returns contiguous rows as a view, and other rows from a shared copy."""

    views = False
    shared: RowProvider | None = None
    forget: Callable[[], None]

    def __getitem__(self, key: Any) -> Any:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, (...,))
        whole = self.view(np.ndarray)
        if len(rest) != 1 or rest[0] is not Ellipsis:
            return whole[key]
        found = contiguous_slice(rows) if self.views else None
        if found is not None:
            return whole[found]
        copy = None if self.shared is None else self.shared(whole, rows, self.forget)
        return whole[key] if copy is None else copy


@contextmanager
def fold_array(
    X: Any, train: Any, test: Any, *, views: bool = True, shared: RowProvider | None = None
) -> Iterator[Any]:
    """Yield X as a FoldArray, or unchanged; changes to views are dropped at the end of the block.

    Args:
        X: samples of any type; only arrays that the runtime has mapped become a FoldArray.
        train: indices of the fold's training rows.
        test: indices of the fold's test rows.
        views: True returns contiguous rows as views, which must not be used after the block.
        shared: function that returns copies of other rows, which may be used after the block.
    """
    mapping = _mapping_of(X)
    if mapping is None:
        yield X
        return
    views = views and view_slices(train, test) != (None, None)
    if not views and shared is None:
        yield X
        return

    def forget() -> None:
        """Drop this process's pages of the mapping, both written and only read pages."""
        mapping.madvise(mmap.MADV_DONTNEED)

    lender = _writable(X).view(FoldArray)
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
    """Return the runtime's copy-on-write mapping that contains `array`; None if no mapping contains it."""
    if not isinstance(array, np.ndarray) or array.flags.writeable:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


LEAST_BYTES = 16 * 2**20
"""Number of bytes below which a worker's own copy is faster than a shared copy."""

MOST_FILES = 128
"""Maximum number of files.

Each file needs a descriptor of the driver, which may have only a thousand descriptors.
"""

CHUNK_BYTES = 4 * 2**20

_MADV_POPULATE_READ = 22  # Linux supports this advice since version 5.14; the mmap module has no name for it

Part: TypeAlias = tuple[int, int]
"""Part of a fold: the fold's number, and 0 for the training samples or 1 for the test samples."""

Split: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True)
class SharedCopies:
    """Files of the shared copies, in a form that workers can open.

    Attributes:
        pid: process id of the driver.
        token: unique text in the names of the files.
        files: the driver's file descriptors, by part of a fold.
    """

    pid: int
    token: str
    files: Mapping[Part, int]

    def take(self, X: np.ndarray, part: Part, rows: np.ndarray, read: Callable[[], None]) -> Any:
        """Return `X[rows, ...]` as a writable copy; None if this process can't open the file.

        Args:
            X: array of samples.
            part: a key of `files`.
            rows: indices of the samples to copy, equal in every worker.
            read: function called after each piece of X has been read for a copy.

        Raises:
            MemoryError: too little memory is available.
        """
        fd = self._opened(part)
        if fd is None:
            return None
        size = X[:1].nbytes * len(rows)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if not _is_full(fd, size):
                fcntl.flock(fd, fcntl.LOCK_UN)
                with _turn_to_write(fd):
                    self._fill(fd, size, X, part, rows, read)
            return np.ndarray((len(rows), *X.shape[1:]), X.dtype, buffer=_mapped(fd, size))
        finally:
            os.close(fd)  # the mapping has its own descriptor

    def _fill(
        self, fd: int, size: int, X: np.ndarray, part: Part, rows: np.ndarray, read: Callable[[], None]
    ) -> None:
        """Write the copy unless another process has written it; return with a shared lock on the file."""
        while True:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _is_full(fd, size):
                return
            # The wait for the shared lock is short, because a process keeps a lock only on a full file. The
            # loop checks the file again, because another process may empty the file before this process has
            # the shared lock.
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._empty_unused(part)
            _write(fd, X, rows, read)

    def _empty_unused(self, but: Part) -> None:
        """Free the memory of all copies that no process uses, except the copy of the part `but`."""
        for part in self.files:
            fd = None if part == but else self._opened(part)
            if fd is None:
                continue
            try:
                if os.fstat(fd).st_size:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(fd, 0)
            except BlockingIOError:  # another process is using this copy of the data
                continue
            finally:
                os.close(fd)

    def _opened(self, part: Part) -> int | None:
        """Open the driver's file separately, because a lock belongs to an open file; return None if the file
        can't be opened.
        """
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.files[part]}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the driver is on another machine or has ended
            return None
        if os.readlink(f"/proc/self/fd/{fd}") != f"/memfd:{_name(self.token, part)} (deleted)":
            os.close(fd)  # a different process has the driver's id
            return None
        return fd


def parts_to_copy(X: Any, splits: Sequence[Split], *, views: bool) -> list[Part]:
    """Return the parts of folds that need shared copies; [] if they are too many or X is not a plain array.

    Args:
        X: samples.
        splits: indices of the training and test samples of each fold.
        views: True if contiguous samples become views and need no copy.
    """
    if type(X) is not np.ndarray or X.dtype.kind not in "biufc" or not X.ndim or not len(X):
        return []
    found = []
    for fold, split in enumerate(splits):
        slices = view_slices(*split) if views else (None, None)
        for place, (rows, view) in enumerate(zip(split, slices, strict=True)):
            if view is None and _is_worth(X, rows):
                found.append((fold, place))
    return found if len(found) <= MOST_FILES else []


def _is_worth(X: np.ndarray, rows: Any) -> bool:
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iu" or rows.ndim != 1:
        return False
    # If NumPy's copy would not be laid out row by row, NumPy itself makes the copy.
    return X[:1].nbytes * len(rows) >= LEAST_BYTES and bool(X[rows[:2], ...].flags.c_contiguous)


@contextlib.contextmanager
def open_copies(parts: Sequence[Part]) -> Iterator[SharedCopies]:
    """Keep a file open for each part of a fold until the block ends; no files if descriptors run out."""
    token = secrets.token_hex(8)
    files: dict[Part, int] = {}
    try:
        try:
            for part in parts:
                files[part] = os.memfd_create(_name(token, part), os.MFD_CLOEXEC)
        except OSError:  # no descriptors are left, so each worker makes its own copies
            while files:
                os.close(files.popitem()[1])
        yield SharedCopies(os.getpid(), token, files)
    finally:
        for fd in files.values():
            os.close(fd)


def _name(token: str, part: Part) -> str:
    fold, place = part
    return f"trainkit-copy-{token}-{fold}-{place}"


@contextlib.contextmanager
def _turn_to_write(fd: int) -> Iterator[None]:
    """Hold the file's lock for writers, which is independent of the locks of `flock`."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _whole_file(fcntl.F_WRLCK))
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def _whole_file(kind: int) -> bytes:
    """Return the C library's `struct flock` for a lock on a whole file."""
    return struct.pack("hhqqi0q", kind, os.SEEK_SET, 0, 0, 0)


def _is_full(fd: int, size: int) -> bool:
    return os.fstat(fd).st_size > size


def _mapped(fd: int, size: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"a copy of {size} bytes cannot be mapped into memory: {error}") from error
        raise
    with contextlib.suppress(OSError):  # an older kernel loads the pages one by one
        mapping.madvise(_MADV_POPULATE_READ)
    return mapping


def _write(fd: int, X: np.ndarray, rows: np.ndarray, read: Callable[[], None]) -> None:
    """Write the samples, followed by one byte.

    The samples are written by write calls, which raise an error if memory is short. A write to a mapping
    would kill the process.
    """
    at_once = max(1, CHUNK_BYTES // max(1, X[:1].nbytes))
    offset = 0
    try:
        for first in range(0, len(rows), at_once):
            piece = X[rows[first : first + at_once], ...].reshape(-1).view(np.uint8)
            offset = _written(fd, piece.data, offset)
            read()
        _written(fd, memoryview(b"\0"), offset)
    except (OSError, MemoryError) as error:
        os.ftruncate(fd, 0)  # the file is emptied, because an incomplete copy is useless
        raise MemoryError(f"a copy of {len(rows)} samples failed after {offset} bytes: {error}") from error


def _written(fd: int, piece: memoryview, offset: int) -> int:
    while piece:
        count = os.pwrite(fd, piece, offset)
        piece, offset = piece[count:], offset + count
    return offset


@dataclass(frozen=True)
class FoldCopies:
    """Function that returns the shared copies of one fold's samples.

    Args:
        copies: copies of all folds.
        fold: number of the fold.
        split: indices of the fold's training and test samples.
    """

    copies: SharedCopies
    fold: int
    split: Split

    def __call__(self, X: np.ndarray, rows: Any, read: Callable[[], None]) -> Any:
        """Return `X[rows, ...]`; None if no copy contains these samples."""
        for place, mine in enumerate(self.split):
            if (self.fold, place) in self.copies.files and (rows is mine or _same(rows, mine)):
                return self.copies.take(X, (self.fold, place), mine, read)
        return None


def _same(rows: Any, mine: np.ndarray) -> bool:
    return isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and np.array_equal(rows, mine)
