"""Values of `sample_from`, computed from the other values of a configuration."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError, message_of
from trainkit.tune.core.metrics import name_of
from trainkit.tune.space.domains import SampleFrom
from trainkit.tune.space.tree import holds_leaf

if TYPE_CHECKING:
    from numpy.random import Generator


def compute(config: dict[str, Any], rng: Generator) -> None:
    """Compute the `sample_from` values in `config`, each value after the values that its function reads.

    Raises:
        SpaceError: a function needs its own value, reads a missing key, or raises an exception.
    """
    with global_generators_seeded(rng):
        _Computation(config).finish(config)


class _Computation:
    """A computation of `sample_from` values, each after the values that its function reads."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._busy: dict[tuple[int, Any], str] = {}

    def finish(self, node: Any) -> None:
        """Compute all values inside `node`, a container in the configuration."""
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            if isinstance(self.value(node, key), (dict, list)):
                self.finish(node[key])

    def value(self, node: Any, key: Any) -> Any:
        """Return the value at `key` of `node`; compute it first if necessary."""
        leaf = node[key]
        if not isinstance(leaf, SampleFrom):
            return leaf
        place = (id(node), key)  # two dictionaries may have the same key, so the id is needed
        if place in self._busy:
            names = [*self._busy.values(), str(key)]
            raise SpaceError(f"{' -> '.join(names)}: these sample_from functions depend on each other")
        self._busy[place] = str(key)
        try:
            node[key] = _plain(leaf.compute(_Spec(self, self._config)))
            if holds_leaf(node[key]):
                raise SpaceError(
                    f"{key}: the function {name_of(leaf.function)} of sample_from returned {node[key]}, "
                    "which contains a domain: return a value, such as the result of the domain's sample()"
                )
        except SpaceError:
            raise
        except Exception as error:
            raise SpaceError(
                f"{key}: the function {name_of(leaf.function)} of sample_from raised "
                f"{type(error).__name__}: {message_of(error)}"
            ) from error
        del self._busy[place]
        return node[key]

    def seen(self, node: Any, key: Any) -> Any:
        """Return a value for a `sample_from` function; a container becomes a view that computes on access."""
        value = self.value(node, key)
        if isinstance(value, dict):
            return _View(self, value)
        if isinstance(value, list) and any(isinstance(child, dict) or holds_leaf(child) for child in value):
            return _ListView(self, value)
        return value


class _View(Mapping[str, Any]):
    """A view of a dictionary, passed to `sample_from` functions, that allows access by d.key and d["key"]."""

    def __init__(self, computation: _Computation, node: dict[str, Any]) -> None:
        self._computation = computation
        self._node = node

    def __getitem__(self, key: str) -> Any:
        if key not in self._node:
            raise SpaceError(
                f"a sample_from function reads {key!r}, but only {', '.join(map(str, self._node))} exist"
            )
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
    """A view of a list, passed to `sample_from` functions, that computes items on access."""

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
    """The argument `spec` of a `sample_from` function: x of the configuration is spec.config.x or spec.x."""

    def __getitem__(self, key: str) -> Any:
        if key == "config" and key not in self._node:
            return _View(self._computation, self._node)
        return super().__getitem__(key)


def _plain(value: Any) -> Any:
    if isinstance(value, _View):
        return {key: _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, _ListView) else value


@contextmanager
def global_generators_seeded(rng: Generator) -> Iterator[None]:
    """Seed the global random generators inside the block, and restore their states afterwards."""
    import numpy as np

    legacy: Any = np.random  # NumPy's type stubs lack the functions for the bit generator
    seed = int(rng.integers(2**32))
    before, numpy_before, state_before = random.getstate(), legacy.get_bit_generator(), np.random.get_state()
    random.seed(seed)
    # NumPy's generator is replaced temporarily. If the program's own generator were seeded, it would count as
    # seeded by the program from then on.
    legacy.set_bit_generator(np.random.MT19937())
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        legacy.set_bit_generator(numpy_before)
        np.random.set_state(state_before)  # NumPy's state includes a cached normal number
