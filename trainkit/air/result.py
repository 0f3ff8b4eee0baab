"""`Result` by the name of `ray.air.result`."""

from __future__ import annotations

from trainkit.tune.outcome.result import Result

__all__ = ["Result"]
