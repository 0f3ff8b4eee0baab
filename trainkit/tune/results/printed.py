"""Files that trials and workers have printed to, and their last lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainkit.errors import ConfigError
from trainkit.tune.results.overview import LogReader
from trainkit.tune.trial.environment import log_files

MAX_LINE = 10_000
"""Characters that are shown of a line."""
MAX_READ = 64 * 1024 * 1024
"""Bytes of a file that are searched, from its end."""
_BLOCK = 1024 * 1024


def printed_files(folder: Path, dirname: str, log_to_file: Any) -> list[Path]:
    """Return the files that keep what a trial printed; [] where nothing is kept.

    Args:
        folder: of the experiment.
        dirname: of the trial's folder in it.
        log_to_file: as in RunConfig; files by the names that True means are found whatever it is.
    """
    names = dict.fromkeys((*(log_files(log_to_file) or ()), *(log_files(True) or ())))
    found = (inside(folder, dirname, name) for name in names)
    return [path for path in found if path is not None and path.is_file()]


def kept_files(reader: LogReader, dirname: str) -> list[Path]:
    """Return the files of a trial that has the folder `dirname`.

    Raises:
        ConfigError: nothing is kept.
    """
    found = printed_files(reader.folder, dirname, reader.facts()["run_config"]["log_to_file"])
    if not found:
        raise ConfigError(
            f"nothing that the trial printed is in {reader.folder / dirname}: RunConfig(log_to_file=True) "
            "keeps it there"
        )
    return found


def inside(folder: Path, *names: str) -> Path | None:
    """Return a path below `folder`, after all links are followed; None: there is none, or it leads out."""
    try:
        base = folder.resolve(strict=True)
        found = base.joinpath(*names).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # a zero byte, a circle of links
        return None
    return found if found == base or base in found.parents else None


def last_lines(
    paths: Iterable[Path], search: str, most: int, *, max_line: int = MAX_LINE
) -> list[dict[str, Any]]:
    """Return the last lines of text files, of those that hold `search`, in capitals or not.

    A line of any length takes no more memory than a block.

    Args:
        paths: of the files.
        search: text that a line has.
        most: lines of each file.
        max_line: characters that are kept of a line.

    Returns:
        Of each file `name`, `size` in bytes, `lines`, and `cut`, True if others may come before them.
    """
    files = []
    for path in paths:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            lines: list[str] = []
            begins = size
            for place, line in _backwards(file, size):
                if len(lines) == most:
                    break
                begins = place
                text = line.decode(errors="replace")
                if not search or search.lower() in text.lower():
                    lines.append(text if len(text) <= max_line else f"{text[:max_line]}...")
        files.append({"name": path.name, "size": size, "lines": lines[::-1], "cut": begins > 0})
    return files


def _backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (start, line) from the last line to the first; of a long line, its beginning in a block.

    The line that has not ended yet is among them.
    """
    stop, tail, is_last = max(0, end - MAX_READ), b"", True
    position = end
    while position > stop:
        step = min(_BLOCK, position - stop)
        position -= step
        file.seek(position)
        data = file.read(step) + tail
        *others, last = reversed(data.split(b"\n"))
        place = position + len(data)
        for line in others:
            place -= len(line)
            if line or not is_last:
                yield place, line[:_BLOCK]
            is_last = False
            place -= 1
        tail = last[:_BLOCK]
    if tail:
        yield position, tail
