"""Population Based Bandits: population based training whose changes a Gaussian process chooses."""

from __future__ import annotations

from trainkit.tune.schedulers.pb2.scheduler import PB2

__all__ = ["PB2"]
