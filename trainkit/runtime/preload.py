"""What workers will want to have imported, so that it is imported once and then forked with them."""

from __future__ import annotations

import sys
from collections.abc import Callable

PRELOADS = {
    "numpy": ("numpy", "numpy.random"),
    "pandas": ("pandas",),
    "sklearn": ("sklearn", "sklearn.base", "sklearn.utils"),
    "torch": (
        "torch",
        "torch._dynamo",
        "torch.distributed",
        "torch.nn.parallel",
        "torch.utils.data",
        "torch.optim",
    ),
}
"""What a template imports before it forks, by the package whose presence in the driver asks for it.

`torch._dynamo` is there because every optimizer imports it on its first use, which takes 0.85 s.
"""

HEAVY = frozenset({"pandas", "sklearn", "torch"})
"""Packages that are worth a template as soon as a worker has imported them by itself."""

_when_imported: set[str] = set(PRELOADS)


def register(module: str) -> None:
    """Have `module` imported beforehand for the workers of a process that has imported it itself."""
    _when_imported.add(module)


def wanted() -> frozenset[str]:
    """What workers will want, judging by what this process has imported."""
    return frozenset(name for name in _when_imported if name in sys.modules)


class _Watcher:
    """Finds no module, but is asked first for each one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in HEAVY:
            self._tell(name)


def watch(tell: Callable[[str], None]) -> None:
    """Call `tell` with each heavy package when this process begins to import it."""
    sys.meta_path.insert(0, _Watcher(tell))


def at_start(asked: frozenset[str]) -> list[frozenset[str]]:
    """What to begin with before the first worker is asked for.

    Args:
        asked: the user's own wish.
    """
    if asked:
        return [asked]
    return [frozenset({"torch"})] if "torch" in sys.modules else []
