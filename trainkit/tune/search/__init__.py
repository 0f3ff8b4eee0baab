"""Searchers: which configuration is tried next."""

from __future__ import annotations

from trainkit.tune.search.base import Searcher
from trainkit.tune.search.basic import BasicVariantGenerator

__all__ = ["BasicVariantGenerator", "Searcher"]
