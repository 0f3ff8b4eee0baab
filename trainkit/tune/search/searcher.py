"""The base of searchers and its limiter, where scripts written for Ray look for them."""

from trainkit.tune.search.base import Searcher
from trainkit.tune.search.concurrency_limiter import ConcurrencyLimiter

__all__ = ["ConcurrencyLimiter", "Searcher"]
