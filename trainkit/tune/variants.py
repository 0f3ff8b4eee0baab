"""The search space as a tree, and the one configuration that suggestion n of it is.

    {"lr": uniform(0, 1), "net": {"width": grid_search([8, 16])}}
        axes       net/width   every value, in combination
        domains    lr          drawn, in the order written

Nothing here holds a generator: who asks brings one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError
from trainkit.tune.space import Categorical, Domain, GridSearch, SampleFrom
from trainkit.tune.values import MAX_BITS

if TYPE_CHECKING:
    from numpy.random import Generator

Path = tuple[Any, ...]
"""Keys and list positions from the root: ("net", "layers", 0)."""


def spell(path: Path) -> str:
    """The path as users and searchers write it: 'net/layers/0'."""
    return "/".join(map(str, path)) or "param_space"


@dataclass(frozen=True)
class Space:
    """A checked search space.

    Attributes:
        tree: nested dictionaries and lists with domains, axes and constants as leaves.
        axes: the grid, by path, in the order written; the last axis varies fastest.
        domains: what is drawn, by path; what a chosen category holds inside is not listed.
        computed: paths of `sample_from`.
    """

    tree: dict[str, Any]
    axes: dict[Path, GridSearch]
    domains: dict[Path, Domain]
    computed: tuple[Path, ...]

    @classmethod
    def of(cls, param_space: Mapping[str, Any] | None) -> Space:
        """Check `param_space` and sort its leaves.

        Raises:
            SpaceError: it is not a dictionary, or a domain stands where none can be drawn.
        """
        if param_space is None:
            param_space = {}
        if not isinstance(param_space, Mapping):
            raise SpaceError(f"param_space={param_space!r} is not a dictionary of hyperparameters")
        tree = {key: _canonical(value, (key,)) for key, value in param_space.items()}
        leaves = dict(_leaves(tree, ()))
        return cls(
            tree=tree,
            axes={path: leaf for path, leaf in leaves.items() if isinstance(leaf, GridSearch)},
            domains={path: leaf for path, leaf in leaves.items() if isinstance(leaf, Domain)},
            computed=tuple(path for path, leaf in leaves.items() if isinstance(leaf, SampleFrom)),
        )

    def grid_size(self, preset: Mapping[Path, Any] | None = None) -> int:
        """Number of combinations of the axes that `preset` leaves open; 1 without a grid."""
        fixed = preset or {}
        return math.prod(len(axis.values) for path, axis in self.axes.items() if path not in fixed)

    def configuration(
        self, combination: int, rng: Generator, preset: Mapping[Path, Any] | None = None
    ) -> dict[str, Any]:
        """Return a configuration.

        Args:
            combination: which of the `grid_size(preset)` combinations.
            rng: all randomness; the same state gives the same configuration.
            preset: values to take as they are, by path.

        Raises:
            SpaceError: a `sample_from` needs itself, or names a key that is not there.
        """
        given = dict(preset or {})
        for path, axis in reversed(self.axes.items()):
            if path not in given:
                combination, place = divmod(combination, len(axis.values))
                given[path] = axis.values[place]
        config: dict[str, Any] = _draw(self.tree, (), given, rng)
        if self.computed:
            with _global_generators_seeded(rng):
                _Computation(config).finish()
        return config

    def values(self) -> Iterator[tuple[str, Any]]:
        """All constants, categories and grid values with the names of their keys: what trials are sent."""
        for path, leaf in _leaves(self.tree, (), with_constants=True):
            if isinstance(leaf, (Categorical, GridSearch)):
                for value in leaf.spelling[1][0]:
                    yield spell(path), value
            elif not isinstance(leaf, (Domain, SampleFrom)):
                yield spell(path), leaf

    def preset(self, point: Mapping[str, Any]) -> dict[Path, Any]:
        """Turn a point such as {"lr": 0.1, "net/width": 8} or {"net": {"width": 8}} into values by path.

        Raises:
            SpaceError: the point names a parameter that the space doesn't have.
        """
        known = {*self.axes, *self.domains, *self.computed}
        constants = {path for path, _ in _leaves(self.tree, (), with_constants=True)} - known
        by_name = {spell(path): path for path in known}
        values: dict[Path, Any] = {}

        def collect(node: Any, path: Path) -> None:
            if path in known:
                values[path] = node
            elif spell(path) in by_name:
                values[by_name[spell(path)]] = node
            elif isinstance(node, Mapping) and node:
                for key, child in node.items():
                    collect(child, (*path, key))
            elif path not in constants:
                raise SpaceError(
                    f"points_to_evaluate gives {spell(path)}={node!r}, which the space does not have; "
                    f"it has {', '.join(sorted(by_name)) or 'only constants'}"
                )

        for key, child in point.items():
            collect(child, (key,))
        return values


def _canonical(node: Any, path: Path) -> Any:
    """Copy the containers, accept Ray's {"grid_search": [...]}, refuse domains where none is drawn."""
    if isinstance(node, Mapping):
        if set(node) == {"grid_search"} and isinstance(node["grid_search"], (list, tuple)):
            node = GridSearch(tuple(node["grid_search"]))
        else:
            return {key: _canonical(value, (*path, key)) for key, value in node.items()}
    if isinstance(node, list):
        return [_canonical(value, (*path, place)) for place, value in enumerate(node)]
    if isinstance(node, (tuple, set, frozenset)) and any(_holds_domain(value) for value in node):
        raise SpaceError(
            f"{spell(path)}: a domain inside a {type(node).__name__} cannot be drawn; "
            "use a list or a dictionary"
        )
    if any(isinstance(leaf, int) and leaf.bit_length() > MAX_BITS for leaf in _everything(node)):
        raise SpaceError(f"{spell(path)} holds a whole number of more than {MAX_BITS} bits; give a text")
    if isinstance(node, Categorical):
        for value in node.categories:
            _refuse_inside(value, path, (GridSearch, SampleFrom), "choice")
    if isinstance(node, GridSearch):
        for value in node.values:
            _refuse_inside(value, path, (GridSearch, SampleFrom, Domain), "grid_search")
    return node


