"""The searcher `GaussianProcessSearch`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.plugins.gaussian_process.acquisition import proposals
from trainkit.plugins.gaussian_process.constraints import Feasibility, excesses_of
from trainkit.plugins.gaussian_process.curves import Curves
from trainkit.plugins.gaussian_process.earlier import Earlier, Source
from trainkit.plugins.gaussian_process.encoding import Encoding, Floats, encoding_of
from trainkit.plugins.gaussian_process.initial import initial_row, is_initial, random_rows
from trainkit.plugins.gaussian_process.model import Expert, process_of, thinned
from trainkit.plugins.gaussian_process.priors import Belief, checked_priors
from trainkit.plugins.gaussian_process.sources import plain_sources, sources_with
from trainkit.plugins.gaussian_process.threads import one_thread
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.search.model_based import RefittedSearcher

if TYPE_CHECKING:
    from numpy.random import Generator

RUNNING = 64
"""Maximum number of running trials that the model takes into account.

If more trials are running, the model uses the latest trials.
"""
CONSIDERED = 800
"""Maximum number of results from which the results in the model are chosen."""
TRIES = 100
"""Maximum number of consecutive rows that the rules of the space may forbid.

If the rules forbid so many rows in a row, a random configuration is drawn.
"""


class GaussianProcessSearch(RefittedSearcher[Encoding]):
    """Searcher with a Gaussian process; it needs no package besides NumPy.

    The first configuration is the centre of the space. The next 3 to 9 configurations are evenly distributed;
    if a condition has more branches, or if too few trials have a result, there are more initial
    configurations. After the initial configurations, each suggestion is the configuration with the largest
    expected improvement in a Gaussian process that is fitted to the results.

    A list of three or more numbers counts as ordered. A failed trial and NaN count as the worst result. A
    running trial counts as if it had the result that the model expects. If a scheduler stops or pauses a
    trial, its result is estimated: it is expected to change as the complete trials changed. The model learns
    how far such estimates agree with the results of complete trials. Of more than 150 results, the model uses
    the best 75, the latest 25 and 50 others that are far apart. Suggestion n depends only on the seed, on n,
    and on the results and running trials at the time of the suggestion.

    Sources: Rasmussen, Williams, "Gaussian Processes for Machine Learning", 2006; Hvarfner, Hellsten, Nardi,
    "Vanilla Bayesian Optimization Performs Great in High Dimensions", ICML 2024; Ament et al., "Unexpected
    Improvements to Expected Improvement for Bayesian Optimization", NeurIPS 2023.

    Args:
        space: dictionary with domains, as in `param_space`; None: `param_space` is searched. If `space` is
            given, `param_space` may contain only constants, which are added to every configuration.
        metric: metric to optimise; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        points_to_evaluate: complete or partial configurations to try first; they count toward `num_samples`,
            and the searcher chooses missing values.
        seed: seed of all draws; None: the TuneConfig's seed.

    Raises:
        ConfigError: an argument is wrong.
    """

    draws_first = False
    """True: the first configuration is drawn at random, exactly as in random search."""

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, seed)
        self._sources: list[dict[str, Any]] | None = None
        self._priors: Mapping[str, Any] = {}
        self._earlier: Earlier | None = None
        self._believed: Floats | None = None
        self._excesses: dict[str, list[float]] = {}
        """Excess of each trial's last report over the limit of each constraint."""

    def learn_from(
        self, sources: Any, priors: Mapping[str, Any] | None, metric: str | None, mode: str | None
    ) -> list[dict[str, Any]] | None:
        self._sources = plain_sources(sources, self.metric or metric, self.mode or mode, self.constraints)
        self._priors = checked_priors(priors)
        return self._sources

    def _form_of(self, space: Any, *, own: bool) -> Encoding:
        return encoding_of(space, own=own)

    def _begin_model(self, form: Encoding) -> None:
        experts: list[Expert] = [Belief(form, self._priors, self._base)] if self._priors else []
        self._believed = experts[0].best if experts and not self._sources else None
        with one_thread():
            if self._sources:
                experts += [Source(form, each, self.mode) for each in sources_with(form.codes, self._sources)]
            self._earlier = Earlier(form, experts, self._base) if experts else None

    def _suggested(self, trial_id: str, fixed: dict[str, Any] | None) -> dict[str, Any]:
        rng = suggestion_generator(self._base, self._number, self._redraws)
        if self.draws_first and not self._number:
            first = self.form.drawn(rng, fixed)
            self._note(trial_id, self.form.row(first))
            return first
        # If the user gave a complete point, no row of the model is needed.
        rows = self._rows(rng) if self._drawn and len(self.form) else random_rows(self.form, rng)
        found = (self.form.config(row, fixed or {}, rng) for row in islice(rows, TRIES))
        allowed = (each for each in found if fixed or self.form.allows(each))
        config = next(allowed, None) or self.form.drawn(rng)
        # The row is computed from the configuration, because a restored search also computes it from the
        # configuration.
        self._note(trial_id, self.form.row(config))
        return config

    def _rows(self, rng: Generator) -> Iterator[Floats]:
        """Yield the rows to suggest, the best first."""
        known = [(name, row, loss) for name, (row, loss) in self._known.items() if loss is not None]
        if len(known) > CONSIDERED:
            known = [known[place] for place in thinned([loss for *_, loss in known], CONSIDERED)]
        lasts = {name: loss for name, _, loss in known}
        losses = self._curves.ends(lasts)
        number = self._number - len(self._to_run)  # the user's points come first
        # The model would repeat a rejected suggestion, so the next row is random.
        if not self._redraws:
            rows = np.array([row for _, row, _ in known]).reshape(-1, len(self.form))
            first = self._first_rows(number, rows, losses, rng)
            # The first configuration of earlier experiments moves the initial configurations back by one.
            place = max(number - 1, 0) if self._earlier else number
            if first is not None:
                yield from first
            elif is_initial(self.form, number, losses):
                yield initial_row(self.form, place, self._base)
            else:
                yield from self._proposals(lasts, rows, losses, rng)
        yield from random_rows(self.form, rng)

    @cached_property
    def _curves(self) -> Curves:
        return Curves(self.metric, self.mode)

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        self._curves.decide(trial_id, decision)

    def on_unpause(self, trial_id: str) -> None:
        self._curves.resume(trial_id)
        super().on_unpause(trial_id)

    def _first_rows(self, number: int, rows: Floats, losses: list[float], rng: Generator) -> Floats | None:
        if self._earlier is None or (number == 0 and self._believed is not None):
            return self._believed
        with one_thread():
            return self._earlier.first_rows(number, self._tried(), rows, losses, rng)

    def _tried(self) -> Floats:
        """Return the rows of all trials, which are more than the rows in the model."""
        return np.array([row for row, _ in self._known.values()]).reshape(-1, len(self.form))

    def _proposals(
        self, lasts: Mapping[str, float], rows: Floats, losses: list[float], rng: Generator
    ) -> Floats:
        running = np.array(self._running()[-RUNNING:]).reshape(-1, len(self.form))
        with one_thread():
            early = self._curves.early_reports(lasts)
            if self._earlier is None:
                process = process_of(self.form, rows, losses, early)
            else:
                process = self._earlier.process(rows, losses, early)
            process = process.with_expected(running)
            if not self.constraints:
                return proposals(process, self.form, rng, tried=self._tried())
            unknown = [math.nan] * len(self.constraints)
            excesses = np.array([self._excesses.get(name, unknown) for name in lasts])
            feasible = ~np.isnan(losses) & np.all(excesses <= 0, axis=1)
            feasibility = Feasibility(self.form, rows, excesses)
            return proposals(process, self.form, rng, feasibility, rows[feasible], self._tried())

    # --- constraints ------------------------------------------------------------------------------

    @property
    def heeds_constraints(self) -> bool:
        return True

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._curves.add(trial_id, result)
        if self.constraints:
            self._excesses[trial_id] = excesses_of(result, self.constraints)
        super().on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if self.constraints:
            self._excesses[trial_id] = excesses_of(result or {}, self.constraints)
        super().on_trial_complete(trial_id, result, error)
