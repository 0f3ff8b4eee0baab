"""The parameters of a search space, and the allowed combinations of the axes of its grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.space.conditions import Condition, Names, Rule
from trainkit.tune.space.configurations import (
    MAX_LISTED,
    Conditions,
    combinations,
    is_undrawn,
    leaves_nothing,
    surely_broken,
)
from trainkit.tune.space.domains import Categorical, Domain, GridSearch
from trainkit.tune.space.tree import Path, Site, choices_around, spell, spell_branches


@dataclass(frozen=True)
class Parameter:
    """A domain or axis with its name and conditions.

    Attributes:
        name: unique name, such as "net/width". If two categories of a choice have different parameters with
            the same path, the later parameter has the category's index in its name, such as
            "optimizer[1]/lr".
        domain: domain of the parameter; for a grid's axis, the choice of its values.
        conditions: conditions that must all hold for the parameter to be active.
        branches: names of the enclosing choices, each with the index of the category that contains the
            parameter, such as (("optimizer", 1),).
        is_axis: True for an axis of the grid.
        path: path of the leaf in the space.
    """

    name: str
    domain: Domain
    conditions: tuple[Condition, ...]
    branches: tuple[tuple[str, int], ...]
    is_axis: bool
    path: Path

    @property
    def is_conditional(self) -> bool:
        """True if some configurations lack the parameter."""
        return bool(self.conditions or self.branches)


def parameters(leaves: Sequence[Site], conditions: Conditions) -> dict[Path, Parameter]:
    """Return all parameters by path; a parameter follows the parameters that its conditions read.

    Raises:
        SpaceError: two parameters have the same name.
    """
    order = {path: place for place, path in enumerate(conditions, 1)}
    chosen = [site for site in leaves if isinstance(site.leaf, (Domain, GridSearch))]
    chosen.sort(key=lambda site: max((order[path] for path in site.whens), default=0))
    found: dict[Path, Parameter] = {}
    names: set[str] = set()
    for site in chosen:
        name = spell(site.path)
        if name in names and choices_around(site.path):
            name = spell_branches(site.path)
        if name in names:
            raise SpaceError(f"two parameters of the space have the name {name!r}: rename one")
        names.add(name)
        is_axis = isinstance(site.leaf, GridSearch)
        found[site.path] = Parameter(
            name=name,
            domain=Categorical(site.leaf.values) if is_axis else site.leaf,
            conditions=tuple(each for path in site.whens for each in conditions[path]),
            branches=tuple((found[path].name, place) for path, place in choices_around(site.path)),
            is_axis=is_axis,
            path=site.path,
        )
    return found


def listing(
    tree: Mapping[str, Any], conditions: Conditions, rules: Sequence[Rule], given: Mapping[Path, Any]
) -> Iterator[dict[Path, Any]]:
    """Yield the allowed combinations of the axes; an axis whose conditions fail does not multiply them.

    Raises:
        SpaceError: the number of combinations exceeds `MAX_LISTED`.
    """

    def options(path: Path, leaf: Any) -> Sequence[Any] | None:
        return leaf.values if isinstance(leaf, GridSearch) else None

    for seen, (chosen, config) in enumerate(combinations(tree, conditions, options, given)):
        if seen == MAX_LISTED:
            raise SpaceError(
                f"the grid has more than {MAX_LISTED} combinations, too many to check each for conditions "
                "or rules: use choice() for an axis, or fewer values"
            )
        if any(surely_broken(rule, config) for rule in rules):
            continue
        # The combination breaks no rule so far, but rules may forbid all values of the parameters that are
        # not drawn yet.
        if (
            rules
            and is_undrawn(config)
            and leaves_nothing(tree, conditions, rules, {**given, **chosen}, limit=1000)
        ):
            continue
        yield chosen


def require_settled_axes(parameters: Mapping[Path, Parameter], names: Names) -> None:
    """Check that the combinations of a grid do not depend on drawn values.

    Raises:
        SpaceError: an axis has a condition on a drawn value.
    """
    for parameter in parameters.values():
        for condition in parameter.conditions if parameter.is_axis else ():
            for site in names.sites(condition.name):
                around = [path for path, _ in choices_around(site.path)]
                if any(path in parameters and not parameters[path].is_axis for path in (site.path, *around)):
                    raise SpaceError(
                        f"the grid axis {parameter.name} depends on {condition.name}, which is sampled: "
                        f"make {condition.name} a grid_search, or {parameter.name} a choice"
                    )
