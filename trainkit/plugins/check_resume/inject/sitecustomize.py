"""Start of the recorder in every Python process of a checked script.

Python's `site` module imports the first `sitecustomize` on the search path. OpenTelemetry also uses a
`sitecustomize` to start in child processes. This file uses only the standard library, as the script may run
in an environment from which trainkit can't be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class AfterTorch(MetaPathFinder):
    """Import hook that installs the recorder when torch has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == "torch" else None
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module
            loader.exec_module = lambda module: (execute(module), recorder.install())
        return spec


def load(name: str, spec: ModuleSpec | None) -> Any:
    """Execute the module of `spec`, and register it as `name`; return None if `spec` is None."""
    if spec is None or spec.loader is None:
        return None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "sitecustomize":
    here = Path(__file__).resolve().parent
    name = "check_resume_recorder"
    recorder = load(name, importlib.util.spec_from_file_location(name, here.parent / "recorder.py"))
    sys.meta_path.insert(0, AfterTorch())
    # The script's environment may have its own file `sitecustomize.py`, which this file hides. So this file
    # runs the hidden file.
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != here]
    load("sitecustomize", PathFinder.find_spec("sitecustomize", sys.path))
