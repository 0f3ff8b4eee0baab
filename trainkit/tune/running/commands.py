"""What other processes ask of a running experiment: small files, which its owner takes up.

A file is written aside and renamed, so it is read whole or not at all. The owner looks at the folder's
date twice a second, which costs nothing beside a trial.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainkit.errors import StoreError
from trainkit.tune.control import events as ev

logger = logging.getLogger("trainkit.tune")

FOLDER = "commands"
EVERY_S = 0.5
_SUFFIX = ".json"
_FRESH_S = 5.0
"""Younger wishes may be for the owner that is just starting."""


def asker() -> str:
    """Who asks: 'user@host (pid 123)'."""
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
