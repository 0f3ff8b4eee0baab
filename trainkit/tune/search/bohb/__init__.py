"""BOHB's searcher: densities of good and of bad configurations, on the largest budget that has enough."""

from __future__ import annotations

from trainkit.tune.search.bohb.bohb_search import TuneBOHB

__all__ = ["TuneBOHB"]
