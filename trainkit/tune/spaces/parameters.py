"""The space as a searcher sees it: an ordered list of named parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainkit.errors import SpaceError
from trainkit.tune.domains import Categorical, Domain, GridSearch
from trainkit.tune.spaces.conditions import Condition
from trainkit.tune.spaces.tree import Branch, Path, Site, spell, spell_branches


@dataclass(frozen=True)
class Parameter:
    """One thing that is chosen.

    Attributes:
        name: such as "net/width", and no other parameter's; where two branches of a choice have different
            parameters at the same place, the later one's is "optimizer[1]/lr".
        domain: what it may be; of a grid's axis, the choice of its values.
        conditions: which must all hold for the parameter to be there.
        branches: the choices around it with the category that must be chosen: (("optimizer", 1),).
        is_axis: True if it is an axis of the grid.
        path: of the leaf in the space.
    """

    name: str
    domain: Domain
    conditions: tuple[Condition, ...]
    branches: tuple[tuple[str, int], ...]
    is_axis: bool
    path: Path

    @property
    def is_conditional(self) -> bool:
        """True if there are configurations without it."""
        return bool(self.conditions or self.branches)


def parameters(
    leaves: Sequence[Site], conditions: Mapping[Path, tuple[Condition, ...]]
) -> dict[Path, Parameter]:
    """All that is chosen, by path; what is under conditions comes after what these look at.

    Raises:
        SpaceError: two have the same name.
    """
    order = {path: place for place, path in enumerate(conditions, 1)}
    chosen = [site for site in leaves if isinstance(site.leaf, (Domain, GridSearch))]
    chosen.sort(key=lambda site: max((order[path] for path in site.whens), default=0))
    found: dict[Path, Parameter] = {}
    names: set[str] = set()
    for site in chosen:
        name = spell(site.path)
        if name in names and any(isinstance(part, Branch) for part in site.path):
            name = spell_branches(site.path)
        if name in names:
            raise SpaceError(f"two parameters of the space are called {name!r}; rename one")
        names.add(name)
        is_axis = isinstance(site.leaf, GridSearch)
        found[site.path] = Parameter(
            name=name,
            domain=Categorical(site.leaf.values) if is_axis else site.leaf,
            conditions=tuple(each for path in site.whens for each in conditions[path]),
            branches=tuple(
                (found[site.path[:place]].name, part.place)
                for place, part in enumerate(site.path)
                if isinstance(part, Branch)
            ),
            is_axis=is_axis,
            path=site.path,
        )
    return found
