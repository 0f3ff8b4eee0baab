"""BOHB's model of one budget (kernel densities of good and bad configurations), and the encoding of the
space.

Each row (an encoded configuration) is the centre of a product of kernels, one kernel per column. The kernel
of a number is a normal distribution, truncated to the column's bounds and normalised there. The kernel of a
category, by Aitchison and Aitken, keeps the category with probability 1 - h, and takes each of the c - 1
other categories with probability h / (c - 1).

Bandwidths follow the "normal reference" rule 1.06 * spread * n**(-1 / (4 + d)), which BOHB takes from
statsmodels. Labels of categories have no order, so the spread of a category with shares p is sqrt((1 -
sum(p**2)) / 2). For two categories, this spread is the standard deviation of the labels 0 and 1.

Sources: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018,
arXiv:1807.01774, Algorithm 2; Aitchison, Aitken, "Multivariate binary discrimination by the kernel method",
Biometrika 63(3), 1976.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.checks import require_number, require_one_of, require_whole
from trainkit.tune.search.encoded_space import Declared, leaves_open
from trainkit.tune.space.domains import Categorical, Domain, distinct
from trainkit.tune.space.search_space import Path, Space
from trainkit.tune.space.transforms import ChoiceCode, Code, NumberCode, code_of

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray


Floats: TypeAlias = "NDArray[np.float64]"

FAR = 9.0
"""Number of standard deviations beyond which the tail of a normal distribution counts as 0."""

_NORMAL = NormalDist()
_CLOSEST = 2.0**-53
"""Smallest distance of a probability from 0 and from 1; at 0 and 1 a normal quantile is infinite."""


@dataclass(frozen=True, slots=True)
class Column:
    """One dimension of the encoded space.

    Attributes:
        categories: number of categories, whose values are indices from 0. None: the values of the column are
            numbers.
        lower: lower bound of the numbers; may be infinite.
        upper: upper bound of the numbers; may be infinite.
    """

    categories: int | None = None
    lower: float = 0.0
    upper: float = 1.0


def bandwidths(data: Floats, columns: Sequence[Column], least: float = 0.0) -> Floats:
    """Return the bandwidth of the kernels in each column.

    Args:
        data: encoded configurations as rows, of shape (n, d).
        columns: the d columns.
        least: smallest bandwidth.

    Returns:
        Bandwidths, shape (d,); at most (c - 1) / c for c categories, because the kernel is then uniform.
    """
    number, dimensions = data.shape
    scale = 1.06 * float(number) ** (-1.0 / (4 + dimensions))
    found: Floats = np.maximum(scale * data.std(axis=0), least)
    for place, column in enumerate(columns):
        if column.categories is not None:
            shares = np.bincount(data[:, place].astype(int), minlength=column.categories) / number
            spread = math.sqrt(max(0.0, 1.0 - float(shares @ shares)) / 2)
            most = (column.categories - 1) / column.categories
            found[place] = min(max(scale * spread, least), most)
    return found


class KernelDensity:
    """A probability density: the average of the kernels at all rows.

    Args:
        data: rows without NaN, of shape (n, d), n at least 1.
        columns: the d columns.
        least: smallest bandwidth; above 0.

    Attributes:
        bandwidths: bandwidth of each column, shape (d,).
    """

    def __init__(self, data: Floats, columns: Sequence[Column], least: float = 1e-3) -> None:
        self._data = data
        self._columns = columns
        self.bandwidths = bandwidths(data, columns, least)
        self._numeric = [place for place, column in enumerate(columns) if column.categories is None]
        self._scaled = self._in_widths(data)
        # Two terms of each kernel's logarithm, the square of the centre and the normalisation, are computed
        # once, because they do not depend on the point where the density is evaluated.
        self._logs = -0.5 * (self._scaled**2).sum(axis=1)
        for place in self._numeric:
            width = self.bandwidths[place]
            below, above = _cut_off(data[:, place], columns[place], width)
            self._logs -= np.log((above - below) * width * math.sqrt(2 * math.pi))

    def _in_widths(self, rows: Floats) -> Floats:
        """Return the numbers of `rows` as distances from the mean of the data, in bandwidths."""
        if not self._numeric:
            return np.zeros((len(rows), 0))
        middle = self._data[:, self._numeric].mean(axis=0)
        scaled: Floats = (rows[:, self._numeric] - middle) / self.bandwidths[self._numeric]
        return scaled

    def pdf(self, points: Floats) -> Floats:
        """Return the density at each of `points`, shape (m, d); the points must be inside the bounds."""
        # The squared difference is expanded, because a single matrix product is ten times as fast.
        scaled = self._in_widths(points)
        logs = scaled @ self._scaled.T + self._logs - 0.5 * (scaled**2).sum(axis=1)[:, None]
        for place, column in enumerate(self._columns):
            if column.categories is not None and column.categories > 1:
                width = self.bandwidths[place]
                other = math.log(width / (column.categories - 1))
                equal = points[:, place, None] == self._data[None, :, place]
                logs += other + (math.log(1 - width) - other) * equal
        densities: Floats = np.exp(logs).mean(axis=1)
        return densities

    def sample(self, rng: Generator, number: int, factor: float = 1.0) -> Floats:
        """Draw rows near rows of the data.

        Args:
            rng: source of all randomness.
            number: number of rows.
            factor: factor by which the bandwidths of columns with numbers are multiplied. The bandwidths of
                categories stay unchanged: a category is kept with probability 1 - h, and otherwise drawn
                uniformly from all categories.
        """
        drawn = self._data[rng.integers(len(self._data), size=number)]
        for place, column in enumerate(self._columns):
            width = self.bandwidths[place]
            if column.categories is not None:
                moved = rng.random(number) < width
                anew = rng.integers(column.categories, size=number)
                drawn[:, place] = np.where(moved, anew, drawn[:, place])
            else:
                drawn[:, place] = _near(drawn[:, place], column, factor * width, rng)
        return drawn


def _near(centres: Floats, column: Column, width: float, rng: Generator) -> Floats:
    """Return one draw from the truncated normal distribution around each of `centres`."""
    below, above = _cut_off(centres, column, width)
    shares = below + (above - below) * rng.random(len(centres))
    shares = np.clip(shares, _CLOSEST, 1 - _CLOSEST)
    steps = np.array(list(map(_NORMAL.inv_cdf, shares.tolist())))
    return np.clip(centres + width * steps, column.lower, column.upper)


def _cut_off(centres: Floats, column: Column, width: float) -> tuple[Any, Any]:
    """Return the probabilities below the lower and below the upper bound of normals around `centres`."""
    return _shares_below((column.lower - centres) / width), _shares_below((column.upper - centres) / width)


def _shares_below(steps: Floats) -> Floats:
    """Return the standard normal distribution function at `steps`; NumPy lacks this function."""
    shares = (steps > 0).astype(float)
    near = np.abs(steps) < FAR
    arguments = (steps[near] / -math.sqrt(2)).tolist()
    shares[near] = 0.5 * np.fromiter(map(math.erfc, arguments), dtype=float, count=len(arguments))
    return shares


LEAST_DENSITY = 1e-32
"""Lower limit of a density, which keeps the ratio of two densities finite."""


@dataclass(frozen=True)
class BOHBConfig:
    """Options of `bohb_config` with HpBandSter's names and the paper's defaults, except for `min_bandwidth`.

    Attributes:
        min_points_in_model: least number of good configurations, and least number of bad configurations. None
            and smaller numbers mean d + 1 for d parameters, because fewer points do not determine d
            dimensions.
        top_n_percent: percentage of observations that count as good, above 0 and below 100.
        num_samples: number of candidates that are drawn for a suggestion, of which the best is suggested.
        random_fraction: probability that a configuration is drawn at random, without the model; from 0 to 1.
        bandwidth_factor: factor on the bandwidths of numbers when candidates are drawn.
        min_bandwidth: smallest bandwidth, in units of a parameter's whole range. HpBandSter uses 1e-3. With a
            small bandwidth, the search stays near the best configurations once they are close together. The
            default 0.05 gave better results in most measurements; a long search for a narrow optimum needs a
            smaller value (docs/tuning/bohb.md).
        split: "paper": if observations are few, some of them are both good and bad, so the first model needs
            d + 3 observations. "hpbandster": no observation is both good and bad, so the first model needs 2
            (d + 1) observations.
    """

    min_points_in_model: int | None = None
    top_n_percent: float = 15
    num_samples: int = 64
    random_fraction: float = 1 / 3
    bandwidth_factor: float = 3
    min_bandwidth: float = 0.05
    split: str = "paper"

    def __post_init__(self) -> None:
        at = "bohb_config: {}".format
        words = "1 or more, or None for one more than there are parameters"
        require_whole(at("min_points_in_model"), self.min_points_in_model, 1, words, optional=True)
        words, below = "a number above 0 and below 100", math.nextafter(100, 0)
        require_number(at("top_n_percent"), self.top_n_percent, words, above=0, most=below)
        require_whole(at("num_samples"), self.num_samples, 1)
        require_number(at("random_fraction"), self.random_fraction, "a number from 0 to 1", least=0, most=1)
        require_number(at("bandwidth_factor"), self.bandwidth_factor, "a number above 0", above=0)
        words = "a number above 0 and up to 1"
        require_number(at("min_bandwidth"), self.min_bandwidth, words, above=0, most=1)
        require_one_of(at("split"), self.split, ("paper", "hpbandster"))

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> BOHBConfig:
        """Check a user's `bohb_config`.

        Raises:
            ConfigError: `given` is not a dictionary, or has an unknown name or a value out of range.
        """
        names = [each.name for each in fields(cls)]
        if given is not None and not (isinstance(given, Mapping) and set(given) <= set(names)):
            raise ConfigError(f"bohb_config takes a dictionary with any of {', '.join(names)}, not {given!r}")
        return cls(**dict(given or {}))

    def least(self, dimensions: int) -> int:
        """Return N_min, the least number of good configurations in a model."""
        return max(self.min_points_in_model or 0, dimensions + 1)

    def split_sizes(self, number: int, finite: int, dimensions: int) -> tuple[int, int] | None:
        """Return the numbers of good and of bad observations; None: too few observations for a model.

        `finite` of the `number` observations have a finite loss. The remaining observations count when the
        percentage is applied, but are never good themselves.
        """
        least = self.least(dimensions)
        good = min(finite, max(least, math.floor(self.top_n_percent * number / 100)))
        if self.split == "paper":
            return (good, max(least, number - good)) if finite >= least + 2 else None
        bad = number - good
        return (good, bad) if good >= least and bad > dimensions else None


class Model:
    """The densities of good and of bad configurations.

    Args:
        rows: the configurations, of shape (n, d); NaN for inactive parameters.
        losses: loss of each row; smaller is better, infinity is worst; equal losses rank in order of arrival.
        columns: the d columns.
        config: settings of the model.
        sizes: numbers of good and of bad configurations, from `BOHBConfig.split_sizes`.
        rng: random generator for values that replace inactive parameters.
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
        """Return `candidates` sorted by their ratio of good to bad density, the largest first."""
        ratios = np.maximum(self.good.pdf(candidates), LEAST_DENSITY) / np.maximum(
            self.bad.pdf(candidates), LEAST_DENSITY
        )
        return candidates[np.argsort(-ratios, kind="stable")]


