"""Texts about an experiment: its settings, its search space, and the last lines that its trials printed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainkit.tune.core.metrics import flatten, without_objects
from trainkit.tune.space.domains import Spelled, When

MAX_LINE = 10_000
"""Maximum number of characters to show of a line."""
MAX_READ = 64 * 1024 * 1024
"""Maximum number of bytes to search in a file, counted from its end."""
_BLOCK = 1024 * 1024


def last_lines(
    paths: Iterable[Path], search: str, most: int, *, max_line: int = MAX_LINE
) -> list[dict[str, Any]]:
    """Return the last lines of text files that contain `search`, ignoring case.

    Memory use is limited, however long a line is.

    Args:
        paths: paths of the files.
        search: text that a line must contain.
        most: maximum number of lines to return from each file.
        max_line: maximum number of characters to return from a line.

    Returns:
        For each file: `name`, `size` in bytes, `lines`, and `cut`, which is True if earlier lines may exist.
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
    """Yield (start, line) from the last line to the first; long lines are cut to a block.

    An unfinished last line is included.
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


def settings_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an experiment as JSON values, from the properties stored in its file."""
    more = {"stop": facts["run_config"]["stop"], "seed": facts["seed"], "trainable": facts["trainable"]}
    found: dict[str, Any] = without_objects({**facts["tune_config"], **more})
    return found


def space_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return each domain of the search space as text, by flat name, such as "net/lr"."""
    return dict(_spelled(flatten(facts["space"]), ""))


def _spelled(space: Mapping[str, Any], condition: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of domains; a text ends with the condition under which the domain exists."""
    for name, value in space.items():
        if isinstance(value, When):
            words = " and ".join(f"{other} {_allowed(wanted)}" for other, wanted in value.conditions)
            joined = f"{condition} and {words}" if condition else f" when {words}"
            yield from _spelled(flatten({name: value.content}), joined)
        else:
            yield name, (str(value) if isinstance(value, Spelled) else repr(value)) + condition


def _allowed(wanted: Any) -> str:
    if isinstance(wanted, Spelled):
        return f"is in {wanted}"
    return f"is {wanted!r}" if not isinstance(wanted, (list, tuple)) else f"is one of {list(wanted)!r}"
