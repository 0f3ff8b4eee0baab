"""Searching by the Gaussian process of the package bayesian-optimization."""

from __future__ import annotations

from trainkit.tune.search.bayesopt.bayesopt_search import BayesOptSearch

__all__ = ["BayesOptSearch"]
