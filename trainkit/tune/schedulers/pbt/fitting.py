"""An explored configuration made one of the space again: what depends on a value that has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainkit.tune.domains import GridSearch
from trainkit.tune.spaces.computed import compute
from trainkit.tune.spaces.conditions import is_there, look_up
from trainkit.tune.spaces.growing import grow
from trainkit.tune.spaces.tree import Path, in_config

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.spaces.variants import Space


def fitted(config: Mapping[str, Any], space: Space, rng: Generator) -> dict[str, Any]:
    """Return `config` without what its conditions leave out, and with what they now ask for, drawn.

    All other values stay, in the space or not.

    Args:
        config: explored.
        space: with the conditions; without any, nothing changes.
        rng: to draw from.
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
        compute(merged, rng)  # of what was not there before
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
