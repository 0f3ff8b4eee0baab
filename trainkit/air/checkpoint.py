"""`Checkpoint` by the name of `ray.air.checkpoint`."""

from __future__ import annotations

from trainkit.tune.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
