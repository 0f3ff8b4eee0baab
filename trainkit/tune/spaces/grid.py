"""The grid: which combinations of its axes are tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import GridSearch
from trainkit.tune.spaces.combinations import MAX_LISTED, combinations
from trainkit.tune.spaces.conditions import Names, Rule
from trainkit.tune.spaces.counting import Conditions, leaves_nothing
from trainkit.tune.spaces.parameters import Parameter
from trainkit.tune.spaces.probing import is_undrawn, surely_broken
from trainkit.tune.spaces.tree import Branch, Path


class Grid:
    """The combinations of the axes that a point leaves open.

    Args:
        axes: by path, in the order written; the last varies fastest.
        given: values of a point, by path.
        listed: the combinations; None: every value goes with every other.
    """

    def __init__(
        self,
        axes: Mapping[Path, GridSearch],
        given: Mapping[Path, Any],
        listed: Iterable[dict[Path, Any]] | None,
    ) -> None:
        self._open = {path: axis for path, axis in axes.items() if path not in given}
        self._listed = None if listed is None else list(listed)
        self.size = (
            math.prod(len(axis.values) for axis in self._open.values())
            if self._listed is None
            else len(self._listed)
        )
        """How many combinations there are; 1 without a grid."""

    def combination(self, rank: int) -> dict[Path, Any]:
        """The values of the axes in combination `rank`."""
        if self._listed is not None:
            return self._listed[rank]
        chosen = {}
        for path, axis in reversed(self._open.items()):
            rank, place = divmod(rank, len(axis.values))
            chosen[path] = axis.values[place]
        return chosen


def listing(
    tree: Mapping[str, Any], conditions: Conditions, rules: Sequence[Rule], given: Mapping[Path, Any]
) -> Iterator[dict[Path, Any]]:
    """Yield the allowed combinations of the axes one by one; an inactive axis multiplies nothing.

    Raises:
        SpaceError: there are too many.
    """

    def options(path: Path, leaf: Any) -> Sequence[Any] | None:
        del path
        return leaf.values if isinstance(leaf, GridSearch) else None

    for seen, (chosen, config) in enumerate(combinations(tree, conditions, options, given)):
        if seen == MAX_LISTED:
            raise SpaceError(
                f"the grid has more than {MAX_LISTED} combinations, too many to look at each, as conditions "
                "or rules demand; use choice() for an axis, or fewer values"
            )
        if any(surely_broken(rule, config) for rule in rules):
            continue
        # Nothing broken yet; but of what is drawn, every value may be forbidden with these.
        if (
            rules
            and is_undrawn(config)
            and leaves_nothing(tree, conditions, rules, {**given, **chosen}, limit=1000)
        ):
            continue
        yield chosen


def require_settled_axes(parameters: Mapping[Path, Parameter], names: Names) -> None:
    """Which combinations a grid has must not hang on what is drawn.

    Raises:
        SpaceError: an axis is under a condition on something that is.
    """
    for parameter in parameters.values():
        for condition in parameter.conditions if parameter.is_axis else ():
            for site in names.sites(condition.name):
                around = [
                    site.path[:place] for place, part in enumerate(site.path) if isinstance(part, Branch)
                ]
                if any(path in parameters and not parameters[path].is_axis for path in (site.path, *around)):
                    raise SpaceError(
                        f"{parameter.name}: whether this axis of the grid is there hangs on "
                        f"{condition.name}, which is drawn; make that a grid_search, or this a choice"
                    )
