"""The search space, its n-th configuration, and partial configurations ("points") that the user gives.

{"lr": uniform(0, 1), "net": {"width": grid_search([8, 16])}}
        axes       net/width   every value, in combination
        the rest   lr          drawn, in the order of the space

The space has no random generator of its own: the caller passes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError, message_of
from trainkit.tune.space.computed import compute
from trainkit.tune.space.conditions import Names, Rule, is_there, look_up, rules, when_conditions
from trainkit.tune.space.configurations import UNDRAWN, Conditions, constants, count, grow
from trainkit.tune.space.domains import Domain, Forbid, GridSearch, SampleFrom, Spelled, When, place_of, same
from trainkit.tune.space.parameters import Parameter, listing, parameters, require_settled_axes
from trainkit.tune.space.serialization import complete, is_mark_of
from trainkit.tune.space.tree import (
    Branch,
    Path,
    Site,
    canonical,
    choices_around,
    everything,
    holds_leaf,
    in_config,
    is_own_container,
    meant_as_domain,
    options_of,
    sites,
    spell,
)

if TYPE_CHECKING:
    from numpy.random import Generator


def choices_of(
    tree: Any, config: Any, conditions: Conditions, path: Path = (), *, partly: bool = False
) -> dict[Path, Any]:
    """Return the value of each domain and axis in `config`, by path; the value of a choice is its category.

    Args:
        tree: the space, or the subtree at `path`.
        config: the configuration, or the part of the configuration at `path`.
        conditions: conditions of each `when`, by the path of the `when`.
        path: path of `tree` and `config`.
        partly: True if `config` may be incomplete.

    Raises:
        SpaceError: `config` is not a configuration of the space; the message names the key.
    """
    return _Matching(config, conditions, partly=partly).match(tree, config, path)


class _Matching:
    def __init__(self, config: Any, conditions: Conditions, *, partly: bool) -> None:
        self._config = config
        self._conditions = conditions
        self._partly = partly

    def match(self, node: Any, value: Any, path: Path) -> dict[Path, Any]:
        if isinstance(node, SampleFrom):
            return {}
        if type(node) is dict and isinstance(value, Mapping):
            return self._dictionary(node, value, path)
        if isinstance(node, list) and isinstance(value, list) and len(node) == len(value):
            found: dict[Path, Any] = {}
            for place, child in enumerate(node):
                found |= self.match(child, value[place], (*path, place))
            return found
        if isinstance(node, (Domain, GridSearch)):
            return self._leaf(node, value, path)
        if type(node) not in (dict, list) and (same(node, value) or is_mark_of(value, node)):
            return {}
        raise SpaceError(f"{spell(path)}={value!r} does not match the space, which has {node!r}")

    def _dictionary(self, node: Mapping[str, Any], value: Mapping[str, Any], path: Path) -> dict[Path, Any]:
        found: dict[Path, Any] = {}
        known = set()
        for key, child in node.items():
            if isinstance(child, Forbid):
                continue
            inner = (*path, key)
            content = child
            if isinstance(child, When):
                lacking = [each for each in self._conditions[inner] if not each.holds(self._config)]
                if lacking and key in value and not self._partly:
                    raise SpaceError(f"{spell(inner)}={value[key]!r} is allowed only with {lacking[0]}")
                if lacking and not self._partly:
                    continue
                content = child.content
            known.add(key)
            if key in value:
                found |= self.match(content, value[key], inner)
            elif not self._partly:
                raise SpaceError(f"{spell(inner)} is missing in the configuration")
        for key in value:
            if key not in known:
                known_keys = ", ".join(map(str, node))
                raise SpaceError(
                    f"{spell((*path, key))}={value[key]!r} is not in the space, which has {known_keys}"
                )
        return found

    def _leaf(self, leaf: Domain | GridSearch, value: Any, path: Path) -> dict[Path, Any]:
        options = options_of(leaf)
        if not options and isinstance(leaf, Domain) and leaf.contains(value):
            return {path: value}
        plain = [option for option in options if not isinstance(option, (dict, list, Spelled, SampleFrom))]
        place = place_of(value, plain)
        if place is None:
            place = next((n for n, option in enumerate(plain) if is_mark_of(value, option)), None)
        if place is not None:
            return {path: plain[place]}
        for place, option in enumerate(options):
            if isinstance(option, (dict, list, Spelled, SampleFrom)):
                try:
                    inner = self.match(option, value, (*path, Branch(place)))
                except SpaceError:  # the value may belong to the next category
                    continue
                return {path: option, **inner}
        raise SpaceError(f"{spell(path)}={value!r} is not in {leaf}")


def preset_of(space: Space, point: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the values of `point` by path.

    A value outside of its domain is accepted, because the user may know that the value is good.

    Raises:
        SpaceError: the point names a parameter that the space lacks, or a parameter whose conditions the
            point does not satisfy.
    """
    found = _Collector(space).collect(point)
    asked = set()

    def choose(path: Path, leaf: Any) -> Any:
        asked.add(path)
        return found.get(path, UNDRAWN)

    grow(space.tree, space.conditions, choose)
    for path in found:
        if path in space.by_path and path not in asked:
            parameter = space.by_path[path]
            needed = [f"category {place} of {name}" for name, place in parameter.branches]
            needed += map(str, parameter.conditions)
            raise SpaceError(
                f"{parameter.name}={found[path]!r} exists only with {' and '.join(needed)}: give these too"
            )
    return found


