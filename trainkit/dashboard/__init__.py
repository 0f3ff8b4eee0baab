"""Pages that show experiments, finished or running, in a browser, and stop trials: `trainkit dashboard`."""

from __future__ import annotations

from trainkit.lazy import from_stub

# Loaded when first used: each server needs packages of its own.
__getattr__, __dir__, __all__ = from_stub(__name__)
