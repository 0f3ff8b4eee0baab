"""Commands that other processes send to the owner of an experiment, the process that runs it.

A command is a file in the folder `commands`. The owner removes the file, carries the command out, and commits
the command with its effects and its outcome. While the file exists, the owner has not taken the command. The
owner removes the file before it records the command in the history. If the owner dies between these two
steps, the command has no effect.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError, StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.log import logger

FOLDER = "commands"
EVERY_S = 0.5
_SUFFIX = ".json"
_FRESH_S = 5.0
"""Maximum age in seconds of commands that a new owner accepts.

This age lets users give commands while the owner is still starting.
"""
MAX_DEPTH = 100
"""Maximum nesting of dictionaries and lists in a command, to protect the owner's stack."""


def asker() -> str:
    """Return the name of this process as the sender of commands: 'user@host (pid 123)'."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (pid {os.getpid()})"


def leave_command(folder: Path, verb: str, arguments: Mapping[str, Any], by: str) -> Path:
    """Write a command for the experiment's owner to a file; removing the file withdraws the command.

    Args:
        folder: folder of the experiment.
        verb: verb of the command.
        arguments: arguments of the verb by name, as JSON values.
        by: name of the person or process that sends the command.

    Returns:
        The path of the file; its stem is the command's id.

    Raises:
        ConfigError: the arguments are not JSON values, or `by` is empty.
        StoreError: the experiment's folder can't be written.
    """
    inbox = folder / FOLDER
    name = uuid.uuid4().hex
    if not by:
        raise ConfigError(f"by={by!r} is empty: name the sender of the command, or leave by out")
    command = {"id": name, "verb": verb, "arguments": dict(arguments), "by": by}
    if _is_deep(command):
        raise ConfigError(f"the arguments of {verb} are nested deeper than {MAX_DEPTH} levels: flatten them")
    try:
        text = json.dumps(command, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{verb} takes only numbers, strings, lists and dictionaries, not {dict(arguments)!r}: {error}"
        ) from None
    try:
        inbox.mkdir(exist_ok=True)
        aside = inbox / f".{name}.partial"
        aside.write_bytes(text)
        return aside.rename(inbox / f"{name}{_SUFFIX}")
    except OSError as error:
        raise StoreError(f"{inbox} cannot be written: {error}") from error


def _is_deep(command: Any) -> bool:
    """Return True if a command is nested more than MAX_DEPTH levels deep."""
    level = [command]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    return bool(level)


class Inbox:
    """Inbox of commands for the owner of an experiment.

    Args:
        folder: folder of the experiment.
        since: time in seconds since 1970 at which the owner took the lock; older commands were for an earlier
            owner.
        known: ids of the commands in the history, which must not be carried out again.
    """

    def __init__(self, folder: Path, since: float, known: Iterable[str] = ()) -> None:
        self._known = set(known)
        self._folder = folder / FOLDER
        self._next_look = since
        self._changed = 0
        for path in self._folder.glob(f"*{_SUFFIX}"):
            # An error here means that the command was withdrawn, or that the entry is a folder.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                if path.stat().st_mtime < since - _FRESH_S:
                    path.unlink()

    def look(self, now: float) -> list[ev.CommandGiven]:
        """Return the new commands, oldest first; [] if the last look was less than EVERY_S seconds ago."""
        if now < self._next_look:
            return []
        self._next_look = now + EVERY_S
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return []
        if changed == self._changed:
            return []
        # A folder can change twice within one timestamp, so a recently changed folder is read again.
        self._changed = changed if now - changed / 1e9 > EVERY_S else 0
        return [ev.CommandGiven(now, *command) for command in self._take()]

    def _take(self) -> Iterator[tuple[str, str, dict[str, Any], str]]:
        try:
            paths = [path for path in self._folder.iterdir() if path.suffix == _SUFFIX]
            found = [(path.stat().st_mtime_ns, path) for path in paths]
        except FileNotFoundError:  # the folder does not exist yet, or a command was just withdrawn
            self._changed = 0
            return
        except OSError as error:
            logger.warning("the commands in %s cannot be read: %s", self._folder, error)
            return
        for _, path in sorted(found):
            try:
                text = path.read_text(errors="replace")
                path.unlink()
            except FileNotFoundError:  # the command was withdrawn
                continue
            # one unreadable command must not keep the other commands from being read
            except OSError as error:
                logger.warning("the command %s cannot be read: %s", path, error)
                continue
            try:
                command = _command_in(text)
            except (ValueError, KeyError, TypeError, RecursionError):
                logger.warning("%s is not a command of trainkit; the file is removed", path)
                continue
            if command[-1] in self._known:
                logger.warning("the command %s was already carried out; the file is removed", path)
                continue
            self._known.add(command[-1])
            yield command


def _command_in(text: str) -> tuple[str, str, dict[str, Any], str]:
    """Return the command in a file's text, with its sender, verb, arguments and id.

    Raises:
        Exception: the text is not a command.
    """
    read = json.loads(text)
    if _is_deep(read):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    # The text is encoded so that lone surrogates, which can't be stored, raise an error.
    json.dumps(read, ensure_ascii=False).encode()
    command = str(read["by"]), str(read["verb"]), dict(read["arguments"]), str(read["id"])
    if not command[0]:
        raise ValueError("its sender is missing")
    return command
