"""Samples of folds in shared memory: views of contiguous rows, and copies that workers share.

Contiguous rows of X, such as those of `TimeSeriesSplit` or of a hold-out, are a view. The worker's mapping is
copy-on-write, so an estimator may write to the view: what it wrote is dropped when the fold is done, and no
other process sees it.

For every other part of a fold the driver holds an anonymous file, empty at first, for one copy that all
workers use:

    empty -- a worker that needs the copy locks the file alone and writes it --> full
    full  -- each user of the copy has a shared lock and a copy-on-write mapping of its own --> full
    full  -- no process has a lock, and another copy is to be written --> empty

The lock is on the worker's own open file, which its mapping keeps open. It lasts as long as any array of that
mapping, also one that an estimator has kept, and ends when the process is killed. A full file is longer than
the samples by a byte, so a file whose writer was killed is not taken for full.

A process that finds the file empty waits to write by a lock of another kind, and then checks the file again.
So no process waits for the users of a copy, who may use it for ever. Copies take no more memory than copies
of each worker's own would, and far less where workers are at the same fold. A worker that can't open the
driver's files makes its own copies.
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
"""Function of X, indices of rows and a function to call after each piece of X; returns the rows or None."""


def contiguous_slice(indices: Any) -> slice | None:
    """Return the slice for contiguous `indices`; None for others.

    Args:
        indices: of rows, whole numbers.
    """
    if not isinstance(indices, np.ndarray) or indices.dtype.kind not in "iu" or len(indices) == 0:
        return None
    first, last = int(indices[0]), int(indices[-1])
    if first < 0 or last - first + 1 != len(indices) or not bool(np.all(np.diff(indices) == 1)):
        return None
    return slice(first, last + 1)


def view_slices(train: Any, test: Any) -> tuple[slice | None, slice | None]:
    """Return the slices of a fold's training and test rows that may be views; None for rows that may not.

    Args:
        train: indices of the fold's training rows.
        test: indices of its test rows.
    """
    ours, others = contiguous_slice(train), contiguous_slice(test)
    # A row in both would show in one what is written to the other.
    apart = ours is None or others is None or max(ours.start, others.start) >= min(ours.stop, others.stop)
    return (ours, others) if apart else (None, None)


class FoldArray(np.ndarray):
    """Array that gives contiguous rows as a view, and other rows from a shared copy."""

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
    """Give X as a FoldArray, or as it is; what is written to views is dropped at the end.

    Args:
        X: of any kind; only arrays that the runtime has mapped become a FoldArray.
        train: indices of the fold's training rows.
        test: indices of its test rows.
        views: give contiguous rows as views, which must not be used after the end.
        shared: gives other rows, which may be used after the end.
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
        """Drop this process's pages, those written to and those only read."""
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
    """Return the runtime's copy-on-write mapping that holds `array`; None if there is none."""
    if not isinstance(array, np.ndarray) or array.flags.writeable:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


LEAST_BYTES = 16 * 2**20
"""Bytes below which a copy of a worker's own is faster than a shared one."""

MOST_FILES = 128
"""Files at most, as each takes one of the driver's descriptors, which may be as few as a thousand."""

CHUNK_BYTES = 4 * 2**20

_MADV_POPULATE_READ = 22  # of Linux 5.14; the mmap module doesn't name it

Part: TypeAlias = tuple[int, int]
"""Number of a fold, and 0 for its training samples or 1 for its test samples."""

