"""Searchers: which configuration is tried next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainkit.lazy import lazily
from trainkit.registry import Registry
from trainkit.tune.core.checks import taken
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.space.encoding import holds_opaque

if TYPE_CHECKING:
    from trainkit.tune.search.base import Searcher as Searcher
    from trainkit.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
    from trainkit.tune.search.bayesopt import BayesOptSearch as BayesOptSearch
    from trainkit.tune.search.bohb import TuneBOHB as TuneBOHB
    from trainkit.tune.search.concurrency_limiter import ConcurrencyLimiter as ConcurrencyLimiter
    from trainkit.tune.search.hyperopt import HyperOptSearch as HyperOptSearch
    from trainkit.tune.search.optuna import OptunaSearch as OptunaSearch
    from trainkit.tune.search.repeater import Repeater as Repeater
    from trainkit.tune.space import grid_search as grid_search


SEARCHERS = Registry(
    "searcher",
    {
        "bayesopt": "trainkit.tune.search.bayesopt:BayesOptSearch",
        "bohb": "trainkit.tune.search.bohb:TuneBOHB",
        "concurrency_limiter": "trainkit.tune.search.concurrency_limiter:ConcurrencyLimiter",
        "hyperopt": "trainkit.tune.search.hyperopt:HyperOptSearch",
        "optuna": "trainkit.tune.search.optuna:OptunaSearch",
        "random": "trainkit.tune.search.basic_variant:BasicVariantGenerator",
        "repeater": "trainkit.tune.search.repeater:Repeater",
        "variant_generator": "trainkit.tune.search.basic_variant:BasicVariantGenerator",
    },
)
"""One row for each; other packages add theirs by entry points."""


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Return the searcher of this name or class name, made with those of `kwargs` that it takes.

    Raises:
        ConfigError: there is none of this name; those that there are are listed.
    """
    cls = SEARCHERS.get(search_alg, "search_alg")
    made: Searcher = cls(**taken(cls, kwargs))
    return made


# --- for an experiment's file ---------------------------------------------------------------------


def describe_searcher(searcher: Searcher) -> dict[str, Any]:
    """Return class and arguments of a searcher, and of those that it holds, and what they were told of."""
    arguments = {
        name: describe_searcher(value) if name == "searcher" else value
        for name, value in searcher.arguments.items()
    }
    description: dict[str, Any] = {"class": SEARCHERS.name_of(type(searcher)), "arguments": arguments}
    if isinstance(searcher, ModelledSearcher) and searcher.evaluated:
        description["evaluated"] = [dict(vars(each)) for each in searcher.evaluated]
    return description


def described_searcher(description: Mapping[str, Any]) -> Searcher | None:
    """Make the searcher of a description again.

    None where a class is the user's own, or the file could not hold an argument.
    """
    cls = SEARCHERS.find(description["class"])
    evaluated = description.get("evaluated", ())
    if cls is None or holds_opaque(description["arguments"]) or holds_opaque(evaluated):
        return None
    arguments = dict(description["arguments"])
    if "searcher" in arguments:
        arguments["searcher"] = described_searcher(arguments["searcher"])
        if arguments["searcher"] is None:
            return None
    searcher: Searcher = cls(**arguments)
    for each in evaluated:
        searcher.add_evaluated_point(**each)
    return searcher


__getattr__, __dir__ = lazily(
    __name__,
    SEARCHERS.homes
    | {
        "Searcher": "trainkit.tune.search.base",
        "create_searcher": "trainkit.tune.search",
        "grid_search": "trainkit.tune.space",
    },
)
__all__ = __dir__()
