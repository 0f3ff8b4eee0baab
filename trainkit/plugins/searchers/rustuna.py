"""Searcher that uses Rustuna, a Rust implementation of Optuna's samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.plugins.searchers.unit_space import UnitSearcher


class RustunaSearch(UnitSearcher):
    """Search with Rustuna's TPE: S. Watanabe, "Tree-Structured Parzen Estimator" (2023), arXiv:2304.11127.

    The model ignores running trials. For the other arguments, see `UnitSearcher`.

    Args:
        multivariate: True: one model for all parameters together. False: a separate model for each parameter.
    """

    _module, _extra = "rustuna", "rustuna"
    _own = ("n_initial_points", "multivariate")

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 10,
        seed: int | None = None,
        multivariate: bool = True,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, n_initial_points, seed)
        self._multivariate = bool(multivariate)

    def _asked(self, seed: int) -> Mapping[str, Any]:
        rustuna = self._load()
        sampler = rustuna.samplers.TPESampler(
            seed=seed, n_startup_trials=self._n_initial_points, multivariate=self._multivariate
        )
        study = rustuna.create_study(sampler=sampler, direction="minimize")
        distributions = self.form.each(
            lambda name: rustuna.distributions.FloatDistribution(0.0, 1.0),
            lambda name, size: rustuna.distributions.CategoricalDistribution(list(range(size))),
        )
        for place, loss in self._losses():
            study.add_trial(
                rustuna.create_trial(
                    params=self.form.whole(place), distributions=distributions, values=[loss]
                )
            )
        trial = study.ask()
        return self.form.each(
            lambda name: trial.suggest_float(name, 0.0, 1.0),
            lambda name, size: trial.suggest_categorical(name, list(range(size))),
        )
