"""The leaves of a search space: domains, axes of a grid, conditions."""

from __future__ import annotations

from trainkit.tune.domains.base import Domain, Spelled, same
from trainkit.tune.domains.leaves import Forbid, SampleFrom, When
from trainkit.tune.domains.listed import Categorical, GridSearch, place_of
from trainkit.tune.domains.numeric import Float, Integer, Normal

__all__ = [
    "Categorical",
    "Domain",
    "Float",
    "Forbid",
    "GridSearch",
    "Integer",
    "Normal",
    "SampleFrom",
    "Spelled",
    "When",
    "place_of",
    "same",
]
