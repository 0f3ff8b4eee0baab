"""Web pages that show and steer running and finished experiments: `trainkit dashboard`."""

from __future__ import annotations

from trainkit.lazy import from_stub

# Each server needs additional packages, so a server is loaded only when it is first used.
__getattr__, __dir__, __all__ = from_stub(__name__)
