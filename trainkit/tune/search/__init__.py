"""Searchers: which configuration is tried next."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    "BasicVariantGenerator": "search.basic_variant",
    "BayesOptSearch": "search.bayesopt",
    "ConcurrencyLimiter": "search.concurrency_limiter",
    "HyperOptSearch": "search.hyperopt",
    "OptunaSearch": "search.optuna",
    "Repeater": "search.repeater",
    "Searcher": "search.base",
    "TuneBOHB": "search.bohb",
    "create_searcher": "search.create",
    "grid_search": "space",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"trainkit.tune.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
