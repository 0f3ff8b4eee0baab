"""Searching by hyperopt's tree of Parzen estimators, over its own spaces too."""

from __future__ import annotations

from trainkit.tune.search.hyperopt.hyperopt_search import HyperOptSearch

__all__ = ["HyperOptSearch"]
