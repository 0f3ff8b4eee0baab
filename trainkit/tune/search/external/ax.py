"""Searcher on Ax: Gaussian processes by BoTorch."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from threadpoolctl import threadpool_limits

from trainkit.tune.core.checks import require_one_of
from trainkit.tune.search.external.unit_space import Place, UnitSearcher


class AxSearch(UnitSearcher):
    """Suggest configurations by Ax: M. Olson et al., "Ax: A Platform for Adaptive Experimentation" (AutoML
    2025).

    Its model is a Gaussian process with priors that suit many parameters, and the place of the largest
    expected improvement over noise comes next. Trials that run are known to it as running. A suggestion
    takes about a second. The other arguments are UnitSearcher's.

    Args:
        method: "fast", or "quality", which takes the model's uncertainty into account and is slower.
    """

    _module, _extra = "ax", "ax"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 10,
        seed: int | None = None,
        method: Literal["fast", "quality"] = "fast",
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, n_initial_points, seed)
        require_one_of("method", method, ("fast", "quality"))
        self._method: Literal["fast", "quality"] = method

    @property
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments, "method": self._method}

    def _asked(self, seed: int) -> Mapping[str, Any]:
        self._load()
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        # Ax takes few names: parameters go by their places.
        sizes = self.form.sizes
        names = {name: f"p{place}" for place, name in enumerate(sizes)}
        parameters = [
            RangeParameterConfig(name=names[name], parameter_type="float", bounds=(0.0, 1.0))
            if size is None
            else ChoiceParameterConfig(
                name=names[name],
                parameter_type="int",
                values=list(range(size)),
                is_ordered=False,
            )
            for name, size in sizes.items()
        ]

        def renamed(place: Place) -> dict[str, Any]:
            return {names[name]: value for name, value in self.form.whole(place).items()}

        with warnings.catch_warnings(), threadpool_limits(1), _quiet():
            warnings.simplefilter("ignore")  # of fits that are tried again, which Ax does by itself
            client = Client(random_seed=seed)
            client.configure_experiment(name="trainkit", parameters=parameters)
            client.configure_optimization(objective="-loss")
            client.configure_generation_strategy(
                method=self._method,
                initialization_budget=1,
                initialization_random_seed=seed,
                initialize_with_center=False,
            )
            for place, loss in self._losses():
                client.complete_trial(client.attach_trial(renamed(place)), raw_data={"loss": loss})
            for place in self._running():
                client.attach_trial(renamed(place))
            (suggested,) = client.get_next_trials(max_trials=1).values()
        return {name: suggested[short] for name, short in names.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ax from a line for each trial."""
    logger = logging.getLogger("ax")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
