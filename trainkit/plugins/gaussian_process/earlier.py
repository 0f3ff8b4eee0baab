"""Knowledge from before a search: its first configurations, and the mean function of its process.

An earlier experiment, a source, is modelled by a Gaussian process over the parameters that it shares with the
present space. Its losses are replaced by normal scores of their ranks, because losses of different problems
have different scales. The first configurations are a portfolio: each is the configuration that improves most
over the configurations before it, if the present problem resembles a source that is chosen at random. After
these, the sources' expectations are the mean function of the search's process, as far as the sources agree
with the results.

Source: Wistuba, Schilling, Schmidt-Thieme, "Sequential model-free hyperparameter tuning", ICDM 2015, for
portfolios; Salinas, Shen, Perrone, "A quantile-based approach for hyperparameter transfer learning", ICML
2020, for scores of ranks; Feurer, Letham, Hutter, Bakshy, "Practical transfer learning for Bayesian
optimization", arXiv:1802.02219, for weights by the order of results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.plugins.gaussian_process.curves import EarlyReports
from trainkit.plugins.gaussian_process.encoding import Encoding, Flags, Floats, ListCode
from trainkit.plugins.gaussian_process.model import (
    JITTER,
    SMOOTH,
    Expert,
    GaussianProcess,
    Kernel,
    filled,
    fitted,
    standardized,
    with_early,
)
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.seeds import initial_generator
from trainkit.tune.space.domains import place_of
from trainkit.tune.space.transforms import ChoiceCode

if TYPE_CHECKING:
    from numpy.random import Generator

FIRST = 5
"""Number of configurations in the portfolio."""
SAMPLES = 120
"""Number of random functions with which the portfolio is chosen."""
RANDOM = 600
"""Number of random candidates for the portfolio."""
BEST = 40
"""Number of the sources' best configurations among the candidates."""
FARTHEST = 2.0
"""Largest distance of an earlier value from its present range, in widths of the range."""
DEVIATION = 0.5
"""Standard deviation of the present problem from a source, in the unit of the normal scores."""
LENGTH = 0.35
"""Length over which the present problem deviates from a source, if one parameter is active."""
WORST = 3.0
"""Score of the best configuration before the first, three standard deviations above the mean."""
LEAST_TRUST = 0.3
"""Smallest agreement of a source with the results with which the portfolio goes on."""
BELIEF = 1.0
"""Weight of the belief that a source is similar, against the differences that the results show."""


class Source:
    """Process of an earlier experiment, over the columns that the experiment shares with the space.

    Args:
        encoding: encoding of the space.
        source: plain data of the experiment, from `sources.plain_sources`.
        mode: "min" or "max", for a source without a mode.
    """

    def __init__(self, encoding: Encoding, source: Mapping[str, Any], mode: str | None) -> None:
        configs, values = source["configs"], source["values"]
        shared: Flags = np.array([any(name in each for each in configs) for name in encoding.codes])
        rows = np.array([_row(encoding, each) for each in configs])
        sign = -1.0 if (source["mode"] or mode) == "max" else 1.0
        losses = filled([math.nan if value is None else sign * value for value in values])
        scores = _normal_scores(losses)
        self.best = rows[np.argsort(scores, kind="stable")]
        kernel, chosen, targets, _ = fitted(encoding, rows, scores, scores, prior=SMOOTH)
        kernel = replace(kernel, weights=np.where(shared, kernel.weights, 0.0))
        self._process = GaussianProcess(kernel, chosen, targets)

    def mean(self, rows: Floats) -> Floats:
        return self._process.mean(rows)

    def slopes(self, rows: Floats) -> Floats:
        return self._process.gradients(rows)[2]


def _row(encoding: Encoding, config: Mapping[str, Any]) -> Floats:
    """Return the row of a configuration of a different space.

    A number outside of its present range keeps its place on the scale, and an unknown value of a list differs
    from all values of the list.
    """
    row = np.where(encoding.categories > 0, 0.0, 0.5)
    for place, (name, code) in enumerate(encoding.codes.items()):
        if name in config:
            row[place] = _position(code, config[name], row[place])
    return row


def _position(code: Any, value: Any, otherwise: float) -> float:
    if isinstance(code, ChoiceCode):
        place = place_of(value, code.categories)
        return -1.0 if place is None else float(place)
    if not is_number(value):
        return otherwise
    unit = code.nearest_unit(value) if isinstance(code, ListCode) else float(code.to_unit(value))
    return min(max(unit, -FARTHEST), 1 + FARTHEST)


def _normal_scores(losses: Floats) -> Floats:
    """Return the normal quantiles of the ranks of losses; equal losses have equal scores."""
    ordered = np.sort(losses)
    ranks = (np.searchsorted(ordered, losses) + np.searchsorted(ordered, losses, side="right")) / 2
    return np.array([NormalDist().inv_cdf(rank / len(losses)) for rank in ranks])


