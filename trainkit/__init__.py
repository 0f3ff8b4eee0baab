"""Train PyTorch models on many workers, tune hyperparameters, and search over scikit-learn estimators.

    from trainkit.train import TorchTrainer, TrainingOperator
    from trainkit import tune

Every name is loaded at its first use. `__init__.pyi` lists the names.
"""

from __future__ import annotations

import sys

# The import finder is installed before any other import, because another thread may import at the same time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from typing import Any


NEEDED = ("trainkit.plugins", "trainkit.errors", "trainkit.lazy", "trainkit.registry")
"""Modules that the import finder below needs; none of these modules has a former path."""


class OldPaths:
    """Import finder for former module paths and for Ray's module paths, which a plugin lists.

    The finder must be first in `sys.meta_path`, because Python itself would find a wrong module at some
    paths: a folder that contains only type stubs, which Python treats as a namespace package without names,
    or a package that now has the path of a former module.
    """

    def find_spec(
        self, path: str, search: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return the import spec of `path`, or None if other finders should handle it."""
        if not path.startswith("trainkit.") or path.startswith(NEEDED):
            return None
        from trainkit.registry import each

        others = [finder for finder in sys.meta_path if finder is not self]
        return next(filter(None, (find(path, others, search) for find in each("trainkit.finders"))), None)


if not any(type(each).__module__ == __name__ for each in sys.meta_path):
    sys.meta_path.insert(0, OldPaths())

from trainkit.lazy import from_stub  # noqa: E402

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = from_stub(__name__)
__all__ += ["__version__"]