Split: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True)
class SharedCopies:
    """Files of the shared copies, as workers find them.

    Attributes:
        pid: of the driver.
        token: unique text in the names of the files.
        files: descriptors of the driver.
    """

    pid: int
    token: str
    files: Mapping[Part, int]

    def take(self, X: np.ndarray, part: Part, rows: np.ndarray, read: Callable[[], None]) -> Any:
        """Return `X[rows, ...]` as a writable copy; None if the file is not accessible here.

        Args:
            X: array of samples.
            part: one of `files`.
            rows: indices of its samples, the same in every worker.
            read: called after each piece of X that is read for a copy.

        Raises:
            MemoryError: there is not enough memory.
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
            os.close(fd)  # the mapping has its own descriptor of the same open file

    def _fill(
        self, fd: int, size: int, X: np.ndarray, part: Part, rows: np.ndarray, read: Callable[[], None]
    ) -> None:
        """Write the copy unless the previous writer has; leave the file with a shared lock."""
        while True:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _is_full(fd, size):
                return
            # No process keeps a lock of a file that is not full. The loop checks it again, as another process
            # may empty files between one lock and the other.
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._empty_unused(part)
            _write(fd, X, rows, read)

    def _empty_unused(self, but: Part) -> None:
        """Free the memory of all copies that no process uses."""
        for part in self.files:
            fd = None if part == but else self._opened(part)
            if fd is None:
                continue
            try:
                if os.fstat(fd).st_size:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(fd, 0)
            except BlockingIOError:  # in use
                continue
            finally:
                os.close(fd)

    def _opened(self, part: Part) -> int | None:
        """Open the file anew, as a lock belongs to one opening; return None if this process can't."""
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.files[part]}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # of another machine, or of a driver that has ended
            return None
        if os.readlink(f"/proc/self/fd/{fd}") != f"/memfd:{_name(self.token, part)} (deleted)":
            os.close(fd)  # of a process there that has the same number
            return None
        return fd


def parts_to_copy(X: Any, splits: Sequence[Split], *, views: bool) -> list[Part]:
    """Return the parts of folds to share copies of; none if they are too many or X is no plain array.

    Args:
        X: samples.
        splits: indices of the training and of the test samples of each fold.
        views: contiguous samples are given as views and need no copy.
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
    # Copies that NumPy would not lay out row by row are left to NumPy.
    return X[:1].nbytes * len(rows) >= LEAST_BYTES and bool(X[rows[:2], ...].flags.c_contiguous)


@contextlib.contextmanager
def open_copies(parts: Sequence[Part]) -> Iterator[SharedCopies]:
    """Hold a file for each part until the block ends; none if so many can't be opened."""
    token = secrets.token_hex(8)
    files: dict[Part, int] = {}
    try:
        try:
            for part in parts:
                files[part] = os.memfd_create(_name(token, part), os.MFD_CLOEXEC)
        except OSError:  # descriptors have run out: each worker makes its own copies
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
    """Hold the lock of the file's writer, which is independent of the locks of `flock`."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _whole_file(fcntl.F_WRLCK))
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def _whole_file(kind: int) -> bytes:
    """Return the C library's `struct flock` for a whole file."""
    return struct.pack("hhqqi0q", kind, os.SEEK_SET, 0, 0, 0)


def _is_full(fd: int, size: int) -> bool:
    return os.fstat(fd).st_size > size


def _mapped(fd: int, size: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"a copy of {size} bytes can't be mapped: {error}") from error
        raise
    with contextlib.suppress(OSError):  # an older kernel finds the pages one by one, as they are read
        mapping.madvise(_MADV_POPULATE_READ)
    return mapping


def _write(fd: int, X: np.ndarray, rows: np.ndarray, read: Callable[[], None]) -> None:
    """Write the samples and one byte behind them.

    Calls are used in place of a mapping: if memory has run out, calls raise and a mapping kills the process.
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
        os.ftruncate(fd, 0)  # half a copy is of no use
        raise MemoryError(f"a copy of {len(rows)} samples, {offset} bytes of it made: {error}") from error


def _written(fd: int, piece: memoryview, offset: int) -> int:
    while piece:
        count = os.pwrite(fd, piece, offset)
        piece, offset = piece[count:], offset + count
    return offset


@dataclass(frozen=True)
class FoldCopies:
    """Shared copies of one fold, by the indices of its samples.

    Args:
        copies: of all folds.
        fold: number of the fold.
        split: indices of its training and of its test samples.
    """

    copies: SharedCopies
    fold: int
    split: Split

    def __call__(self, X: np.ndarray, rows: Any, read: Callable[[], None]) -> Any:
        """Return `X[rows, ...]`; None if no copy holds these samples."""
        for place, mine in enumerate(self.split):
            if (self.fold, place) in self.copies.files and (rows is mine or _same(rows, mine)):
                return self.copies.take(X, (self.fold, place), mine, read)
        return None


def _same(rows: Any, mine: np.ndarray) -> bool:
    return isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and np.array_equal(rows, mine)
