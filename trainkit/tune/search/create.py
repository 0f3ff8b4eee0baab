"""Searchers by name: what `search_alg="optuna"` means, and which classes an experiment's file may name."""

from __future__ import annotations

import importlib
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.search.base import Searcher

_HOMES = {"BasicVariantGenerator": "basic"}
_CLASSES = {"random": "BasicVariantGenerator", "variant_generator": "BasicVariantGenerator"}


def searcher_class(name: str) -> type[Searcher] | None:
    """Return the searcher class of this name, loaded now; None if it is none of ours."""
    if name not in _HOMES:
        return None
    cls: type[Searcher] = getattr(importlib.import_module(f"trainkit.tune.search.{_HOMES[name]}"), name)
    return cls


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Return the searcher of this name, made with `kwargs`.

    Raises:
        ConfigError: there is none of this name; those that there are are listed.
    """
    cls = searcher_class(_CLASSES.get(search_alg.lower(), ""))
    if cls is None:
        raise ConfigError(f"search_alg={search_alg!r} is none of {', '.join(sorted(_CLASSES))}")
    return cls(**kwargs)
