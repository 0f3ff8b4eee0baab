"""Encoding of configurations for models, and decoding of what models propose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.search.alternatives import alternatives, leaves_open
from trainkit.tune.space.domains import Domain
from trainkit.tune.space.search_space import Space

if TYPE_CHECKING:
    from numpy.random import Generator


class Form(Protocol):
    """A space as a searcher takes it.

    Attributes:
        space: as our domains; None where it is none of them.
    """

    space: Space | None

    def fixed(self, point: Mapping[str, Any]) -> tuple[Any, bool]:
        """Return the part of a user's point that the model knows, and True if other parameters stay open.

        Raises:
            ConfigError: the point does not fit the space.
        """

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Any | None:
        """Encode `config` for the model; None if that can't be told from it.

        Args:
            config: which may be none of the space.
            exactly: no other suggestion could have come to the same configuration.
        """

    def others(self, rng: Generator) -> Iterator[tuple[dict[str, Any], Any | None]]:
        """Yield configurations at random, each with what the model knows it by, if that is at hand.

        Of a small space they end when all were there; of a large one after so many.
        """


class Encoder(Protocol):
    """Of one parameter."""

    def encode(self, value: Any) -> Any:
        """Encode a value of the domain for the model."""


C = TypeVar("C", bound=Encoder)


class Declared(Generic[C]):
    """Domains such as `tune.uniform(0, 1)`, with conditions.

    Args:
        space: of them.
        code_of: what codes a parameter, by its name and domain.
        searcher: its name, for messages.
        own: configurations may have constants of `param_space` besides.

    Attributes:
        codes: by the parameter's name, in the order of the space's.

    Raises:
        ConfigError: the space has a grid, or a domain that is none of ours.
    """

    def __init__(
        self, space: Space, code_of: Callable[[str, Domain], C], *, searcher: str, own: bool = False
    ) -> None:
        if space.axes:
            names = ", ".join(parameter.name for parameter in space.parameters if parameter.is_axis)
            raise ConfigError(
                f"{names}: {searcher} draws, and can't try every value of a grid_search; use choice"
            )
        self.space: Space | None = space
        self.declared = space
        self.codes: dict[str, C] = {each.name: code_of(each.name, each.domain) for each in space.parameters}
        self._own = own

    def choices(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each parameter that `config` has, by name.

        Raises:
            SpaceError: it is none of the space's.
        """
        return self.declared.choices(_of_tree(config, self.declared.tree) if self._own else config)

    def fixed(self, point: Mapping[str, Any]) -> tuple[Any, bool]:
        given = self.declared.point(point)
        return self.encoded(given), leaves_open(self.declared, self.declared.preset(point))

    def encoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Encode values for the model, both by the parameters' names."""
        return {name: self.codes[name].encode(value) for name, value in values.items()}

    def others(self, rng: Generator) -> Iterator[tuple[dict[str, Any], Any | None]]:
        return ((config, None) for config in alternatives(self.declared, rng))

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Any | None:
        try:
            return self.encoded(self.choices(config))
        except SpaceError:  # a point outside of the domains, or an object that the store has not kept
            return None


def _of_tree(config: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """`config` without the keys that a space does not have."""
    return {
        key: _of_tree(value, tree[key])
        if isinstance(value, Mapping) and isinstance(tree[key], Mapping)
        else value
        for key, value in config.items()
        if key in tree
    }
