"""Searchers by name: what `search_alg="optuna"` means, and which classes an experiment's file may name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from trainkit.errors import ConfigError, did_you_mean
from trainkit.tune.calling import taken
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.values import holds_opaque

_HOMES = {
    "BasicVariantGenerator": "trainkit.tune.search.basic_variant",
    "BayesOptSearch": "trainkit.tune.search.bayesopt",
    "ConcurrencyLimiter": "trainkit.tune.search.concurrency_limiter",
    "HyperOptSearch": "trainkit.tune.search.hyperopt",
    "OptunaSearch": "trainkit.tune.search.optuna",
    "Repeater": "trainkit.tune.search.repeater",
    "TuneBOHB": "trainkit.tune.search.bohb",
}
_CLASSES = {
    "bayesopt": "BayesOptSearch",
    "hyperopt": "HyperOptSearch",
    "optuna": "OptunaSearch",
    "bohb": "TuneBOHB",
    "random": "BasicVariantGenerator",
    "variant_generator": "BasicVariantGenerator",
}


def searcher_class(name: str) -> type[Searcher] | None:
    """Return the searcher class of this name, loaded now; None if it is none of ours."""
    if name not in _HOMES:
        return None
    cls: type[Searcher] = getattr(importlib.import_module(_HOMES[name]), name)
    return cls


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Return the searcher of this name, made with those of `kwargs` that it takes.

    Raises:
        ConfigError: there is none of this name; those that there are are listed.
    """
    cls = searcher_class(_CLASSES.get(str(search_alg).lower(), ""))
    if cls is None:
        raise ConfigError(
            f"search_alg={search_alg!r} is none of {', '.join(sorted(_CLASSES))}."
            f"{did_you_mean(str(search_alg), _CLASSES)}"
        )
    return cls(**taken(cls, kwargs))


# --- for an experiment's file ---------------------------------------------------------------------


def describe_searcher(searcher: Searcher) -> dict[str, Any]:
    """Return class and arguments of a searcher, and of those that it holds, and what they were told of."""
    arguments = {
        name: describe_searcher(value) if isinstance(value, Searcher) else value
        for name, value in searcher.arguments.items()
    }
    description: dict[str, Any] = {"class": type(searcher).__qualname__, "arguments": arguments}
    if isinstance(searcher, ModelledSearcher) and searcher.evaluated:
        description["evaluated"] = [dict(vars(each)) for each in searcher.evaluated]
    return description


def described_searcher(description: Mapping[str, Any]) -> Searcher | None:
    """Make the searcher of a description again.

    None where a class is the user's own, or the file could not hold an argument.
    """
    cls = searcher_class(description["class"])
    evaluated = description.get("evaluated", ())
    if cls is None or holds_opaque(description["arguments"]) or holds_opaque(evaluated):
        return None
    arguments = dict(description["arguments"])
    if "searcher" in arguments:
        arguments["searcher"] = described_searcher(arguments["searcher"])
        if arguments["searcher"] is None:
            return None
    searcher = cls(**arguments)
    for each in evaluated:
        searcher.add_evaluated_point(**each)
    return searcher
