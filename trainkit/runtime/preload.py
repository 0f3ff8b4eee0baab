"""What workers will want to have imported, so that it is imported once and then forked with them."""

from __future__ import annotations

import sys

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

_when_imported: set[str] = set(PRELOADS)


def register(module: str) -> None:
    """Have `module` imported beforehand for the workers of a process that has imported it itself."""
    _when_imported.add(module)


def wanted() -> frozenset[str]:
    """What workers will want, judging by what this process has imported."""
    return frozenset(name for name in _when_imported if name in sys.modules)


def at_start(asked: frozenset[str]) -> list[frozenset[str]]:
    """What to begin with before the first worker is asked for.

    Args:
        asked: the user's own wish.
    """
    if asked:
        return [asked]
    return [frozenset({"torch"})] if "torch" in sys.modules else []
