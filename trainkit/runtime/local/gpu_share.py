"""Holds a worker with a fraction of a GPU to that share of its memory, without starting CUDA for it.

What torch is to do when CUDA is first used it can be told beforehand, as it is told of seeds. Where
torch is yet to be imported, that is done as soon as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def limit(gpus: Mapping[int, float]) -> None:
    """Cap this process's GPU memory.

    Args:
        gpus: share of each GPU that it was given; only one can be a fraction, and is the first that
            torch sees then.
    """
    shares = [share for share in gpus.values() if share < 1]
    if not shares:
        return
    if "torch" in sys.modules:
        _cap(sys.modules["torch"], shares[0])
    else:
        sys.meta_path.insert(0, _OnImport(shares[0]))


def _cap(torch: Any, share: float) -> None:
    # Run when CUDA is first used; where there is none, never.
    torch.cuda._lazy_call(functools.partial(torch.cuda.set_per_process_memory_fraction, share, 0))


class _OnImport(MetaPathFinder):
    """Caps torch's share once it is imported, and is gone then."""

    def __init__(self, share: float) -> None:
        self._share = share

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._run, loader.exec_module)
        return spec

    def _run(self, execute: Any, module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:  # an import that failed may be tried again
            sys.meta_path.remove(self)
            _cap(module, self._share)
