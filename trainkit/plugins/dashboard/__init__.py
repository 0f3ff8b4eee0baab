"""Web pages that show and steer running and finished experiments: `trainkit dashboard`."""

from __future__ import annotations

from trainkit.lazy import from_stub

# The servers are loaded on first use, because each needs its own packages.
__getattr__, __dir__, __all__ = from_stub(__name__)