def _refuse_inside(node: Any, path: Path, kinds: tuple[type, ...], where: str) -> None:
    for leaf in _everything(node):
        if isinstance(leaf, kinds):
            raise SpaceError(f"{spell(path)}: {leaf} cannot stand inside {where}; give it a key of its own")


def _everything(node: Any) -> Iterator[Any]:
    yield node
    children: Any = ()
    if isinstance(node, Mapping):
        children = node.values()
    elif isinstance(node, (list, tuple, set, frozenset)):
        children = node
    elif isinstance(node, Categorical):
        children = node.categories
    elif isinstance(node, GridSearch):
        children = node.values
    for child in children:
        yield from _everything(child)


def _holds_domain(node: Any) -> bool:
    return any(isinstance(leaf, (Domain, GridSearch, SampleFrom)) for leaf in _everything(node))


def _leaves(node: Any, path: Path, *, with_constants: bool = False) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*path, key), with_constants=with_constants)
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _leaves(value, (*path, place), with_constants=with_constants)
    elif with_constants or isinstance(node, (Domain, GridSearch, SampleFrom)):
        yield path, node


def _draw(node: Any, path: Path, given: Mapping[Path, Any], rng: Generator) -> Any:
    if path in given:
        return given[path]
    if isinstance(node, dict):
        return {key: _draw(value, (*path, key), given, rng) for key, value in node.items()}
    if isinstance(node, list):
        return [_draw(value, (*path, place), given, rng) for place, value in enumerate(node)]
    if isinstance(node, Domain):
        return _draw(node.sample(rng), (*path, None), {}, rng)  # a category may hold domains itself
    return node


class _Computation:
    """Fills in the `sample_from` leaves, each after those that it looks at."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._busy: dict[tuple[int, Any], str] = {}

    def finish(self) -> None:
        self._finish(self._config)

    def _finish(self, node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            if isinstance(self.value(node, key), (dict, list)):
                self._finish(node[key])

    def value(self, node: Any, key: Any) -> Any:
        """The value at `key` of `node`, computed first if need be."""
        leaf = node[key]
        if not isinstance(leaf, SampleFrom):
            return leaf
        place = (id(node), key)  # keys alone repeat: {"a": {"lr": ...}, "b": {"lr": ...}}
        if place in self._busy:
            names = [*self._busy.values(), str(key)]
            raise SpaceError(f"{' -> '.join(names)}: these sample_from need each other")
        self._busy[place] = str(key)
        try:
            node[key] = _plain(leaf.function(_Spec(self, self._config)))
        except SpaceError:
            raise
        except Exception as error:
            name = getattr(leaf.function, "__qualname__", repr(leaf.function))
            raise SpaceError(
                f"{key}: the function {name} of sample_from raised {type(error).__name__}: {error}"
            ) from error
        del self._busy[place]
        return node[key]

    def seen(self, node: Any, key: Any) -> Any:
        """The same as `sample_from` sees it: what may hold leaves yet to be computed, as a view."""
        value = self.value(node, key)
        if isinstance(value, dict):
            return _View(self, value)
        if isinstance(value, list) and any(
            isinstance(child, dict) or _holds_domain(child) for child in value
        ):
            return _ListView(self, value)
        return value


class _View(Mapping[str, Any]):
    """A dictionary of the configuration as `sample_from` sees it: d.key and d["key"]."""

    def __init__(self, computation: _Computation, node: dict[str, Any]) -> None:
        self._computation = computation
        self._node = node

    def __getitem__(self, key: str) -> Any:
        if key not in self._node:
            raise SpaceError(f"sample_from asks for {key!r}; there is {', '.join(map(str, self._node))}")
        return self._computation.seen(self._node, key)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._node)

    def __len__(self) -> int:
        return len(self._node)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._node else default


class _ListView(Sequence[Any]):
    """A list of the configuration as `sample_from` sees it, where it holds dictionaries or is incomplete."""

    def __init__(self, computation: _Computation, node: list[Any]) -> None:
        self._computation = computation
        self._node = node

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        return self._computation.seen(self._node, range(len(self._node))[place])

    def __len__(self) -> int:
        return len(self._node)


class _Spec(_View):
    """What `sample_from` is given: spec.config.x, and spec.x for short."""

    def __getitem__(self, key: str) -> Any:
        if key == "config" and key not in self._node:
            return _View(self._computation, self._node)
        return super().__getitem__(key)


def _plain(value: Any) -> Any:
    if isinstance(value, _View):
        return {key: _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, _ListView) else value


@contextmanager
def _global_generators_seeded(rng: Generator) -> Iterator[None]:
    """Let functions that draw from the global generators repeat too, and leave those as they were."""
    import numpy as np

    seed = int(rng.integers(2**32))
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