class _Collector:
    def __init__(self, space: Space) -> None:
        self._space = space
        self._values: dict[Path, Any] = {}
        chosen = [*space.by_path, *space.computed]
        self._outer = {path for path in chosen if not choices_around(path)}
        self._by_name = {spell(path): path for path in self._outer}
        self._by_name = {parameter.name: path for path, parameter in space.by_path.items()} | self._by_name
        self._constants = {
            site.path for site in space.leaves if not isinstance(site.leaf, (Spelled, SampleFrom))
        }

    def collect(self, point: Mapping[str, Any]) -> dict[Path, Any]:
        for key, child in point.items():
            self._collect(child, (key,))
        return self._values

    def _collect(self, node: Any, path: Path) -> None:
        if path in self._outer:
            self._take(node, path)
        elif spell(path) in self._by_name:
            self._take(node, self._by_name[spell(path)])
        elif isinstance(node, Mapping) and node:
            for key, child in node.items():
                self._collect(child, (*path, key))
        elif isinstance(node, list) and node:
            for place, child in enumerate(node):
                self._collect(child, (*path, place))
        elif path not in self._constants:
            raise SpaceError(
                f"a configuration gives {spell(path)}={node!r}, which is not in the space; "
                f"the space has {', '.join(sorted(self._by_name)) or 'only constants'}"
            )

    def _take(self, value: Any, path: Path) -> None:
        leaf = next(site.leaf for site in self._space.leaves if site.path == path)
        if not options_of(leaf):
            self._values[path] = value
            return
        try:
            self._values |= choices_of(leaf, value, self._space.conditions, path, partly=True)
        except SpaceError as error:
            if isinstance(value, (Mapping, list)) and any(map(holds_leaf, options_of(leaf))):
                raise SpaceError(f"{spell(path)}={value!r} matches no category of {leaf}") from error
            self._values[path] = value  # a user may give a value that is not a category


class Grid:
    """Combinations of the values of the grid axes for which the user gave no value.

    Args:
        axes: axes by path, in the order of the space; the last axis varies fastest.
        given: values that the user gave, by path.
        listed: the allowed combinations; None: all combinations are allowed.
    """

    def __init__(
        self,
        axes: Mapping[Path, GridSearch],
        given: Mapping[Path, Any],
        listed: Iterable[dict[Path, Any]] | None,
    ) -> None:
        self._open = {path: axis for path, axis in axes.items() if path not in given}
        self._listed = None if listed is None else list(listed)
        of_all = math.prod(len(axis.values) for axis in self._open.values())
        self.size = of_all if self._listed is None else len(self._listed)
        """Number of combinations; 1 without a grid."""

    def combination(self, rank: int) -> dict[Path, Any]:
        """Return the values of the axes in combination `rank`."""
        if self._listed is not None:
            return self._listed[rank]
        chosen = {}
        for path, axis in reversed(self._open.items()):
            rank, place = divmod(rank, len(axis.values))
            chosen[path] = axis.values[place]
        return chosen


