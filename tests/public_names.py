"""Print which names of `public_names.txt` can no longer be imported: python -m tests.public_names.

The list has every module and public name of the release before the folders were rearranged, and the names
that Ray's scripts import. Each of them keeps working: where a module moved, the table in
`trainkit/plugins/compat` serves its old path. A line is a module and its names; `!` marks a module whose
import is refused with what to use instead.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from trainkit.plugins.compat.finder import table

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".txt")
REFUSED = "!"


def listed() -> dict[str, list[str]]:
    """Return the names of each module on the list."""
    lines = (line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {module: names.split() for module, _, names in (line.partition(":") for line in lines)}


def broken() -> Iterator[str]:
    """Yield what can't be imported of the list; parents come before their children, as the list is sorted."""
    for path, names in listed().items():
        try:
            module = importlib.import_module(path)
        except Exception as error:
            told = isinstance(error, ImportError) and "take OptunaSearch" in str(error)
            if names != [REFUSED] or not told:
                yield f"{path}: {type(error).__name__}: {error}"
            continue
        if names == [REFUSED]:
            yield f"{path}: its import is no longer refused"
            continue
        gone = table()[path].gone if path in table() else {}
        for name in names:
            if gone.get(name):  # a part of no promise: asking for it says what became of it
                continue
            try:
                getattr(module, name)
            except Exception as error:
                yield f"{path}:{name}: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit("\n".join(broken()) or 0)
