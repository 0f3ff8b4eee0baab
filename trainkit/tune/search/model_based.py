"""Base classes of searchers with a model of the results.

points_to_evaluate --> form.fixed ----> _suggested -> configuration n, which counts as running in the model
    take, a restore -----> form.known_by -> _note      -> configuration n, which is already known
    add_evaluated_point -> form.known_by -> _learn
    a duplicate ---------> _forget, and _suggested again with another draw
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import checked_points, checked_seed, is_number, require
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.seeds import fresh_seed, suggestion_generator
from trainkit.tune.search.base import Evaluated, Searcher
from trainkit.tune.search.encoded_space import Form
from trainkit.tune.space.search_space import Space

F = TypeVar("F", bound=Form)


class ModelBasedSearcher(Searcher, Generic[F]):
    """Base of searchers with a model of the results; a subclass provides the model.

    A searcher that is used without a Tuner begins with its first suggestion. Without a Tuner, a searcher uses
    its own space or the space from `set_search_properties`, and makes any number of suggestions.

    Args:
        space: space to search, in the subclass's form; None: the experiment's space. If `space` is given,
            `param_space` may contain only constants, which are added to every configuration.
        metric: metric to optimise; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        points_to_evaluate: complete or partial configurations to try first.
        seed: seed of all draws; None: the TuneConfig's seed.
        seed_name: name of the argument `seed` in the subclass.

    Raises:
        ConfigError: an argument is wrong.
    """

    _shared: ClassVar[tuple[str, ...]] = ("_space", "_form")
    """Attributes that a deep copy of the searcher shares, because they are compared by identity or write to a
    storage.
    """

    def __init__(
        self,
        space: Any,
        metric: str | None,
        mode: str | None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None,
        seed: int | None,
        seed_name: str = "seed",
    ) -> None:
        super().__init__(metric, mode)
        self._points = checked_points(points_to_evaluate)
        self._seed = checked_seed(seed_name, seed)
        self._seed_name = seed_name
        self._space = space
        self._form: F | None = None if space is None else self._form_of(space, own=True)
        self._evaluated: list[Evaluated] = []
        self._to_run: list[tuple[Any, bool]] = []
        self._base = 0
        """Seed of all draws: the searcher's own seed, or else the experiment's."""
        self._number = 0
        """Number of the next suggestion."""
        self._rejected = (-1, 0)
        """Number of the last rejected suggestion, and the number of rejected attempts at this suggestion."""
        self._drawn = True
        self._offered: tuple[dict[str, Any], Any | None] = {}, None
        """The last configuration that `alternatives` yielded, and its encoding in the model."""
        self._left_out: set[str] = set()
        """Ids of earlier trials that are outside of the current space, because a restore has changed the
        space.
        """
        self._given: tuple[str | None, str | None, dict[str, Any]] = None, None, {}
        """The last arguments of `set_search_properties`, kept until the searcher begins."""
        self._begun = self._alone = False

    # --- the model, which a subclass provides -----------------------------------------------------

    @abstractmethod
    def _form_of(self, space: Any, *, own: bool) -> F:
        """Return the form of the space, which encodes configurations for the model.

        Args:
            space: the constructor's space, or the experiment's space.
            own: True for the constructor's space; configurations may then also contain constants of
                `param_space`.

        Raises:
            ConfigError: the space can't be searched.
        """

    @abstractmethod
    def _begin_model(self, form: F) -> None:
        """Create the model; the metric, the mode and the seed (`_base`) are already set."""

    @abstractmethod
    def _suggested(self, trial_id: str, fixed: Any) -> dict[str, Any] | str:
        """Return a configuration that the model suggests, and record it as running; FINISHED: no more exist.

        The random draws of a suggestion depend only on the seed `_base`, the suggestion's number and the
        number of rejected attempts.

        Args:
            trial_id: id of the configuration in the model.
            fixed: encoded values of a point that the user gave; None: the model chooses all values.
        """

    @abstractmethod
    def _note(self, trial_id: str, known: Any) -> None:
        """Record a running configuration that the model did not suggest; `known` is its encoding."""

    @abstractmethod
    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        """Remove the last suggestion, which was rejected; `result` belongs to its earlier duplicate."""

    @abstractmethod
    def _learn(self, name: str, known: Any, evaluated: Evaluated) -> None:
        """Learn from a configuration evaluated elsewhere; `name` identifies it, like a trial's id."""

    # --- the search space -------------------------------------------------------------------------

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "space": self._space,
            "metric": self.metric,
            "mode": self.mode,
            "points_to_evaluate": self._points,
            self._seed_name: self._seed,
        }

    @property
    def evaluated(self) -> list[Evaluated]:
        """The points from `add_evaluated_point`, which the experiment stores."""
        return self._evaluated

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelBasedSearcher[F]:
        twin = copy.copy(self)
        memo[id(self)] = twin
        memo.update({id(vars(self)[name]): vars(self)[name] for name in self._shared})
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        self._given = metric, mode, config
        return self._space is None

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        require(
            not self._alone,
            f"this {type(self).__name__} was used without a Tuner, and its results would be lost: give the "
            f"Tuner a new {type(self).__name__}, and add the results by add_evaluated_point()",
        )
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)
        require(
            bool(self.objectives) or (self.metric is not None and self.mode is not None),
            f"{type(self).__name__} needs a metric and a mode: set them here or in TuneConfig",
        )
        if self._space is None:
            self._form = self._form_of(space, own=False)
        self._base = seed if self._seed is None else self._seed
        self._begin_model(self.form)
        self._to_run = [self.form.fixed(point) for point in self._points_to_run()]
        for number, each in enumerate(self._evaluated_to_learn()):
            self._learn_of(number, each)
        self._begun, self._given = True, (None, None, {})

    def _begin_alone(self) -> None:
        metric, mode, config = self._given
        require(
            self._space is not None or bool(config),
            f"{type(self).__name__} has no search space: give space=..., call "
            "set_search_properties(metric, mode, space), or use the searcher in a Tuner",
        )
        self.begin(Space.of(config or None), metric=metric, mode=mode, num_samples=-1, seed=fresh_seed())
        self._alone = True

    def _learn_of(self, number: int, each: Evaluated) -> None:
        known = self.form.known_by(each.parameters)
        if known is None:
            raise ConfigError(
                f"evaluated point {each.parameters!r} is not in the space: give every parameter a valid value"
            )
        self._learn(f"evaluated {number}", known, each)

    def _points_to_run(self) -> Sequence[Mapping[str, Any]]:
        return self._points

    def _evaluated_to_learn(self) -> Sequence[Evaluated]:
        return self._evaluated

    @property
    def form(self) -> F:
        """The encoding of the search space.

        Raises:
            ConfigError: the searcher has no space yet.
        """
        if self._form is None:
            raise ConfigError(f"{type(self).__name__} has no space yet: use it as search_alg in TuneConfig")
        return self._form

    @property
    def hears_again(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        return self._space is None

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if not self._begun:
            self._begin_alone()
        n = self._number
        fixed, self._drawn = self._to_run[n] if n < len(self._to_run) else (None, True)
        suggestion = self._suggested(trial_id, fixed)
        self._number += isinstance(suggestion, dict)
        return suggestion

    @property
    def _redraws(self) -> int:
        """Number of rejected attempts at the next suggestion."""
        number, tries = self._rejected
        return tries if number == self._number else 0

    def is_drawn(self, trial_id: str) -> bool:
        return self._drawn

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        self._forget(trial_id, result)
        self._number -= 1
        self._rejected = (self._number, self._redraws + 1)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]]:
        others = self.form.others(suggestion_generator(self._base, self._number, self._redraws))
        for self._offered in others:
            yield self._offered[0]

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        offered, known = self._offered
        if known is None or config != offered:
            known = self.form.known_by(config)
        return self._took(trial_id, known)

    def _took(self, trial_id: str, known: Any | None) -> bool:
        if known is None:
            return False
        self._note(trial_id, known)
        self._number += 1
        return True

    def knows(self, config: dict[str, Any]) -> bool:
        return self.form.known_by(config) is not None

    def note(self, trial_id: str, config: dict[str, Any]) -> bool:
        known = self.form.known_by(config)
        # The added configuration takes the index of the user's next point. The new entry moves the user's
        # remaining points back by one index.
        if known is not None:
            self._to_run.insert(self._number, (None, True))
        return self._took(trial_id, known)

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        if self._took(trial_id, self.form.known_by(config, exactly=True)):
            return config
        if same_space:
            return None
        self._left_out.add(trial_id)  # results outside the new space are ignored
        self._number += 1
        return config

    # --- results from elsewhere -------------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        self._evaluated.append(Evaluated(parameters, value, error, pruned, intermediate_values))
        if self._begun:
            self._learn_of(len(self._evaluated_to_learn()) - 1, self._evaluated[-1])


