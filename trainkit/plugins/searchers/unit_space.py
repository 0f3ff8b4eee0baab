"""Base class of searchers that use other packages, and the encoding of configurations for these packages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import load, require_whole
from trainkit.tune.core.seeds import suggestion_generator, suggestion_words
from trainkit.tune.search.encoded_space import Declared
from trainkit.tune.search.model_based import RefittedSearcher
from trainkit.tune.space.domains import Domain
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.transforms import ChoiceCode, RealCode, code_of

if TYPE_CHECKING:
    from numpy.random import Generator


T = TypeVar("T")

Place = dict[str, float | int]
"""Encoding of a configuration: for each parameter, a number from 0 to 1, or an index in its list of
values."""


class UnitCode:
    """Encoding of one parameter for another package.

    Args:
        name: name of the parameter, for error messages.
        domain: domain of the parameter.
        searcher: name of the searcher, for error messages.

    Attributes:
        categories: number of values in the parameter's list; None if the parameter is encoded as a number
            from 0 to 1.
        ends: values that are encoded as 0 and 1, if the encoding is linear; otherwise None.

    Raises:
        SpaceError: the domain can't be encoded.
    """

    def __init__(self, name: str, domain: Domain, *, searcher: str) -> None:
        self._code = code_of(name, domain, searcher)
        self.categories = len(self._code.categories) if isinstance(self._code, ChoiceCode) else None
        self.ends: tuple[float, float] | None = None
        if isinstance(self._code, RealCode) and not self._code.log:
            self.ends = self._code.ends

    def encode(self, value: Any) -> float | int:
        """Return the encoding of `value`, a value of the domain."""
        code = self._code
        return code.encode(value) if isinstance(code, ChoiceCode) else min(max(code.to_unit(value), 0.0), 1.0)

    def decode(self, place: float) -> Any:
        """Return the value that is encoded as `place`."""
        code = self._code
        return code.decode(place) if isinstance(code, ChoiceCode) else code.from_unit(float(place))


class UnitSpace(Declared[UnitCode]):
    """Search space with conditions, for packages without conditions: they receive values for all parameters.

    Args:
        space: space to encode.
        searcher: name of the searcher, for error messages.
        own: True if configurations may also contain constants from `param_space`.
    """

    def __init__(self, space: Space, *, searcher: str, own: bool) -> None:
        super().__init__(space, partial(UnitCode, searcher=searcher), searcher=searcher, own=own)

    @property
    def sizes(self) -> dict[str, int | None]:
        """Length of the list of values of each parameter; None if it is encoded as a number from 0 to 1."""
        return {name: code.categories for name, code in self.codes.items()}

    def each(self, number: Callable[[str], T], choice: Callable[[str, int], T]) -> dict[str, T]:
        """Map each number to `number(name)`, and each list of `size` values to `choice(name, size)`."""
        return {
            name: number(name) if size is None else choice(name, size) for name, size in self.sizes.items()
        }

    def whole(self, place: Mapping[str, float | int]) -> Place:
        """Return `place` with the inactive parameters added: 0.5 for numbers, index 0 for lists."""
        return self.each(lambda name: place.get(name, 0.5), lambda name, size: place.get(name, 0))

    def random(self, rng: Generator) -> Place:
        """Return a random encoding, with uniform distribution."""
        return self.each(lambda name: float(rng.random()), lambda name, size: int(rng.integers(size)))

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        _, open_ = super().fixed(point)
        # The value that the user gave is not encoded, because encoding may change it.
        return self.declared.point(point), open_

    def configuration(self, place: Place, fixed: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Convert an encoding to a configuration with the values in `fixed`; `sample_from` uses `rng`."""

        def ask(name: str, domain: Domain) -> Any:
            return fixed[name] if name in fixed else self.codes[name].decode(place[name])

        return self.declared.walk(ask, rng)