class Earlier:
    """Knowledge from before the search: experts, and their weights by the results.

    Args:
        encoding: encoding of the space.
        experts: earlier experiments, and the user's belief.
        seed: seed of the candidates for the portfolio.
    """

    def __init__(self, encoding: Encoding, experts: Sequence[Expert], seed: int) -> None:
        self._encoding, self._experts = encoding, experts
        best = [each.best[: BEST // len(experts) + 1] for each in experts]
        drawn = encoding.from_unit(initial_generator(seed, 4).random((RANDOM, len(encoding))))
        snapped = encoding.snapped(np.clip(np.concatenate([*best, drawn]), 0.0, None))
        self._candidates: Floats = np.unique(snapped, axis=0)
        weights = np.full(len(encoding), LENGTH**-2 / max(encoding.active, 1.0))
        self._deviations = Kernel(encoding.categories > 0, weights, DEVIATION**2, 0.0)

    def first_rows(
        self, number: int, tried: Floats, rows: Floats, losses: Sequence[float], rng: Generator
    ) -> Floats | None:
        """Return the rows of the portfolio, shape (m, d), or None: the search begins as usual.

        The first row improves most over the rows tried before, for functions that resemble an expert's.
        The second configuration is the centre, which shows at once if the experts mislead.

        Args:
            number: number of the suggestion, from 0, without the user's points.
            tried: rows of all trials, shape (m, d).
            rows: rows of the trials with results, shape (n, d).
            losses: their losses; NaN for a trial without a result.
            rng: source of the random functions.
        """
        trusts = self._trusts(self._expected(rows), losses)
        if number > FIRST or number == 1 or trusts.max() < LEAST_TRUST:
            return None
        every = np.concatenate([self._candidates, tried])
        root = np.linalg.cholesky(self._deviations(every, every) + JITTER * np.eye(len(every)))
        functions = np.repeat(self._expected(every), max(2, SAMPLES // len(trusts)), axis=0)
        functions = functions + rng.normal(size=functions.shape) @ root.T
        size = len(self._candidates)
        best = functions[:, size:].min(axis=1, initial=WORST)
        gains = np.maximum(best[:, None] - functions[:, :size], 0.0)
        shares = np.repeat(trusts / trusts.sum(), len(functions) // len(trusts))
        return self._candidates[np.argsort(-(shares @ gains), kind="stable")]

    def _expected(self, rows: Floats) -> Floats:
        """Return the experts' expectations, shape (experts, n)."""
        return np.array([each.mean(rows) for each in self._experts])

    def _trusts(self, expected: Floats, losses: Sequence[float]) -> Floats:
        if not any(map(math.isfinite, losses)):
            return np.ones(len(self._experts))
        scores = _normal_scores(filled(losses))
        return np.array([_agreement(each, scores) for each in expected])

    def process(
        self, rows: Floats, losses: Sequence[float], early: EarlyReports | None = None
    ) -> GaussianProcess:
        """Return the process of the results of a search, with the experts' expectation as mean function.

        Args:
            rows: the trials in the order of their suggestions, shape (n, d).
            losses: their losses; NaN for a trial without a result. At least one is finite.
            early: reports of trials before the end of the training; None: all trials are complete.
        """
        scores, number = _normal_scores(filled(losses)), len(losses)
        rows, losses, missing = with_early(rows, losses, early)
        scaled, expected = standardized(filled(losses)), self._expected(rows)
        # The experts are judged by one result for each trial; early reports precede the results.
        ends = expected[:, -number:]
        trusts = self._trusts(ends, losses[-number:])
        weights = trusts / max(trusts.sum(), 1e-9)
        mixed = weights @ ends
        weights = weights * _agreement(mixed, scores) * _slope(mixed, scaled[-number:])
        residuals = scaled - weights @ expected
        model = fitted(self._encoding, rows, scaled, residuals - residuals.mean(), missing)
        parts = [(w, each) for w, each in zip(weights.tolist(), self._experts, strict=True) if w > 0]
        return GaussianProcess(*model, parts)


def _agreement(expected: Floats, scores: Floats) -> float:
    above = np.triu_indices(len(scores), 1)
    steps = (expected[:, None] - expected)[above]
    right = (np.abs(steps) * np.sign(steps * (scores[:, None] - scores)[above])).sum() / len(scores)
    whole = np.abs(steps).sum() / len(scores)
    return max(0.0, float((right + BELIEF) / (whole + BELIEF)))


def _slope(expected: Floats, losses: Floats) -> float:
    off = expected - expected.mean()
    return max(0.0, float((off @ (losses - losses.mean()) + BELIEF) / (off @ off + BELIEF)))
