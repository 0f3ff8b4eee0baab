"""Store of an experiment.

Store of an experiment. Rarely used names are imported on first use; `__init__.pyi` lists these names.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