__all__ = ["Parameter", "Path", "Space", "spell"]

MAX_DRAWS = 10_000
"""Maximum number of consecutive forbidden draws.

After so many forbidden draws, the rules are assumed to forbid every configuration.
"""


@dataclass(frozen=True, eq=False)
class Space:
    """A checked search space.

    Attributes:
        tree: nested dictionaries and lists with domains, axes, conditions, rules and constants as leaves.
        leaves: all leaves with their paths, in the order of the space.
        conditions: conditions of each `when`, by the path of the `when`.
        rules: combinations that are never proposed.
        by_path: the parameters, by path.
    """

    tree: dict[str, Any]
    leaves: tuple[Site, ...] = field(repr=False)
    conditions: Conditions = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    by_path: Mapping[Path, Parameter] = field(repr=False)

    @classmethod
    def of(cls, param_space: Mapping[str, Any] | None) -> Space:
        """Return the search space of `param_space`, after a check.

        Raises:
            SpaceError: `param_space` is not a dictionary, a domain is at a place where domains are not
                supported, a condition or a rule names a missing parameter, or the rules forbid every
                configuration.
        """
        if param_space is None:
            param_space = {}
        if not isinstance(param_space, Mapping):
            raise SpaceError(
                f"param_space: {meant_as_domain(param_space)}"
                if meant_as_domain(param_space)
                else f"param_space={param_space!r} is not a dictionary of hyperparameters"
            )
        tree = canonical(param_space)
        leaves = tuple(sites(tree))
        names = Names(leaves)
        conditions = when_conditions(tree, names)
        space = cls(
            tree=tree,
            leaves=leaves,
            conditions=conditions,
            rules=rules(leaves, names),
            by_path=parameters(leaves, conditions),
        )
        require_settled_axes(space.by_path, names)
        if space.rules:
            space.grid_size()  # the call raises an error if the rules forbid every combination
        return space

    # --- parts of the space -----------------------------------------------------------------------

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, in the order in which `walk` asks for their values."""
        return tuple(self.by_path.values())

    @cached_property
    def axes(self) -> dict[Path, GridSearch]:
        """The axes of the grid by path, in the order of the space; the last axis varies fastest."""
        return {site.path: site.leaf for site in self.leaves if isinstance(site.leaf, GridSearch)}

    @cached_property
    def domains(self) -> dict[Path, Domain]:
        """The domains of the space, by path."""
        return {site.path: site.leaf for site in self.leaves if isinstance(site.leaf, Domain)}

    @cached_property
    def computed(self) -> tuple[Path, ...]:
        """Paths of the `sample_from` leaves."""
        return tuple(site.path for site in self.leaves if isinstance(site.leaf, SampleFrom))

    @cached_property
    def varied(self) -> set[str]:
        """Names of the values that differ between configurations; a value in a list has the list's name."""
        found = set()
        for site in self.leaves:
            chosen = isinstance(site.leaf, (Domain, GridSearch, SampleFrom))
            if chosen or site.whens or choices_around(site.path):
                place = next((n for n, part in enumerate(site.path) if isinstance(part, int)), None)
                found.add(spell(site.path[:place]))
        return found

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield each constant, category and grid value, with the name of its parameter or constant."""
        for site in self.leaves:
            options = options_of(site.leaf)
            for option in options:
                if not isinstance(option, (dict, list, Spelled, SampleFrom)):
                    yield spell(site.path), option
            if not options and not isinstance(site.leaf, (Spelled, SampleFrom)):
                yield spell(site.path), site.leaf

    # --- from choices to a configuration ----------------------------------------------------------

    def walk(self, ask: Callable[[str, Domain], Any], rng: Generator) -> dict[str, Any]:
        """Return the configuration with the values that `ask` returns for the parameters whose conditions
        hold.

        This method does not check the rules; `forbidden_by` checks them.

        Args:
            ask: function of the name and domain of a parameter that returns a value of the domain; for a
                choice, a category. `ask` is called for a parameter after the parameters that its conditions
                read.
            rng: random generator for `sample_from` functions.

        Raises:
            SpaceError: a `sample_from` function fails.
        """

        def choose(path: Path, leaf: Any) -> Any:
            parameter = self.by_path[path]
            return ask(parameter.name, parameter.domain)

        config = grow(self.tree, self.conditions, choose)
        if self.computed:
            compute(config, rng)
        return config

    def grid_size(self, preset: Mapping[Path, Any] | None = None) -> int:
        """Return the number of combinations of the axes without a value in `preset`; 1 without a grid.

        Raises:
            SpaceError: all combinations are forbidden, or more than 100,000 would have to be checked.
        """
        return self._grid(preset or {}).size

    def grid_values(self, combination: int, preset: Mapping[Path, Any] | None = None) -> dict[Path, Any]:
        """Return the values of combination number `combination` for the axes without a value in `preset`."""
        return dict(self._grid(preset or {}).combination(combination)) if self.axes else {}

    def configuration(
        self, combination: int, rng: Generator, preset: Mapping[Path, Any] | None = None
    ) -> dict[str, Any]:
        """Return a configuration that no rule forbids.

        Args:
            combination: index of the combination, below `grid_size(preset)`.
            rng: source of all randomness; the same state gives the same configuration.
            preset: values that the configuration must have, by path.

        Raises:
            SpaceError: a `sample_from` needs its own value or reads a missing key, or the rules forbid
                everything.
        """
        given = {**(preset or {}), **self.grid_values(combination, preset)} if preset or self.axes else {}

        def choose(path: Path, leaf: Any) -> Any:
            return given[path] if path in given else leaf.draw(rng)

        for _ in range(MAX_DRAWS):
            config = grow(self.tree, self.conditions, choose)
            if self.computed:
                compute(config, rng)
            if not self.rules or self.forbidden_by(config) is None:
                return config
        raise SpaceError(
            f"{MAX_DRAWS} random configurations in a row are forbidden by the rules "
            f"{'; '.join(map(str, self.rules))}: check whether the rules allow any configuration"
        )

    @cached_property
    def containers(self) -> list[str]:
        """Names of the user's own container classes that occur in the space."""
        held = (each for _, value in self.values() for each in everything(value))
        return sorted({type(each).__name__ for each in held if is_own_container(each)})

    def with_containers(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a stored configuration in which containers have the user's own classes again."""
        if not self.containers:
            return stored
        try:
            found = choices_of(self.tree, stored, self.conditions)
            like = grow(self.tree, self.conditions, lambda path, leaf: found[path])
        except SpaceError:  # only the constants can match a configuration of a different space
            like = constants(self.tree)
        completed: dict[str, Any] = complete(stored, like)
        return completed

    # --- from a configuration to choices ----------------------------------------------------------

    def choices(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each parameter in `config`, by name; the value of a choice is its category.

        This method is the inverse of `walk`; the values are in the order in which `walk` asks for them.

        Raises:
            SpaceError: `config` does not belong to the space. A value is missing, is outside of its domain,
                or is present although its conditions fail.
        """
        found = choices_of(self.tree, config, self.conditions)
        named: dict[str, Any] = {}

        def choose(path: Path, leaf: Any) -> Any:
            named[self.by_path[path].name] = found[path]
            return found[path]

        grow(self.tree, self.conditions, choose)
        return named

    def preset(self, point: Mapping[str, Any]) -> dict[Path, Any]:
        """Return the values of a point such as {"lr": 0.1, "net/width": 8} or {"net": {"width": 8}}, by path.

        Raises:
            SpaceError: the point names a parameter that the space lacks, or a parameter whose conditions the
                point does not satisfy.
        """
        return preset_of(self, point)

    def point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point's values by name, for a searcher; the value of a choice is its category.

        Raises:
            SpaceError: the method `preset` refuses the point, or a value is outside of its domain.
        """
        named = {}
        for path, value in self.preset(point).items():
            if path in self.by_path:
                parameter = self.by_path[path]
                if not parameter.domain.contains(value):
                    raise SpaceError(f"{parameter.name}={value!r} is not in {parameter.domain}")
                named[parameter.name] = value
        return named

    def forbidden_by(self, config: Mapping[str, Any]) -> str | None:
        """Return the rule that forbids `config`, as text; None: `config` is allowed.

        Raises:
            SpaceError: the function of a rule raises an exception.
        """
        for rule in self.rules:
            try:
                broken = rule.is_broken_by(config)
            except Exception as error:
                raise SpaceError(
                    f"forbid({rule}) raised {type(error).__name__}: {message_of(error)}, for {config!r}"
                ) from error
            if broken:
                return str(rule)
        return None

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Return True if `config` belongs to the space, even if a rule forbids it."""
        try:
            self.choices(config)
        except SpaceError:
            return False
        return True

    def allows(self, config: Mapping[str, Any]) -> bool:
        """Return True if `config` belongs to the space and no rule forbids it."""
        return self.contains(config) and self.forbidden_by(config) is None

    @cached_property
    def _cardinality(self) -> int | None:
        return None if self.computed else count(self.tree, self.conditions, self.rules)

    def cardinality(self) -> int | None:
        """Return the number of distinct allowed configurations; None: infinite or unknown.

        The number is unknown if the space has a `sample_from`, or if more than 100,000 combinations would
        have to be checked for conditions and rules.
        """
        return self._cardinality

    # --- parts ------------------------------------------------------------------------------------

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        return {}

    def _grid(self, given: Mapping[Path, Any]) -> Grid:
        key = repr(sorted(given.items(), key=lambda item: repr(item[0])))
        if key not in self._grids:
            plain = not self.rules and not any(self.by_path[path].is_conditional for path in self.axes)
            listed = None if plain else listing(self.tree, self.conditions, self.rules, given)
            grid = Grid(self.axes, given, listed)
            if not grid.size:
                named = {spell(path): value for path, value in given.items()}
                what = f"every configuration with {named}" if named else "every configuration"
                raise SpaceError(f"{what} is forbidden by the rules {'; '.join(map(str, self.rules))}")
            self._grids[key] = grid
        return self._grids[key]


def fitted(config: Mapping[str, Any], space: Space, rng: Generator) -> dict[str, Any]:
    """Return `config` without values whose conditions fail; values whose conditions now hold are drawn.

    All other values stay unchanged, even if they are outside of their domains.

    Args:
        config: configuration whose values a scheduler has changed.
        space: the search space; if it has no conditions, `config` is returned unchanged.
        rng: random generator for the drawn values.
    """
    if not space.conditions:
        return dict(config)

    def choose(path: Path, leaf: Any) -> Any:
        found = look_up(config, in_config(path))
        if is_there(found):
            return found
        if isinstance(leaf, GridSearch):
            return leaf.values[int(rng.integers(len(leaf.values)))]
        return leaf.draw(rng)

    grown = grow(space.tree, space.conditions, choose)
    conditional = {in_config(path) for path in space.conditions}
    merged = _merged(config, grown, conditional, ())
    if space.computed:
        compute(merged, rng)  # newly drawn parts may contain `sample_from` leaves
    return merged


def _merged(
    config: Mapping[str, Any], grown: Mapping[str, Any], conditional: set[Path], at: Path
) -> dict[str, Any]:
    merged = {}
    for key, value in config.items():
        if key in grown and isinstance(value, Mapping) and isinstance(grown[key], Mapping):
            merged[key] = _merged(value, grown[key], conditional, (*at, key))
        elif key in grown or (*at, key) not in conditional:
            merged[key] = value
    return merged | {key: value for key, value in grown.items() if key not in config}
