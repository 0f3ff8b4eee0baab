"""Run of an experiment, from its settings to its results.

Names that a Tuner needs only while it runs are imported on first use; `__init__.pyi` lists them.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