def imputed(rows: Floats, columns: Sequence[Column], rng: Generator) -> Floats:
    """Return `rows` with a value for every NaN, because a density needs values for inactive parameters.

    If other rows have a value in the column, one of these rows is drawn at random, and all missing values of
    the incomplete row are copied from the drawn row. So parameters that occur together keep values from the
    same configuration. If no row has a value, the value is drawn from the whole range.
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


def _code_of(name: str, domain: Domain) -> Code:
    if isinstance(domain, Categorical):  # equal values of a list form one category
        domain = dataclasses.replace(domain, categories=tuple(distinct(domain.categories)))
    return code_of(name, domain, "TuneBOHB")


class Encoding(Declared[Code]):
    """The encoding of a space: rows with a column for each parameter, and NaN for inactive parameters.

    Args:
        space: a space without a grid.
        own: True if configurations may also contain constants of `param_space`.

    Attributes:
        columns: columns in the order of the space's parameters.

    Raises:
        ConfigError: the space has a grid, or an unsupported domain.
    """

    def __init__(self, space: Space, *, own: bool = False) -> None:
        super().__init__(space, _code_of, searcher="TuneBOHB", own=own)
        self._places = {name: place for place, name in enumerate(self.codes)}
        self.columns = tuple(
            Column(categories=len(code.categories)) if isinstance(code, ChoiceCode) else Column()
            for code in self.codes.values()
        )

    def encoded(self, values: Mapping[str, Any]) -> dict[str, float]:
        return {
            name: code.to_unit(value)
            if isinstance(code := self.codes[name], NumberCode)
            else code.encode(value)
            for name, value in values.items()
        }

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[Path, Any], bool]:
        self.declared.point(point)  # the call raises an error for a value that the model can't encode
        preset = self.declared.preset(point)
        return preset, leaves_open(self.declared, preset)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Floats | None:
        try:
            return self.row(config)
        # The configuration is outside the space, or contains an object that the store keeps only by name.
        except SpaceError:
            return None

    def row(self, config: Mapping[str, Any]) -> Floats:
        """Return the encoding of a configuration as a row.

        Raises:
            SpaceError: the configuration does not belong to the space.
        """
        row = np.full(len(self.columns), math.nan)
        for name, number in self.encoded(self.choices(config)).items():
            row[self._places[name]] = number
        return row

    def config(self, row: Floats, rng: Generator) -> dict[str, Any]:
        """Return the configuration of a row; columns of inactive parameters are ignored.

        Args:
            row: row without NaN for active parameters.
            rng: random generator for `sample_from` functions.
        """

        def ask(name: str, domain: Domain) -> Any:
            code, number = self.codes[name], float(row[self._places[name]])
            return code.from_unit(number) if isinstance(code, NumberCode) else code.decode(number)

        return self.declared.walk(ask, rng)

    def snapped(self, rows: Floats) -> Floats:
        """Return `rows` with each number moved to the exact encoding of the value that it represents."""
        moved = rows.copy()
        for place, code in enumerate(self.codes.values()):
            if isinstance(code, NumberCode):
                moved[:, place] = code.snapped(rows[:, place].tolist())
        return moved
