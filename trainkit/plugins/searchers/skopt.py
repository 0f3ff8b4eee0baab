"""Searcher that uses scikit-optimize: Gaussian processes, forests and boosted trees."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from trainkit.plugins.searchers.unit_space import UnitSearcher
from trainkit.tune.core.checks import require_one_of

MODELS = ("GP", "RF", "ET", "GBRT")
ACQUISITIONS = ("gp_hedge", "LCB", "EI", "PI")


class SkOptSearch(UnitSearcher):
    """Search with scikit-optimize.

    Running trials count as the worst result so far. For the other arguments, see `UnitSearcher`.

    Args:
        base_estimator: kind of model: "GP", Gaussian process; "RF", random forest; "ET", extremely random
            trees; "GBRT", boosted trees.
        acq_func: "LCB", lower confidence bound; "EI", expected improvement; "PI", probability of improvement;
            "gp_hedge", a random choice among these three, weighted by their past gains.
    """

    _module, _extra = "skopt", "skopt"
    _own = ("n_initial_points", "base_estimator", "acq_func")

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 10,
        seed: int | None = None,
        base_estimator: str = "GP",
        acq_func: str = "EI",
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, n_initial_points, seed)
        require_one_of("base_estimator", base_estimator, MODELS)
        require_one_of("acq_func", acq_func, ACQUISITIONS)
        self._base_estimator, self._acq_func = base_estimator, acq_func

    def _asked(self, seed: int) -> Mapping[str, Any]:
        skopt = self._load()
        places, losses = self._told()
        dimensions = self.form.each(
            lambda name: skopt.space.Real(0.0, 1.0),
            lambda name, size: skopt.space.Categorical(range(size)),
        )
        # The matrices are small, so more threads would be slower, and would take CPUs from the trials.
        with warnings.catch_warnings(), threadpool_limits(1):
            # Scikit-learn warns of kernels at the end of their bounds.
            warnings.simplefilter("ignore")
            model = skopt.Optimizer(
                list(dimensions.values()),
                self._base_estimator,
                n_initial_points=1,
                acq_func=self._acq_func,
                random_state=seed,
            )
            model.tell([list(place.values()) for place in places], losses)
            return dict(zip(dimensions, model.ask(), strict=True))