class UnitSearcher(RefittedSearcher[UnitSpace]):
    """Base of searchers whose suggestions come from another package; a subclass calls the package.

    A quantized value is rounded before it is encoded for the package. The package receives an inactive
    parameter as 0.5, or as index 0 of a list. Results that are NaN or infinite, and results of failed trials,
    are left out. If a scheduler stops or pauses a trial, its last report is its result. Suggestion n depends
    on the seed, n and the results known at that time. If the package suggests a configuration again, a random
    configuration is used instead.

    Args:
        space: domains as in `param_space`. None: `param_space`. If `space` is given, `param_space` may
            contain only constants, which are added to every configuration.
        metric: name of the reported value to optimise; None: the metric of the TuneConfig.
        mode: "min" or "max"; None: the mode of the TuneConfig.
        points_to_evaluate: complete or partial configurations to try first; they count towards `num_samples`.
        n_initial_points: number of results that must exist before the package makes suggestions; until then,
            suggestions are random.
        seed: seed of the random numbers; None: the seed of the TuneConfig.

    Raises:
        MissingDependencyError: the package is not installed.
        ConfigError: an argument is invalid.
    """

    _module: ClassVar[str]
    """Name of the module that the subclass needs."""
    _extra: ClassVar[str]
    """Name of trainkit's extra that installs the module."""
    _own: ClassVar[Sequence[str]] = ("n_initial_points",)
    """Names of the arguments that only this searcher has; the value of the argument NAME is in the attribute
    `_NAME`.
    """
    _least_initial: ClassVar[int] = 1
    """Minimum of `n_initial_points`: number of results without which the package can't suggest."""

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 10,
        seed: int | None = None,
    ) -> None:
        self._load()
        require_whole("n_initial_points", n_initial_points, self._least_initial)
        super().__init__(space, metric, mode, points_to_evaluate, seed)
        self._n_initial_points = int(n_initial_points)

    @classmethod
    def _load(cls) -> Any:
        return load(cls._module, f"searches by {cls.__name__}", cls._extra)

    @property
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments, **{name: getattr(self, f"_{name}") for name in self._own}}

    @abstractmethod
    def _asked(self, seed: int) -> Mapping[str, Any]:
        """Return the package's suggestion as an encoding; `seed` is for the package's random numbers."""

    def _form_of(self, space: Any, *, own: bool) -> UnitSpace:
        name = type(self).__name__
        if own and not (isinstance(space, Mapping) and space):
            raise ConfigError(f"space={space!r}: give {name} domains, such as {{'lr': tune.uniform(0, 1)}}")
        return UnitSpace(Space.of(space) if own else space, searcher=name, own=own)

    def _begin_model(self, form: UnitSpace) -> None: ...

    def _suggested(self, trial_id: str, fixed: dict[str, Any] | None) -> dict[str, Any]:
        place = self._base, self._number, self._redraws
        asked = self._place(*place) if self._drawn and self.form.sizes else {}
        config = self.form.configuration(asked, fixed or {}, suggestion_generator(*place))
        # The encoding is computed from the configuration, because a restored search also computes it from the
        # configuration.
        self._note(trial_id, self.form.encoded(self.form.choices(config)))
        return config

    def _place(self, base: int, number: int, redraw: int) -> Place:
        # With the same results, the package would repeat its suggestion, so the replacement is random.
        if redraw or len(self._losses()) < self._n_initial_points:
            return self._random(suggestion_generator(base, number, redraw))
        asked = self._asked(suggestion_words(base, number, redraw, 1)[0] % 2**31)
        return self.form.each(lambda name: float(asked[name]), lambda name, size: int(asked[name]))

    def _random(self, rng: Generator) -> Place:
        return self.form.random(rng)

    def _told(self) -> tuple[list[Place], list[float]]:
        """Return the encodings and losses of running trials and of trials with a usable result.

        A running trial gets the largest loss, so that the model suggests other configurations.
        """
        losses = self._losses()
        worst = max(loss for _, loss in losses)
        running = [(place, worst) for place in self._running()]
        return [self.form.whole(place) for place, _ in losses + running], [
            loss for _, loss in losses + running
        ]
