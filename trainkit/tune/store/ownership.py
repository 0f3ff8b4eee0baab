"""Lock of the process that owns an experiment, and the requests that other processes make of it."""

from __future__ import annotations

import fcntl
import getpass
import json
import logging
import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainkit.errors import StoreError
from trainkit.tune.controller import events as ev

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


logger = logging.getLogger("trainkit.tune")

FOLDER = "commands"
EVERY_S = 0.5
_SUFFIX = ".json"
_FRESH_S = 5.0
"""Younger wishes may be for the owner that is just starting."""


def asker() -> str:
    """Return the name of the asking process: 'user@host (pid 123)'."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (pid {os.getpid()})"


def ask_to_stop(folder: Path, trial_id: str | None, by: str) -> Path:
    """Leave the wish that a trial, or with None the experiment, be stopped; return the file, to take it back.

    Raises:
        StoreError: the experiment's folder can't be written.
    """
    inbox = folder / FOLDER
    name = uuid.uuid4().hex
    try:
        inbox.mkdir(exist_ok=True)
        aside = inbox / f".{name}.partial"
        aside.write_text(json.dumps({"stop": trial_id, "by": by}))
        return aside.rename(inbox / f"{name}{_SUFFIX}")
    except OSError as error:
        raise StoreError(f"{inbox} cannot be written: {error}") from error


class Inbox:
    """The owner's side.

    Args:
        folder: of the experiment.
        now: the time, in seconds since 1970; wishes that are older were for an owner of before.
    """

    def __init__(self, folder: Path, now: float) -> None:
        self._folder = folder / FOLDER
        self._next_look = now
        self._changed = 0
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.stat().st_mtime < now - _FRESH_S:
                path.unlink()

    def look(self, now: float) -> list[ev.StopAsked]:
        """Return what was left since the last look, oldest first; nothing if that was just now."""
        if now < self._next_look:
            return []
        self._next_look = now + EVERY_S
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return []
        if changed == self._changed:
            return []
        # A folder that has just changed may change again with the same date: it is looked into once more.
        self._changed = changed if now - changed / 1e9 > EVERY_S else 0
        return [ev.StopAsked(now, asked["by"], asked["stop"]) for asked in self._take()]

    def _take(self) -> Iterator[dict[str, Any]]:
        try:
            paths = [path for path in self._folder.iterdir() if path.suffix == _SUFFIX]
            for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
                text = path.read_text(errors="replace")
                path.unlink()
                try:
                    asked = json.loads(text)
                    yield {"stop": asked["stop"], "by": str(asked["by"])}
                except (ValueError, KeyError, TypeError):
                    logger.warning("%s is nothing that `trainkit stop` writes; it was removed", path)
        except FileNotFoundError:  # nobody has asked for anything yet
            return
        except OSError as error:
            logger.warning("what `trainkit stop` has left in %s cannot be read: %s", self._folder, error)
