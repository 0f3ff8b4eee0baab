"""An experiment, from its settings to its results.

Names that a Tuner needs only once it runs are loaded when first used; they are in `__init__.pyi`.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
