"""Searchers: which configuration is tried next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.tune.elsewhere import lazily

if TYPE_CHECKING:
    from trainkit.tune.search.base import Searcher
    from trainkit.tune.search.basic_variant import BasicVariantGenerator
    from trainkit.tune.search.bayesopt import BayesOptSearch
    from trainkit.tune.search.bohb import TuneBOHB
    from trainkit.tune.search.concurrency_limiter import ConcurrencyLimiter
    from trainkit.tune.search.create import create_searcher
    from trainkit.tune.search.hyperopt import HyperOptSearch
    from trainkit.tune.search.optuna import OptunaSearch
    from trainkit.tune.search.repeater import Repeater
    from trainkit.tune.space import grid_search

_HOME_OF = {
    "BasicVariantGenerator": "trainkit.tune.search.basic_variant",
    "BayesOptSearch": "trainkit.tune.search.bayesopt",
    "ConcurrencyLimiter": "trainkit.tune.search.concurrency_limiter",
    "HyperOptSearch": "trainkit.tune.search.hyperopt",
    "OptunaSearch": "trainkit.tune.search.optuna",
    "Repeater": "trainkit.tune.search.repeater",
    "Searcher": "trainkit.tune.search.base",
    "TuneBOHB": "trainkit.tune.search.bohb",
    "create_searcher": "trainkit.tune.search.create",
    "grid_search": "trainkit.tune.space",
}

__all__ = [
    "BasicVariantGenerator",
    "BayesOptSearch",
    "ConcurrencyLimiter",
    "HyperOptSearch",
    "OptunaSearch",
    "Repeater",
    "Searcher",
    "TuneBOHB",
    "create_searcher",
    "grid_search",
]

__getattr__, __dir__ = lazily(__name__, _HOME_OF)
