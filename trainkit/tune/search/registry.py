"""Registry of searchers by name, and functions that recreate searchers from the file of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.registry import Registry
from trainkit.tune.core.checks import taken
from trainkit.tune.search.base import Searcher, called
from trainkit.tune.search.model_based import ModelBasedSearcher
from trainkit.tune.space.serialization import made_again

SEARCHERS = Registry(
    "searcher",
    {
        "concurrency_limiter": "trainkit.tune.search.concurrency_limiter:ConcurrencyLimiter",
        "optuna": "trainkit.tune.search.optuna:OptunaSearch",
        "random": "trainkit.tune.search.basic_variant:BasicVariantGenerator",
        "variant_generator": "trainkit.tune.search.basic_variant:BasicVariantGenerator",
    },
)
"""Registry with the searchers of trainkit; other packages add their searchers by entry points."""


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Return a new searcher by its name or class name; `kwargs` that the class does not accept are ignored.

    Raises:
        ConfigError: the name is unknown; the message lists the known names.
    """
    cls = SEARCHERS.get(search_alg, "search_alg")
    made: Searcher = cls(**taken(cls, kwargs))
    return made


# --- for an experiment's file ---------------------------------------------------------------------


def describe_searcher(searcher: Searcher) -> dict[str, Any]:
    """Return the class, arguments and evaluated points of a searcher, with those of any inner searcher."""
    arguments = {
        name: describe_searcher(value) if name == "searcher" else value
        for name, value in called(searcher).arguments.items()
    }
    description: dict[str, Any] = {"class": SEARCHERS.name_of(type(searcher)), "arguments": arguments}
    if isinstance(searcher, ModelBasedSearcher) and searcher.evaluated:
        description["evaluated"] = [dict(vars(each)) for each in searcher.evaluated]
    return description


def described_searcher(description: Mapping[str, Any]) -> Searcher | None:
    """Return the searcher of a description; None if its class or an argument was defined by the user."""
    searcher: Searcher | None = made_again(SEARCHERS, description, inner="searcher")
    return searcher
