"""Working directory and log files of a trial's process.

Each step of a trial enters this environment before the user's code and leaves it afterwards. When a step has
left the environment, no change to the process may remain, because several trials may run in one process, in
turns or one after another.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from trainkit.errors import ConfigError
from trainkit.settings import OLD_WORKING_DIR

logger = logging.getLogger(__name__)

SEARCH_PATH = "PYTHONPATH"

Moved = list[tuple[str | None, str, str]]
"""List of changes.

Changes to the process. Each change has the name of an environment variable (None for an entry of `sys.path`),
the new value and the old value.
"""


@dataclass(frozen=True)
class TrialEnvironment:
    """Environment of a trial's code: working directory and log files.

    Attributes:
        log_files: names of the files for stdout and stderr in the trial's folder; None: no redirection.
        chdir: True if the working directory is the trial's folder.
    """

    log_files: tuple[str, str] | None = None
    chdir: bool = False

    @contextlib.contextmanager
    def entered(self, trial_dir: str, *, own_process: bool) -> Iterator[None]:
        """Run the block in the environment of the trial in `trial_dir`.

        Args:
            trial_dir: the trial's folder.
            own_process: False if trials run in the user's program itself.
        """
        before = _working_dir()
        is_first = before != "" and OLD_WORKING_DIR not in os.environ
        if is_first:
            os.environ[OLD_WORKING_DIR] = before
        moved: Moved = []
        try:  # an exit stack would double the cost of a report
            if self.chdir:
                os.chdir(trial_dir)
                if before:
                    _move(before, moved)
            if self.log_files is None:
                yield
            else:
                with contextlib.ExitStack() as undo:
                    _redirect([os.path.join(trial_dir, name) for name in self.log_files], undo, own_process)
                    yield
        except FileNotFoundError as error:
            if self.chdir and isinstance(error.filename, str):
                _tell_where(error, before)
            raise
        finally:
            _leave(before if self.chdir else None, is_first, moved)


def divert(paths: Sequence[str]) -> None:
    """Redirect the stdout and stderr of this process to files from now on.

    Use this function only in a process that serves a single trial, like a trainer's worker.
    """
    # The old descriptors stay open, so that the process that reads them notices this process's end and
    # receives the output of a crash.
    _redirect(paths, contextlib.ExitStack(), own_process=True)


def log_files(log_to_file: Any) -> tuple[str, str] | None:
    """Return the file names for RunConfig(log_to_file=...); None: output is not kept.

    Raises:
        ConfigError: the value does not name files in a trial's folder.
    """
    match log_to_file:
        case None | False:
            return None
        case True:
            return "stdout", "stderr"
        case str():
            names: tuple[Any, ...] = (log_to_file, log_to_file)
        case (out, err):
            names = (out, err)
        case _:
            names = ()
    if len(names) != 2 or not all(isinstance(name, str) and _is_inside(name) for name in names):
        raise ConfigError(
            f"log_to_file={log_to_file!r}: give True, the name of a file in a trial's folder, or two of them"
        )
    return names[0], names[1]


def _is_inside(name: str) -> bool:
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _working_dir() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the directory was removed, but the trial can run without it
        return ""


def _move(before: str, moved: Moved) -> None:
    """Keep modules in the former working directory importable, here and in the trial's subprocesses."""
    # An empty entry on the search path means the working directory. The entry is made absolute, so that
    # modules beside the script stay importable.
    for place, entry in enumerate(sys.path):
        # Each report runs this comparison, which is faster than os.path.isabs.
        if type(entry) is str and entry[:1] != os.sep:
            whole = os.path.join(before, entry) if entry else before
            # A path that does not exist names an import hook, as in editable installs by setuptools, so it
            # stays unchanged.
            if os.path.exists(whole):
                sys.path[place] = whole
                moved.append((None, whole, entry))
    found = os.environ.get(SEARCH_PATH)
    if found and (whole := _absolute(found, before)) != found:
        os.environ[SEARCH_PATH] = whole
        moved.append((SEARCH_PATH, whole, found))


@functools.lru_cache(16)
def _absolute(paths: str, folder: str) -> str:
    return os.pathsep.join([os.path.join(folder, path) for path in paths.split(os.pathsep)])


def _leave(before: str | None, is_first: bool, moved: Moved) -> None:
    if is_first:
        try:  # contextlib.suppress would double the cost of a report
            del os.environ[OLD_WORKING_DIR]
        except KeyError:
            is_first = False  # the trial has removed the variable
    for variable, whole, entry in moved:
        if variable is None:
            if whole in sys.path:
                sys.path[sys.path.index(whole)] = entry
        elif os.environ.get(variable) == whole:
            os.environ[variable] = entry
    if before is None:
        return
    try:
        os.chdir(before)
    except OSError as error:  # an error here must not lose the trial's result
        logger.warning(
            "the process can't return to the program's folder%s (%s), so it stays in the "
            "folder of the trial: run programs in a folder that exists until all trials end",
            *((f", {before!r},", error) if before else ("", "it was removed before the trial")),
        )


def _tell_where(error: FileNotFoundError, before: str) -> None:
    there = os.path.join(before, error.filename)
    if before and not os.path.isabs(error.filename) and os.path.exists(there):
        error.add_note(
            f"A trial runs in its own folder, but the file exists in the program's folder, as {there}: use "
            f"an absolute path, such as one with os.environ[{OLD_WORKING_DIR!r}], or "
            "RunConfig(chdir_to_trial_dir=False)."
        )


def _redirect(paths: Sequence[str], undo: contextlib.ExitStack, own_process: bool) -> None:
    """Redirect descriptors 1 and 2 to files, which includes output of C code and subprocesses."""
    # Python's streams are replaced too, because in a notebook they do not use these descriptors.
    streams = (sys.stdout, sys.stderr)
    _flush(*streams)
    for descriptor, path in zip((1, 2), paths, strict=True):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        kept = os.dup(descriptor)
        undo.callback(os.close, kept)
        undo.callback(os.dup2, kept, descriptor)
        os.dup2(file, descriptor)
        os.close(file)
        if descriptor == 2 and own_process and faulthandler.is_enabled():
            # The traceback of a crash must go to the runtime, which adds the traceback to the trial's error.
            faulthandler.enable(kept)
            undo.callback(faulthandler.enable, 2)
    new = [
        open(descriptor, "w", buffering=1, closefd=False, errors="backslashreplace", encoding="utf-8")  # noqa: SIM115
        for descriptor in (1, 2)
    ]
    sys.stdout, sys.stderr = new
    undo.callback(_streams_back, streams, new)


def _streams_back(before: Sequence[Any], own: Sequence[Any]) -> None:
    _flush(*own)
    sys.stdout, sys.stderr = before


def _flush(*streams: Any) -> None:
    for stream in streams:
        with contextlib.suppress(ValueError, OSError, AttributeError):  # the stream is closed or None
            stream.flush()
    # The buffers of C code are flushed, because their content could otherwise end up in another trial's file.
    _libc().fflush(None)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
