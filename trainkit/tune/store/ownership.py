"""Lock of the process that owns an experiment, and the commands that other processes leave for it.

A command is a file in the folder `commands`. The owner removes the file, carries the command out, and
commits it together with its effects and its outcome. So while the file is there, the command was not taken.
Once it is gone, the command is in the history or about to be; if the owner died in between, it had no effect.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import logging
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError, StoreError
from trainkit.tune.controller import events as ev

FILENAME = "experiment.lock"
_LOOKS = 10
"""Looks at the list of locks, of which none must show a lock, before it is not held."""


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
        """Release the lock and remove its file, for a folder that no other process will ever own."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock; its file stays, as another process may be waiting for it."""
        os.ftruncate(self._descriptor, 0)  # so that who looks for an owner need not look twice
        # Explicitly, as a forked child may still hold a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def owned_by(pids: Iterable[int]) -> list[Path]:
    """Return the folders of the experiments that these processes run."""
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
    """Return the pid of the process that runs the experiment; 0 if it is not known, None if there is none.

    The kernel's list tells who holds the lock: to try the lock would refuse an owner that comes at that
    moment. The list is read in pages, and a lock may move from one page to another in between, so that it is
    missed. Therefore the list is read again while the process lives whose pid the file has.

    Raises:
        StoreError: it can't be found out.
    """
    path = folder / FILENAME
    try:
        for _ in range(_LOOKS):
            inode, pid = path.stat().st_ino, path.read_text().strip()
            # 1: FLOCK  ADVISORY  WRITE 4711 00:2b:123456 0 EOF
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
    """Return the kernel's list of locks, of which some may be missing."""
    return Path("/proc/locks").read_text().splitlines()


logger = logging.getLogger("trainkit.tune")

FOLDER = "commands"
EVERY_S = 0.5
_SUFFIX = ".json"
_FRESH_S = 5.0
"""Commands that are so much older than the owner may have been given to it as it started."""
MAX_DEPTH = 100
"""Dictionaries and lists within one another in a command; more would exceed the owner's stack."""


def asker() -> str:
    """Return the name of the asking process: 'user@host (pid 123)'."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (pid {os.getpid()})"


def leave_command(folder: Path, verb: str, arguments: Mapping[str, Any], by: str) -> Path:
    """Leave a command for the experiment's owner; return the file, to take it back.

    Args:
        folder: of the experiment.
        verb: of the command.
        arguments: of the verb, by name; JSON values.
        by: says who gives it.

    Returns:
        The file, whose stem is the command's id.

    Raises:
        ConfigError: the arguments are no JSON values, or `by` is empty.
        StoreError: the experiment's folder can't be written.
    """
    inbox = folder / FOLDER
    name = uuid.uuid4().hex
    if not by:
        raise ConfigError(f"by={by!r}: say who gives the command, or leave it out")
    command = {"id": name, "verb": verb, "arguments": dict(arguments), "by": by}
    if _is_deep(command):
        raise ConfigError(f"what {verb} was given is nested deeper than {MAX_DEPTH} levels: give less")
    try:
        text = json.dumps(command, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{verb} {dict(arguments)!r} cannot be written as JSON: {error}. Give numbers, texts, lists and "
            "dictionaries"
        ) from None
    try:
        inbox.mkdir(exist_ok=True)
        aside = inbox / f".{name}.partial"
        aside.write_bytes(text)
        return aside.rename(inbox / f"{name}{_SUFFIX}")
    except OSError as error:
        raise StoreError(f"{inbox} cannot be written: {error}") from error


def _is_deep(command: Any) -> bool:
    """Return True if a command is nested too deeply."""
    level = [command]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    return bool(level)


def make_private(folder: Path, *, exist_ok: bool = True) -> None:
    """Make the folder of an experiment: whoever can open its database can hold its lock, and so end it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=exist_ok)


class Inbox:
    """Commands for the owner of an experiment.

    Args:
        folder: of the experiment.
        since: when the owner took the lock, in seconds since 1970; older commands were for an earlier owner.
        known: ids of commands that are in the history, and not to be carried out again.
    """

    def __init__(self, folder: Path, since: float, known: Iterable[str] = ()) -> None:
        self._known = set(known)
        self._folder = folder / FOLDER
        self._next_look = since
        self._changed = 0
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # taken back; no command
                if path.stat().st_mtime < since - _FRESH_S:
                    path.unlink()

    def look(self, now: float) -> list[ev.CommandGiven]:
        """Return the new commands, oldest first; none if the last look was only a moment ago."""
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
        return [ev.CommandGiven(now, *command) for command in self._take()]

    def _take(self) -> Iterator[tuple[str, str, dict[str, Any], str]]:
        try:
            found = [(path.stat().st_mtime_ns, path) for path in self._folder.iterdir() if _is_command(path)]
        except FileNotFoundError:  # nobody has asked for anything yet, or one was just taken back
            self._changed = 0
            return
        except OSError as error:
            logger.warning("the commands in %s cannot be read: %s", self._folder, error)
            return
        for _, path in sorted(found):
            try:
                text = path.read_text(errors="replace")
                path.unlink()
            except FileNotFoundError:  # taken back
                continue
            except OSError as error:  # such as a folder of this name, which holds up no other command
                logger.warning("the command %s cannot be read: %s", path, error)
                continue
            try:
                command = _command_in(text)
            except (ValueError, KeyError, TypeError, RecursionError):
                logger.warning("%s is no command of trainkit's; it was removed", path)
                continue
            if command[-1] in self._known:
                logger.warning("the command %s was carried out before; it was removed", path)
                continue
            self._known.add(command[-1])
            yield command


def _is_command(path: Path) -> bool:
    return path.suffix == _SUFFIX


def _command_in(text: str) -> tuple[str, str, dict[str, Any], str]:
    """Return a command read from its file: who gave it, its verb, its arguments and its id.

    Raises:
        Exception: the text is no command.
    """
    read = json.loads(text)
    if _is_deep(read):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    json.dumps(read, ensure_ascii=False).encode()  # half a character can't be kept
    command = str(read["by"]), str(read["verb"]), dict(read["arguments"]), str(read["id"])
    if not command[0]:
        raise ValueError("nobody has given it")
    return command
