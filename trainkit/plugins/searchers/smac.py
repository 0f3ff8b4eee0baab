"""Searcher that uses SMAC3, with a random forest and expected improvement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from trainkit.plugins.searchers.unit_space import UnitSearcher

CHALLENGERS = 1000
"""Number of configurations that the model compares; SMAC's default of 10,000 takes seconds."""


class SMACSearch(UnitSearcher):
    """Search with the model of SMAC3's hyperparameter optimization: M. Lindauer et al., "SMAC3: A Versatile
    Bayesian Optimization Package for Hyperparameter Optimization" (JMLR 23, 2022).

    The random forest predicts the logarithms of scaled losses. The next configuration has the largest
    expected improvement. Running trials count as the worst result so far. For the arguments, see
    `UnitSearcher`.
    """

    _module, _extra = "smac", "smac"

    def _asked(self, seed: int) -> Mapping[str, Any]:
        smac = self._load()
        from ConfigSpace import Categorical, Configuration, ConfigurationSpace, Float
        from smac.runhistory import RunHistory

        places, losses = self._told()
        facade = smac.HyperparameterOptimizationFacade
        space = ConfigurationSpace(seed=seed)
        columns = self.form.each(
            lambda name: Float(name, (0.0, 1.0)), lambda name, size: Categorical(name, list(range(size)))
        )
        space.add(list(columns.values()))
        configs = [Configuration(space, values=place) for place in places]
        # SMAC writes into this folder only if it runs trials itself; this searcher does not let SMAC run
        # trials.
        scenario = smac.Scenario(
            space, deterministic=True, seed=seed, n_trials=2**31, output_directory=Path("unused")
        )
        history = RunHistory()
        for config, loss in zip(configs, losses, strict=True):
            history.add(config, loss)
        encoder = facade.get_runhistory_encoder(scenario)
        encoder.runhistory = history
        x, y = encoder.transform()
        with threadpool_limits(1):
            model = facade.get_model(scenario).train(x, y)
            acquisition = facade.get_acquisition_function(scenario)
            acquisition.update(
                model=model, eta=float(y.min()), incumbent_array=x[y.argmin()], num_data=len(x), X=x
            )
            maximizer = facade.get_acquisition_maximizer(scenario, challengers=CHALLENGERS)
            maximizer.acquisition_function = acquisition
            return dict(next(iter(maximizer.maximize(configs, n_points=CHALLENGERS))))
