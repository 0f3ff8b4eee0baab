"""Search with any sampler of Optuna."""

from __future__ import annotations

from trainkit.tune.search.optuna.optuna_search import OptunaSearch

__all__ = ["OptunaSearch"]
