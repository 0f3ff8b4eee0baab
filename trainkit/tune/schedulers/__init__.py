"""Schedulers: rules for which trials continue, pause or stop.

Names are loaded on first use; `__init__.pyi` lists them.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
