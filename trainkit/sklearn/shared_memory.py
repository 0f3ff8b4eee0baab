"""Samples of folds in shared memory: views of contiguous rows, and copies that workers share."""

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


class FoldArray(np.ndarray):
    """An array that gives rows lying side by side as a view, or shared, where NumPy would copy them."""

    views = False
    shared: RowProvider | None = None
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
def lent(
    X: Any, train: Any, test: Any, *, views: bool = True, shared: RowProvider | None = None
) -> Iterator[Any]:
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
    """The copy-on-write mapping that holds `array`, as the runtime makes one; None: it lies elsewhere."""
    if not isinstance(array, np.ndarray) or array.flags.writeable:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


LEAST_BYTES = 16 * 2**20
"""What is smaller is copied sooner than found."""

MOST_FILES = 128
"""Each takes a descriptor of the driver, which may have as few as a thousand."""

CHUNK_BYTES = 4 * 2**20

_MADV_POPULATE_READ = 22  # of Linux 5.14; the mmap module doesn't name it

Part: TypeAlias = tuple[int, int]
"""Which fold, and of that: 0 the training samples, 1 the others."""

Split: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True)
class SharedCopies:
    """Where the copies lie; it travels to the workers.

    Attributes:
        pid: of the driver.
        token: in the names of its files, which nobody else's have.
        files: the driver's descriptors.
    """

    pid: int
    token: str
    files: Mapping[Part, int]

    def take(self, X: np.ndarray, part: Part, rows: np.ndarray, read: Callable[[], None]) -> Any:
        """Return `X[rows, ...]`, which may be written to as any copy; None: it can't be had here.

        Args:
            X: array of samples.
            part: for which there is a file.
            rows: the samples of that part, the same in every worker.
            read: called again and again while a copy is made, when a piece of X was read.

        Raises:
            MemoryError: there is no room for it.
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
        """Write the copy, unless who had the turn before has; it is locked beside others then."""
        while True:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _is_full(fd, size):
                return
            # Nobody keeps a lock of a file that is not full. It is looked at again after this, as who empties
            # files may come in between one lock and the other.
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._empty_unused(part)
            _write(fd, X, rows, read)

    def _empty_unused(self, but: Part) -> None:
        """Give the memory back of all copies that nobody uses now."""
        for part in self.files:
            fd = None if part == but else self._opened(part)
            if fd is None:
                continue
            try:
                if os.fstat(fd).st_size:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.ftruncate(fd, 0)
            except BlockingIOError:  # it is used
                continue
            finally:
                os.close(fd)

    def _opened(self, part: Part) -> int | None:
        """The file, opened anew, as a lock belongs to one opening; None: it isn't there for this process."""
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.files[part]}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # of another machine, or of a driver that has ended
            return None
        if os.readlink(f"/proc/self/fd/{fd}") != f"/memfd:{_name(self.token, part)} (deleted)":
            os.close(fd)  # of a process there that has the same number
            return None
        return fd


def parts_to_copy(X: Any, splits: Sequence[Split], *, views: bool) -> list[Part]:
    """Return the parts of folds to share copies of; none where there are too many, or X is of another kind.

    Args:
        X: what is split.
        splits: of each fold, the indices of its training and of its test samples.
        views: whether samples that lie side by side are lent as a view.
    """
    if type(X) is not np.ndarray or X.dtype.kind not in "biufc" or not X.ndim or not len(X):
        return []
    found = []
    for fold, split in enumerate(splits):
        lent = lendable(*split) if views else (None, None)
        for place, (rows, view) in enumerate(zip(split, lent, strict=True)):
            if view is None and _is_worth(X, rows):
                found.append((fold, place))
    return found if len(found) <= MOST_FILES else []


def _is_worth(X: np.ndarray, rows: Any) -> bool:
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iu" or rows.ndim != 1:
        return False
    # What NumPy lays out in another order than row by row is left to it.
    return X[:1].nbytes * len(rows) >= LEAST_BYTES and bool(X[rows[:2], ...].flags.c_contiguous)


@contextlib.contextmanager
def held(parts: Sequence[Part]) -> Iterator[SharedCopies]:
    """Hold a file for each of these parts until the block ends; none where so many can't be opened."""
    token = secrets.token_hex(8)
    files: dict[Part, int] = {}
    try:
        try:
            for part in parts:
                files[part] = os.memfd_create(_name(token, part), os.MFD_CLOEXEC)
        except OSError:  # the program needs what descriptors there are: each worker copies for itself
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
    """Be the only one that writes to this file; by a lock that those of `flock` have nothing to do with."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _whole_file(fcntl.F_WRLCK))
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def _whole_file(kind: int) -> bytes:
    """The C library's `struct flock`: kind, where it starts from, start, length (0: all) and no pid."""
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
    """Write the samples one after another, and the byte behind them.

    By calls and not through a mapping: where memory has run out these raise, and a mapping kills.
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
        os.ftruncate(fd, 0)  # half of it is of use to nobody
        raise MemoryError(f"a copy of {len(rows)} samples, {offset} bytes of it made: {error}") from error


def _written(fd: int, piece: memoryview, offset: int) -> int:
    while piece:
        count = os.pwrite(fd, piece, offset)
        piece, offset = piece[count:], offset + count
    return offset


@dataclass(frozen=True)
class FoldCopies:
    """The copies of one fold, asked for by the indices of its samples.

    Args:
        copies: of all folds.
        fold: which one.
        split: its training samples and the others, as indices.
    """

    copies: SharedCopies
    fold: int
    split: Split

    def __call__(self, X: np.ndarray, rows: Any, read: Callable[[], None]) -> Any:
        """Return `X[rows, ...]`; None: these are not the samples of a part that has a copy."""
        for place, mine in enumerate(self.split):
            if (self.fold, place) in self.copies.files and (rows is mine or _same(rows, mine)):
                return self.copies.take(X, (self.fold, place), mine, read)
        return None


def _same(rows: Any, mine: np.ndarray) -> bool:
    return isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and np.array_equal(rows, mine)
