"""Searchers: which configuration is tried next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.lazy import lazily
from trainkit.tune.search.create import SEARCHERS

if TYPE_CHECKING:
    from trainkit.tune.search.base import Searcher as Searcher
    from trainkit.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
    from trainkit.tune.search.bayesopt import BayesOptSearch as BayesOptSearch
    from trainkit.tune.search.bohb import TuneBOHB as TuneBOHB
    from trainkit.tune.search.concurrency_limiter import ConcurrencyLimiter as ConcurrencyLimiter
    from trainkit.tune.search.create import create_searcher as create_searcher
    from trainkit.tune.search.hyperopt import HyperOptSearch as HyperOptSearch
    from trainkit.tune.search.optuna import OptunaSearch as OptunaSearch
    from trainkit.tune.search.repeater import Repeater as Repeater
    from trainkit.tune.space import grid_search as grid_search

__getattr__, __dir__ = lazily(
    __name__,
    SEARCHERS.homes
    | {
        "Searcher": "trainkit.tune.search.base",
        "create_searcher": "trainkit.tune.search.create",
        "grid_search": "trainkit.tune.space",
    },
)
__all__ = __dir__()
