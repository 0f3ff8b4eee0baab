"""Schedulers: which trials continue, pause or stop.

Names are loaded when first used; they are in `__init__.pyi`.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
