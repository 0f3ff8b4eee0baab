"""BOHB's model of one budget: what is likely among good configurations and unlikely among bad ones.

Source: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018,
arXiv:1807.01774, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_finite, is_whole, require
from trainkit.tune.search.bohb.kde import Column, KernelDensity

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.search.bohb.kde import Floats

LEAST_DENSITY = 1e-32
"""No density counts as smaller, so that their ratio is a number."""


@dataclass(frozen=True)
class BOHBConfig:
    """What `bohb_config` may hold; the names are HpBandSter's, the defaults the paper's but one.

    Attributes:
        min_points_in_model: the least number of good configurations, and of bad ones; None, and anything
            less: d + 1 for d parameters, as fewer say nothing of d dimensions.
        top_n_percent: share of the observations that are good, above 0 and below 100.
        num_samples: candidates of which the best is suggested.
        random_fraction: probability of a random configuration instead, from 0 to 1.
        bandwidth_factor: times the bandwidth that candidates of numbers are spread around good ones.
        min_bandwidth: no bandwidth is smaller, where the whole range of a parameter is 1. HpBandSter's is
            1e-3: once the few best configurations are close together, so are the candidates around them, and
            a search stays where it happens to be. With 0.05 most of what
            was measured came out better; a long search for a narrow optimum needs less (docs/tuning/bohb.md).
        split: "paper": good and bad overlap where there are few, so the first model needs d + 3 observations.
            "hpbandster": they don't, so it needs 2 (d + 1).
    """

    min_points_in_model: int | None = None
    top_n_percent: float = 15
    num_samples: int = 64
    random_fraction: float = 1 / 3
    bandwidth_factor: float = 3
    min_bandwidth: float = 0.05
    split: str = "paper"

    def __post_init__(self) -> None:
        least = self.min_points_in_model
        rules = {
            "min_points_in_model": least is None or (is_whole(least) and least >= 1),
            "top_n_percent": is_finite(self.top_n_percent) and 0 < self.top_n_percent < 100,
            "num_samples": is_whole(self.num_samples) and self.num_samples >= 1,
            "random_fraction": is_finite(self.random_fraction) and 0 <= self.random_fraction <= 1,
            "bandwidth_factor": is_finite(self.bandwidth_factor) and self.bandwidth_factor > 0,
            "min_bandwidth": is_finite(self.min_bandwidth) and 0 < self.min_bandwidth <= 1,
            "split": self.split in ("paper", "hpbandster"),
        }
        allowed = {
            "min_points_in_model": "1 or more, or None for one more than there are parameters",
            "top_n_percent": "a number above 0 and below 100",
            "num_samples": "1 or more",
            "random_fraction": "a number from 0 to 1",
            "bandwidth_factor": "a number above 0",
            "min_bandwidth": "a number above 0 and up to 1",
            "split": "'paper' or 'hpbandster'",
        }
        for name, holds in rules.items():
            require(holds, f"bohb_config has {name}={getattr(self, name)!r}: give {allowed[name]}")

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> BOHBConfig:
        """Check what a user gives.

        Raises:
            ConfigError: it is no dictionary, has a name that there is not, or a value out of range.
        """
        names = [each.name for each in fields(cls)]
        if given is not None and not (isinstance(given, Mapping) and set(given) <= set(names)):
            raise ConfigError(f"bohb_config={given!r}: give a dictionary with any of {', '.join(names)}")
        return cls(**dict(given or {}))

    def least(self, dimensions: int) -> int:
        """N_min: how many good configurations a model has at least."""
        return max(self.min_points_in_model or 0, dimensions + 1)

    def split_sizes(self, number: int, finite: int, dimensions: int) -> tuple[int, int] | None:
        """How many observations are good and how many bad, of `number`, `finite` of which are numbers.

        None: there are too few for a model. Observations without a finite loss count for the share that is
        good, but are never good themselves.
        """
        least = self.least(dimensions)
        good = min(finite, max(least, math.floor(self.top_n_percent * number / 100)))
        if self.split == "paper":
            return (good, max(least, number - good)) if finite >= least + 2 else None
        bad = number - good
        return (good, bad) if good >= least and bad > dimensions else None


class Model:
    """The two densities.

    Args:
        rows: the configurations, of shape (n, d); NaN where a parameter is not active.
        losses: of each; less is better, infinite is worst; equal ones rank as they arrived.
        columns: d of them.
        config: numbers.
        sizes: of the good and the bad part, by `BOHBConfig.split_sizes`.
        rng: for what replaces inactive parameters.
    """

    def __init__(
        self,
        rows: Floats,
        losses: Sequence[float],
        columns: Sequence[Column],
        config: BOHBConfig,
        sizes: tuple[int, int],
        rng: Generator,
    ) -> None:
        order = np.argsort(np.asarray(losses), kind="stable")
        good, bad = rows[order[: sizes[0]]], rows[order[len(order) - sizes[1] :]]
        self.good = KernelDensity(imputed(good, columns, rng), columns, config.min_bandwidth)
        self.bad = KernelDensity(imputed(bad, columns, rng), columns, config.min_bandwidth)
        self._config = config

    def candidates(self, rng: Generator) -> Floats:
        """Draw candidates near good configurations, of shape (num_samples, d)."""
        return self.good.sample(rng, self._config.num_samples, self._config.bandwidth_factor)

    def ranked(self, candidates: Floats) -> Floats:
        """`candidates` by how much likelier they are among the good than among the bad, the best first."""
        ratios = np.maximum(self.good.pdf(candidates), LEAST_DENSITY) / np.maximum(
            self.bad.pdf(candidates), LEAST_DENSITY
        )
        return candidates[np.argsort(-ratios, kind="stable")]


def imputed(rows: Floats, columns: Sequence[Column], rng: Generator) -> Floats:
    """Return `rows` with a value for every NaN: what is not active in a row, yet has its place in a density.

    Where another row has the column, all that is missing is copied from a random one of these, so that
    parameters that come together stay together; where none has, it is drawn from the whole range.
    """
    filled = rows.copy()
    for place, column in enumerate(columns):
        lacking = np.flatnonzero(np.isnan(filled[:, place]))
        if not len(lacking):
            continue
        having = np.flatnonzero(~np.isnan(rows[:, place]))
        if len(having):
            donors = rows[having[rng.integers(len(having), size=len(lacking))]]
            filled[lacking] = np.where(np.isnan(filled[lacking]), donors, filled[lacking])
        elif column.categories is not None:
            filled[lacking, place] = rng.integers(column.categories, size=len(lacking))
        else:
            filled[lacking, place] = rng.uniform(column.lower, column.upper, size=len(lacking))
    return filled