class LastReportSearcher(ModelBasedSearcher[F]):
    """Base of searchers that judge a trial by its last report, at its end and while it is paused."""

    @cached_property
    def _last(self) -> dict[str, float]:
        """Last reported metric of each trial that has not ended."""
        return {}

    @abstractmethod
    def _tell(self, trial_id: str, value: float | None) -> None:
        """Record a trial's value, which may be NaN or infinite; None: the trial failed or has no value."""

    @abstractmethod
    def _runs(self, trial_id: str) -> None:
        """Record that a trial with a recorded value is running again."""

    def _learn(self, name: str, known: Any, evaluated: Evaluated) -> None:
        self._note(name, known)
        self._tell(name, None if evaluated.error else evaluated.value)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        value = lookup(result, self.metric or "")
        if trial_id not in self._left_out and is_number(value):
            self._last[trial_id] = float(value)

    def on_pause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._tell(trial_id, self._last[trial_id])

    def on_unpause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._runs(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if trial_id in self._left_out:
            return
        self._last.pop(trial_id, None)
        value = lookup(result or {}, self.metric or "")
        self._tell(trial_id, float(value) if not error and is_number(value) else None)


class RefittedSearcher(LastReportSearcher[F]):
    """Base of searchers that build their model again for each suggestion, from all results known then.

    No model is kept between suggestions, so a restore needs no internal state of a package.
    """

    @cached_property
    def _known(self) -> dict[str, tuple[Any, float | None]]:
        """Encoding and loss of each trial.

        The loss of a running trial is None, and the loss of a trial without a result is NaN.
        """
        return {}

    def _losses(self) -> list[tuple[Any, float]]:
        """Return the encodings and losses of trials with a usable result."""
        return [
            (known, loss) for known, loss in self._known.values() if loss is not None and not math.isnan(loss)
        ]

    def _running(self) -> list[Any]:
        """Return the encodings of running trials."""
        return [known for known, loss in self._known.values() if loss is None]

    def _note(self, trial_id: str, known: Any) -> None:
        self._known[trial_id] = known, None

    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        del self._known[trial_id]

    def _tell(self, trial_id: str, value: float | None) -> None:
        known, _ = self._known[trial_id]
        loss = math.nan if value is None or not math.isfinite(value) else value
        self._known[trial_id] = known, -loss if self.mode == "max" else loss

    def _runs(self, trial_id: str) -> None:
        known, _ = self._known[trial_id]
        self._known[trial_id] = known, None
