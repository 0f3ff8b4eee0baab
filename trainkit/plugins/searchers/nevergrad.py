"""Searcher that uses Nevergrad: evolution strategies, differential evolution, particle swarms and more."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from trainkit.plugins.searchers.unit_space import UnitSearcher, UnitSpace
from trainkit.tune.core.checks import require, require_whole

WORKERS = 2
"""Number of workers for which Nevergrad plans; with 1, Nevergrad would choose optimizers that wait for each
result.
"""

OPEN_BUDGET = 100
"""Budget for which Nevergrad plans if the number of trials is unlimited; the same number as Nevergrad's
default.
"""


class NevergradSearch(UnitSearcher):
    """Search with an optimizer of Nevergrad: P. Bennet et al., "Nevergrad: Black-Box Optimization Platform"
    (SIGEVOlution 14, 2021).

    One optimizer object serves the whole search, so a restored search repeats all its suggestions. A
    configuration that the optimizer did not suggest, such as one of `points_to_evaluate`, is also reported to
    the optimizer, if the optimizer accepts such configurations. For the other arguments, see `UnitSearcher`.

    Args:
        optimizer: name in Nevergrad's registry, such as "TwoPointsDE", "CMA", "PSO" or "OnePlusOne". Or an
            optimizer object, such as `nevergrad.optimizers.OnePlusOne` or a configured optimizer family.
        optimizer_kwargs: further arguments of the optimizer.
        budget: number of suggestions that the optimizer plans for. None: `num_samples`, or 100 if the number
            of samples is unlimited.

    Raises:
        MissingDependencyError: Nevergrad is not installed.
        ConfigError: an argument is invalid.
    """

    _module, _extra = "nevergrad", "nevergrad"
    _own = ("optimizer", "optimizer_kwargs", "budget")
    _shared: ClassVar = ("_space", "_form", "_make", "_optimizer")
    _least_initial = 0

    def __init__(
        self,
        optimizer: Any = "TwoPointsDE",
        optimizer_kwargs: Mapping[str, Any] | None = None,
        budget: int | None = None,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, 0, seed)
        self._make = _maker(self._load(), optimizer)
        if budget is not None:
            require_whole("budget", budget, 1)
        require(
            optimizer_kwargs is None or isinstance(optimizer_kwargs, Mapping),
            f"optimizer_kwargs={optimizer_kwargs!r} is not a dictionary of arguments of the optimizer",
        )
        self._optimizer, self._optimizer_kwargs = optimizer, dict(optimizer_kwargs or {})
        self._budget = budget
        self._parametrization: Any = None
        self._running_optimizer: Any = None
        self._candidate: Any = None
        """Nevergrad's object for the latest suggestion."""
        self._candidates: dict[str, Any] = {}
        """Maps the id of each running trial to Nevergrad's object for the trial's suggestion."""

    @classmethod
    def _load(cls) -> Any:
        with _with_removed_name():
            return super()._load()

    def _begin_model(self, form: UnitSpace) -> None:
        if not form.sizes:
            return
        nevergrad = self._load()
        columns = form.each(
            lambda name: nevergrad.p.Scalar(lower=0, upper=1),
            lambda name, size: nevergrad.p.Choice(range(size)),
        )
        self._parametrization = nevergrad.p.Dict(**columns)
        budget = self._budget or (self.num_samples if self.num_samples > 0 else OPEN_BUDGET)
        self._running_optimizer = self._make(
            parametrization=self._parametrization,
            budget=max(budget, WORKERS),
            num_workers=WORKERS,
            **self._optimizer_kwargs,
        )

    def _asked(self, seed: int) -> Mapping[str, Any]:
        from numpy.random import RandomState

        self._parametrization.random_state = RandomState(seed)
        self._candidate = self._running_optimizer.ask()
        value: Mapping[str, Any] = self._candidate.value
        return value

    def _suggested(self, trial_id: str, fixed: dict[str, Any] | None) -> dict[str, Any]:
        self._candidate = None
        config = super()._suggested(trial_id, fixed)
        if self._candidate is not None and not fixed:
            self._candidates[trial_id] = self._candidate
        return config

    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        super()._forget(trial_id, result)
        self._candidates.pop(trial_id, None)

    def _tell(self, trial_id: str, value: float | None) -> None:
        super()._tell(trial_id, value)
        place, loss = self._known[trial_id]
        candidate = self._candidates.pop(trial_id, None)
        if self._running_optimizer is None or loss is None or math.isnan(loss):
            return
        if candidate is None:
            whole = self.form.whole(place)
            candidate = self._parametrization.spawn_child(new_value=whole)
        with contextlib.suppress(self._load().errors.TellNotAskedNotSupportedError):
            self._running_optimizer.tell(candidate, loss)

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        # If this method returns None, the tuner requests the suggestion again, which gives the same
        # configuration and restores the optimizer's state.
        return None if same_space else super().replay(trial_id, config, same_space=False)


def _maker(nevergrad: Any, optimizer: Any) -> Any:
    """Return the optimizer class or factory for `optimizer`, which is a name, a class or a factory.

    Raises:
        ConfigError: `optimizer` is not a known name or a usable object.
    """
    registry = nevergrad.optimizers.registry
    found = registry.get(optimizer) if isinstance(optimizer, str) else optimizer
    base = nevergrad.optimizers.base
    is_class = isinstance(found, type) and issubclass(found, base.Optimizer)
    require(
        is_class or isinstance(found, base.ConfiguredOptimizer),
        f"optimizer={optimizer!r} is unknown: pass a name of nevergrad.optimizers.registry, such as "
        "'CMA', or the object of nevergrad.optimizers with that name",
    )
    require(
        not isinstance(found, nevergrad.families.ParametrizedBO),
        f"optimizer={optimizer!r} requires an old version of bayesian-optimization: use BayesOptSearch",
    )
    require(
        not found.no_parallelization,
        f"optimizer={optimizer!r} waits for each result before its next suggestion: use 'CMA' or "
        "another optimizer",
    )
    return found


@contextlib.contextmanager
def _with_removed_name() -> Iterator[None]:
    """Let Nevergrad import a name that version 2 of bayesian-optimization no longer has.

    Only optimizers such as Nevergrad's "BO" use this name, and this searcher refuses these optimizers.
    """
    if "nevergrad" in sys.modules or importlib.util.find_spec("bayes_opt") is None:
        yield
        return
    module = importlib.import_module("bayes_opt")
    is_missing = not hasattr(module, "UtilityFunction")
    if is_missing:
        setattr(module, "UtilityFunction", None)  # noqa: B010
    try:
        yield
    finally:
        if is_missing:
            del module.UtilityFunction


if importlib.util.find_spec("nevergrad") is not None:
    # Nevergrad is imported while the missing name exists, so that a later import in the user's script
    # succeeds.
    NevergradSearch._load()
