"""Callbacks: objects whose methods an experiment calls at its events.

Names are imported on first use; `__init__.pyi` lists them.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
