"""One process owns an experiment: a lock that the kernel lets go of when the owner dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from trainkit.errors import StoreError

FILENAME = "experiment.lock"


class Ownership:
    """Holds the lock of an experiment's folder until `close`.

    Raises:
        StoreError: another process holds it; the message names its pid.
    """

    def __init__(self, folder: Path) -> None:
        # A file of its own: closing any descriptor of the database would drop SQLite's locks on it.
        self._path = path = folder / FILENAME
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
                f"{folder} is in use by the process with pid {owner}: wait until it ends, or end it"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def remove(self) -> None:
        """Let go where nobody else will ever want it, so that the file need not stay."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go; the file stays, since removing it could cut off who waits for it."""
        # Explicitly, as a forked child may still hold a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def owned_by(pids: Iterable[int]) -> list[Path]:
    """Folders of the experiments that these processes run."""
    found = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                path = link.readlink()
            except OSError:  # closed meanwhile, or the process is gone or another user's
                continue
            if path.name == FILENAME and owner_of(path.parent) == pid:
                found.add(path.parent)
    return sorted(found)


def owner_of(folder: Path) -> int | None:
    """The pid of the process that runs the experiment; 0 where it is not known, None if nobody does.

    The kernel is asked who holds the lock: taking it for a look would refuse an owner that comes just then.

    Raises:
        StoreError: it can't be found out.
    """
    path = folder / FILENAME
    try:
        inode, pid = path.stat().st_ino, path.read_text().strip()
        locks = Path("/proc/locks").read_text().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    # 1: FLOCK  ADVISORY  WRITE 4711 00:2b:123456 0 EOF
    held = any(" FLOCK " in line and line.split()[-3].endswith(f":{inode}") for line in locks)
    if not held:
        return None
    return int(pid) if pid.isdecimal() else 0
