"""Encoding of configurations for models, and new configurations in place of suggestions that were tried
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.space.configurations import UNDRAWN, combinations, grow
from trainkit.tune.space.domains import Domain, GridSearch, distinct
from trainkit.tune.space.search_space import Path, Space

if TYPE_CHECKING:
    from numpy.random import Generator


DRAWS = 100
"""Number of random draws before a space is enumerated; so many draws suffice if earlier trials cover a small
part of the space.
"""

MAX_LISTED = 10_000
"""Largest number of configurations in a space that is enumerated completely."""


def alternatives(
    space: Space, rng: Generator, combination: int = 0, preset: Mapping[Path, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield configurations drawn at random, then all configurations of a small space in random order.

    The iterator therefore has no new configuration in two cases only. Either a small space is exhausted, or
    all DRAWS draws from a large space repeat earlier configurations. Draws from a large space repeat if the
    space is nearly exhausted, or if few of its configurations are probable.

    Args:
        space: space to draw from.
        rng: source of all randomness.
        combination: index of the grid's combination that all configurations must contain.
        preset: values that all configurations must contain, by path.
    """
    for _ in range(DRAWS):
        yield space.configuration(combination, rng, preset)
    number = space.cardinality()
    if number is None or number > MAX_LISTED:
        return
    given = {**(preset or {}), **space.grid_values(combination, preset)}
    listed = [config for _, config in combinations(space.tree, space.conditions, _options, given)]
    yield from (listed[place] for place in rng.permutation(len(listed)))


def leaves_open(space: Space, preset: Mapping[Path, Any]) -> bool:
    """Return True if `preset` lacks values of the configuration, which must then be drawn."""
    open_: list[Path] = []

    def choose(path: Path, leaf: Any) -> Any:
        if path not in preset and isinstance(leaf, Domain):
            open_.append(path)
        return preset.get(path, UNDRAWN)

    grow(space.tree, space.conditions, choose)
    return bool(open_)


def _options(path: Path, leaf: Any) -> Sequence[Any]:
    if isinstance(leaf, GridSearch):
        return leaf.values
    return distinct(leaf.values()) if isinstance(leaf, Domain) else ()


class Form(Protocol):
    """A search space in the form that a searcher uses.

    Attributes:
        space: the space with domains of trainkit; None if the space is in the form of a different package.
    """

    space: Space | None

    def fixed(self, point: Mapping[str, Any]) -> tuple[Any, bool]:
        """Return the encoding of a user's point for the model, and True if other parameters must still be
        drawn.

        Raises:
            ConfigError: the point does not fit the space.
        """

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Any | None:
        """Return the encoding of `config` for the model; None if the encoding can't be determined.

        Args:
            config: configuration, which may be outside of the space.
            exactly: True returns None also if several encodings give the same configuration.
        """

    def others(self, rng: Generator) -> Iterator[tuple[dict[str, Any], Any | None]]:
        """Yield random configurations, each with its encoding; the encoding is None if `known_by` must
        determine it.

        In a small space, the iterator ends after all configurations; in a large space, after a fixed number.
        """


class Encoder(Protocol):
    """An encoder for the values of one parameter."""

    def encode(self, value: Any) -> Any:
        """Encode a value of the domain for the model."""


C = TypeVar("C", bound=Encoder)


class Declared(Form, Generic[C]):
    """A space of domains such as `tune.uniform(0, 1)`, with conditions.

    Args:
        space: the space.
        code_of: function of a parameter's name and domain that returns the parameter's encoder.
        searcher: the searcher's name, for messages.
        own: True if configurations may also contain constants of `param_space`.

    Attributes:
        codes: encoders by parameter name, in the order of the space.

    Raises:
        ConfigError: the space has a grid, or an unsupported domain.
    """

    def __init__(
        self, space: Space, code_of: Callable[[str, Domain], C], *, searcher: str, own: bool = False
    ) -> None:
        if space.axes:
            names = ", ".join(parameter.name for parameter in space.parameters if parameter.is_axis)
            raise ConfigError(f"{names}: {searcher} samples values: use choice instead of grid_search")
        self.space: Space | None = space
        self.declared = space
        self.codes: dict[str, C] = {each.name: code_of(each.name, each.domain) for each in space.parameters}
        self._own = own

    def choices(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each parameter that `config` has, by name.

        Raises:
            SpaceError: the configuration does not belong to the space.
        """
        return self.declared.choices(_of_tree(config, self.declared.tree) if self._own else config)

    def fixed(self, point: Mapping[str, Any]) -> tuple[Any, bool]:
        given = self.declared.point(point)
        return self.encoded(given), leaves_open(self.declared, self.declared.preset(point))

    def encoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the encodings of `values`, by parameter name."""
        return {name: self.codes[name].encode(value) for name, value in values.items()}

    def others(self, rng: Generator) -> Iterator[tuple[dict[str, Any], Any | None]]:
        return ((config, None) for config in alternatives(self.declared, rng))

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Any | None:
        try:
            return self.encoded(self.choices(config))
        except SpaceError:  # the space does not contain the configuration
            return None


def _of_tree(config: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` without keys that the space lacks."""
    return {
        key: _of_tree(value, tree[key])
        if isinstance(value, Mapping) and isinstance(tree[key], Mapping)
        else value
        for key, value in config.items()
        if key in tree
    }
