"""Results in the order in which they arrive, by the names of `ray.util.helpers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime.api import get, wait
from trainkit.runtime.specs import ObjectRef

_CHUNK_SIZE = 10
_BACKPRESSURE_SIZE = 100


def as_completed(
    refs: Sequence[ObjectRef[Any]],
    *,
    chunk_size: int = _CHUNK_SIZE,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Yield the results of `refs` as they arrive, `chunk_size` of them at a time.

    Args:
        refs: references, each once.
        chunk_size: how many results to wait for before the first of them is yielded. Results that came
            together are yielded in the order of `refs`.
        yield_obj_refs: yield the references that are done, in place of their values.
        **kwargs: further arguments of `trainkit.wait`, such as `timeout`.

    Raises:
        ConfigError: `chunk_size` is less than 1, or `num_returns` is among the arguments.
    """
    _require_size("chunk_size", chunk_size)
    _require_no_num_returns(kwargs)
    return _as_completed(list(refs), chunk_size, yield_obj_refs, kwargs)


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = _BACKPRESSURE_SIZE,
    chunk_size: int = _CHUNK_SIZE,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Call `fn` with each of `items`, and yield the results as they arrive.

    Args:
        fn: a remote function.
        items: its arguments; they are taken as calls are made.
        backpressure_size: at most so many calls are on their way; None for no limit.
        chunk_size: see `as_completed`.
        yield_obj_refs: see `as_completed`.
        **kwargs: see `as_completed`.

    Raises:
        ConfigError: a size is less than 1, or `num_returns` is among the arguments.
    """
    if backpressure_size is not None:
        _require_size("backpressure_size", backpressure_size)
    _require_size("chunk_size", chunk_size)
    _require_no_num_returns(kwargs)
    return _map_unordered(fn, items, backpressure_size, chunk_size, yield_obj_refs, kwargs)


def _map_unordered(
    fn: Any,
    items: Iterable[Any],
    backpressure_size: int | None,
    chunk_size: int,
    yield_obj_refs: bool,
    kwargs: dict[str, Any],
) -> Iterator[Any]:
    refs: list[ObjectRef[Any]] = []
    for item in items:
        refs.append(fn.remote(item))
        if backpressure_size is not None and len(refs) >= backpressure_size:
            done, refs = _chunk(refs, chunk_size, yield_obj_refs, kwargs)
            yield from done
    yield from _as_completed(refs, chunk_size, yield_obj_refs, kwargs)


def _as_completed(
    refs: list[ObjectRef[Any]], chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]
) -> Iterator[Any]:
    while refs:
        done, refs = _chunk(refs, chunk_size, yield_obj_refs, kwargs)
        yield from done


def _chunk(
    refs: list[ObjectRef[Any]], chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]
) -> tuple[list[Any], list[ObjectRef[Any]]]:
    done, rest = wait(refs, num_returns=min(chunk_size, len(refs)), **kwargs)
    return (done if yield_obj_refs else get(done)), rest


def _require_size(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name}={value!r}: give 1 or more")


def _require_no_num_returns(kwargs: dict[str, Any]) -> None:
    if "num_returns" in kwargs:
        raise ConfigError("num_returns: give chunk_size, which says how many results to wait for")
