"""The stopper `NotWorthIt`, which ends a search when further trials promise too little.

Source: Makarova, Shen, Perrone, Klein, Faddoul, Krause, Seeger, Archambeau, "Automatic termination for
hyperparameter optimization", AutoML 2022, for the bound on the regret and for the noise as its limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainkit.errors import ConfigError
from trainkit.plugins.gaussian_process.acquisition import proposals
from trainkit.plugins.gaussian_process.curves import Curves, EarlyReports
from trainkit.plugins.gaussian_process.encoding import Encoding, Floats, encoding_of
from trainkit.plugins.gaussian_process.model import process_of
from trainkit.plugins.gaussian_process.threads import one_thread
from trainkit.tune.core.checks import is_finite, is_number, require_number, require_whole
from trainkit.tune.core.constraints import Constraint, violation_of
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.core.stoppers import Stopper
from trainkit.tune.space.search_space import Space

COMPLETE = 2 / 3
"""Share of the longest trial's iterations that a trial must exceed, so that its last report is its result."""


@dataclass(eq=False)
class _Moment:
    """Results of the trials at one moment, the bound on the regret, and its limit, once computed."""

    rows: list[Floats]
    losses: list[float]
    early: EarlyReports | None
    bound: float = math.nan
    limit: float = math.nan


@dataclass(eq=False)
class NotWorthIt(Stopper):
    """Stopper that ends the experiment when further trials promise too little, `stop="not_worth_it"`.

    A Gaussian process is fitted to the last reports of all trials when a new trial reports. The result of a
    trial that was stopped early, or that still runs, is estimated from the longer trials. From the process
    follows a bound on the regret: the difference between the best result that the model can vouch for, and
    the best result that it thinks possible anywhere. The search ends if the bound is below the standard
    deviation of the results' noise, or below `threshold`, for `patience` trials in a row. A trial that
    reports NaN or violates a constraint counts as the worst trial. A trial that fails before its first report
    does not count.

    Args:
        threshold: bound below which the search ends without noise, in standard deviations of the results.
        least: minimum number of trials, 3 or more; None: 20, and 2 more for each parameter.
        patience: number of trials in a row.

    Raises:
        ConfigError: an argument is out of range.
    """

    threshold: float = 0.05
    least: int | None = None
    patience: int = 8

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold, "a number above 0", above=0)
        require_whole("least", self.least, 3, optional=True)
        require_whole("patience", self.patience, 1)
        self._form: Encoding | None = None
        self._metric, self._sign, self._seed = "", 1.0, 0
        self._limits: Sequence[Constraint] = ()
        self._rows: dict[str, Floats] = {}
        """Row of each trial, in the order of first reports."""
        self._losses: dict[str, float] = {}
        """Last loss of each trial."""
        self._curves = Curves(None, None)
        self._repeats = False
        """True if a trial has reported more than one iteration."""
        self._iterations: dict[str, float] = {}
        """Iteration of the first report of each trial."""
        self._moments: deque[_Moment] = deque(maxlen=self.patience)
        """The latest moments at which a new trial reported. A restore passes the reports again, in order."""

    def begin(
        self, space: Space, metric: str | None, mode: str | None, limits: Sequence[Constraint], seed: int
    ) -> None:
        if metric is None or mode is None:
            raise ConfigError("stop='not_worth_it' needs one metric and its mode: set them in TuneConfig")
        if space.axes or not space.domains:
            raise ConfigError(
                "stop='not_worth_it' needs a param_space with domains and without a grid: put the space of a "
                "searcher into param_space, and replace a grid by tune.choice; in TuneSearchCV, use a "
                "search_optimization other than 'random', which draws all candidates at the start"
            )
        self._form = encoding_of(space, own=False)
        self._metric, self._sign, self._seed = metric, 1.0 if mode == "min" else -1.0, seed
        self._curves = Curves(metric, mode)
        self._limits = limits

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self._form is None:
            raise ConfigError("stop='not_worth_it' works only in a Tuner")
        row, value = self._form.known_by(result["config"]), lookup(result, self._metric)
        if row is not None and is_number(value):
            is_new = trial_id not in self._rows
            # A trial that was cut off repeats its report after a restore.
            iteration = result.get("training_iteration", 1)
            self._repeats = self._repeats or iteration > self._iterations.setdefault(trial_id, iteration)
            is_usable = is_finite(value) and violation_of(result, self._limits) <= 0
            self._rows[trial_id] = row
            self._losses[trial_id] = self._sign * value if is_usable else math.nan
            self._curves.add(trial_id, result)
            if is_new:
                # The new trial is left out if it will report more often.
                losses = dict(list(self._losses.items())[: -1 if self._repeats else None])
                self._curves.count_as_partial(COMPLETE)
                rows, early = [self._rows[name] for name in losses], self._curves.early_reports(losses)
                self._moments.append(_Moment(rows, self._curves.ends(losses), early))
        return False

    def stop_all(self) -> bool:
        if self._form is None or len(self._moments) < self.patience:
            return False
        least = 20 + 2 * len(self._form) if self.least is None else self.least
        return all(
            len(each.rows) >= least and self._is_low(self._form, each) for each in reversed(self._moments)
        )

    def _is_low(self, form: Encoding, moment: _Moment) -> bool:
        losses = moment.losses
        if math.isnan(moment.bound) and not all(map(math.isnan, losses)):
            with one_thread():
                process = process_of(form, np.array(moment.rows), losses, moment.early)
                rng = suggestion_generator(self._seed, len(losses), 0)
                rows = np.concatenate([process.rows, proposals(process, form, rng)])
                mean, deviation = process.predict(rows)
            vouched = (mean + deviation)[: len(process.rows)].min()
            moment.bound = float(vouched - (mean - deviation).min())
            moment.limit = max(self.threshold, math.sqrt(process.kernel.noise))
        return moment.bound < moment.limit

    def reason(self) -> Mapping[str, Any]:
        last = self._moments[-1]
        return {
            "trials": len(last.rows),
            "regret": last.bound,
            "below": last.limit,
            "patience": self.patience,
        }
