"""Lock of the process that owns an experiment."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from trainkit.errors import StoreError

FILENAME = "experiment.lock"
_LOOKS = 10
"""Number of readings of the kernel's list of locks without a lock after which the lock counts as free."""


class Ownership:
    """Lock on an experiment's folder, held until `close`.

    Args:
        folder: the folder.
        filename: name of the file that is locked.

    Raises:
        StoreError: another process holds the lock; the message names its pid.
    """

    def __init__(self, folder: Path, filename: str = FILENAME) -> None:
        # The lock is on a separate file, because closing a descriptor of the database would release SQLite's
        # locks on the database.
        self._path = path = folder / filename
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"{folder} is in use by the process with pid {owner}: wait until it ends, or stop it"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def remove(self) -> None:
        """Release the lock and remove its file; only for a folder that no other process will ever own."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock; its file stays, because another process may wait for the lock."""
        # The pid is removed from the lock file first, so that `owner_of` need not read the list of locks
        # several times.
        os.ftruncate(self._descriptor, 0)
        # The lock is released explicitly, because a forked child may still hold a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def owned_by(pids: Iterable[int]) -> list[Path]:
    """Return the folders of all experiments that these processes run."""
    found = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                path = link.readlink()
            except OSError:  # the descriptor was closed, or the process ended or belongs to another user
                continue
            if path.name == FILENAME and owner_of(path.parent) == pid:
                found.add(path.parent)
    return sorted(found)


def owner_of(folder: Path) -> int | None:
    """Return the pid of the process that runs the experiment; 0: the pid is unknown; None: no process.

    The kernel's list of locks shows if a process holds the lock. An attempt to take the lock is no
    alternative, because a new owner that takes the lock at the same moment would fail. The list is read in
    pages, and a lock that moves between pages during the read is missed. The list is therefore read several
    times while the process named in the lock file is alive.

    Raises:
        StoreError: the lock file or the list can't be read.
    """
    path = folder / FILENAME
    try:
        for _ in range(_LOOKS):
            inode, pid = path.stat().st_ino, path.read_text().strip()
            # A line of the list looks like this: "1: FLOCK  ADVISORY  WRITE 4711 00:2b:123456 0 EOF".
            if any(" FLOCK " in line and line.split()[-3].endswith(f":{inode}") for line in _locks()):
                return int(pid) if pid.isdecimal() else 0
            if not pid.isdecimal() or not os.path.exists(f"/proc/{pid}"):
                return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    return None


def _locks() -> list[str]:
    """Return the kernel's list of locks; a few locks may be missing."""
    return Path("/proc/locks").read_text().splitlines()


def make_private(folder: Path, *, exist_ok: bool = True) -> None:
    """Create an experiment's folder for this user only, as other users could lock its database."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=exist_ok)
