"""Table of old names, with the module or the name in a module that stands for each today.

Rows of `ray.txt` and `moved.txt`, with module paths relative to `trainkit.`:

    old.module new.module                   every name of the new module
    old.module:Name new.module:NewName      one name
    old.package:name new.module             one module
    old.module:Name - reason                a name that is no more
    old.module !Class                       a searcher that is not here: its import says what to use instead
    old.module =module                      a module outside trainkit

Several modules for one old module are searched in the order of the rows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator

FILES = ("ray.txt", "moved.txt")


class Row:
    """Row of the table for one old module.

    Attributes:
        homes: modules that have its names, searched in this order.
        names: by old name, the module and the name there; "" is the module itself.
        gone: by old name, the reason why it is no more.
        children: names of the modules in it.
        refused: the class of Ray that is not here, if the module can't be imported.
    """

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.names: dict[str, tuple[str, str]] = {}
        self.gone: dict[str, str] = {}
        self.children: set[str] = set()
        self.refused: str | None = None


@functools.cache
def table() -> dict[str, Row]:
    """Return the rows by the old module's full path."""
    return parsed(_lines())


def parsed(lines: Iterable[str]) -> dict[str, Row]:
    """Return the rows that `lines` describe; a package that has none of its own gets an empty one."""
    rows: dict[str, Row] = {}
    for line in lines:
        words = line.partition("#")[0].split()
        if not words:
            continue
        module, _, name = _full(words[0]).partition(":")
        row = rows.setdefault(module, Row())
        if name and words[1] == "-":
            row.gone[name] = " ".join(words[2:])
        elif name:
            home, _, new = _full(words[1]).partition(":")
            row.names[name] = (home, new)
        elif words[1].startswith("!"):
            row.refused = " ".join(words[1:])[1:]
        else:
            row.homes.append(_full(words[1]))
    for module in list(rows):
        while (parts := module.rpartition("."))[0]:
            module = parts[0]
            rows.setdefault(module, Row()).children.add(parts[2])
    return rows


def _lines() -> Iterator[str]:
    for name in FILES:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            yield from file


def _full(path: str) -> str:
    return path[1:] if path.startswith("=") else f"trainkit.{path.removeprefix('trainkit.')}"
