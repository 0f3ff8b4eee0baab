"""Functions under the names of `ray.util`: results in order of arrival, serializers, one-time messages."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from trainkit.errors import ConfigError, SerializationError
from trainkit.runtime import serialize
from trainkit.runtime.api import get, list_placement_groups, wait
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.scheduling import PlacementGroup

_CHUNK_SIZE = 10
_BACKPRESSURE_SIZE = 100


def as_completed(
    refs: Sequence[ObjectRef[Any]],
    *,
    chunk_size: int = _CHUNK_SIZE,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Yield the results of `refs` as they arrive, `chunk_size` at a time.

    Args:
        refs: references without duplicates.
        chunk_size: number of results to wait for before the first of them is yielded. Results of one chunk
            are yielded in the order of `refs`.
        yield_obj_refs: True: yield the references of finished calls instead of their values.
        **kwargs: further arguments of `trainkit.wait`, such as `timeout`.

    Raises:
        ConfigError: `chunk_size` is less than 1, or `num_returns` is given.
    """
    return _Arriving(list(refs), chunk_size, yield_obj_refs, kwargs).rest()


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
        fn: remote function.
        items: arguments, one for each call; they are read as calls are made.
        backpressure_size: maximum number of unfinished calls; None means no limit.
        chunk_size: see `as_completed`.
        yield_obj_refs: see `as_completed`.
        **kwargs: see `as_completed`.

    Raises:
        ConfigError: a size is less than 1, or `num_returns` is given.
    """
    if backpressure_size is not None:
        _require_size("backpressure_size", backpressure_size)
    return _Arriving([], chunk_size, yield_obj_refs, kwargs).of_calls(fn, items, backpressure_size)


class _Arriving:
    """Set of references, some of which are known to be done.

    All pending references are checked only when no done reference is left. A check for each chunk would take
    time quadratic in the number of references.
    """

    def __init__(
        self, refs: list[ObjectRef[Any]], chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]
    ) -> None:
        _require_size("chunk_size", chunk_size)
        if "num_returns" in kwargs:
            raise ConfigError("pass chunk_size, the number of results to wait for, not num_returns")
        self._pending = refs
        self._done: list[ObjectRef[Any]] = []
        self._chunk_size = chunk_size
        self._yield_obj_refs = yield_obj_refs
        self._kwargs = kwargs

    def of_calls(self, fn: Any, items: Iterable[Any], most: int | None) -> Iterator[Any]:
        """Call `fn` with each item, with at most `most` unfinished calls, and yield the results."""
        for item in items:
            self._pending.append(fn.remote(item))
            if most is not None and len(self._pending) + len(self._done) >= most:
                yield from self._next_chunk()
        yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """Yield the remaining results."""
        while self._pending or self._done:
            yield from self._next_chunk()

    def _next_chunk(self) -> list[Any]:
        """Return the next results or references; [] if the timeout passed first."""
        if not self._done:
            self._look()
        refs = self._done[: self._chunk_size]
        del self._done[: self._chunk_size]
        return refs if self._yield_obj_refs else get(refs)

    def _look(self) -> None:
        count = min(self._chunk_size, len(self._pending))
        self._done, self._pending = wait(self._pending, num_returns=count, **self._kwargs)
        if self._pending and len(self._done) == count:
            more = {**self._kwargs, "timeout": 0}
            done, self._pending = wait(self._pending, num_returns=len(self._pending), **more)
            self._done += done


def _require_size(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, not {value!r}")


def placement_group_table(group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return the data of one placement group, or of all groups.

    Args:
        group: placement group; None means all groups of the session.

    Returns:
        For one group, its entry in `trainkit.list_placement_groups()`, or {} if it was removed; for all
        groups, their entries by id.
    """
    entries = {entry["placement_group_id"]: entry for entry in list_placement_groups()}
    return entries if group is None else entries.get(f"{group.id:016x}", {})


_serialized: set[type] = set()


def register_serializer(
    cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
) -> None:
    """Use custom functions to send instances of exactly `cls` from this process.

    Args:
        cls: class of the instances; subclasses are not affected.
        serializer: function that converts an instance to a value that can be pickled.
        deserializer: function that converts this value back to an instance. It is sent with each instance.
    """
    serialize.register(cls, lambda _, instance: (deserializer, (serializer(instance),)))
    _serialized.add(cls)


def deregister_serializer(cls: type) -> None:
    """Pickle instances of `cls` in the default way again; do nothing if no serializer was registered."""
    if cls in _serialized:
        _serialized.discard(cls)
        serialize.deregister(cls)


@dataclass(frozen=True, eq=False)
class FailureTuple:
    """A part of a value that can't be pickled.

    Attributes:
        obj: the part itself.
        path: path of the part in the value.
        parent: the whole value.
    """

    obj: Any
    path: tuple[str, ...]
    parent: Any


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: IO[str] | None = None
) -> tuple[bool, set[Any]]:
    """Return whether a value can be sent to a worker, and the part that can't; print the findings.

    Args:
        base_obj: the value.
        name: name to show; default: its own name.
        depth: no effect: the search ends at the deepest part.
        print_file: file to print to; None means standard output.

    Returns:
        True and an empty set, or False and a set of one `FailureTuple`.
    """
    del depth
    shown = name or getattr(base_obj, "__qualname__", None) or repr(base_obj)
    try:
        serialize.pack(base_obj, shown)
    except SerializationError as error:
        path, part = serialize.find_unpicklable(base_obj, shown, serialize.pack)
        print(error, file=print_file)
        return False, {FailureTuple(part, (path or shown,), base_obj)}
    print(f"{shown} can be sent to a worker", file=print_file)
    return True, set()


_lock = threading.Lock()
_seen: set[str] = set()


def log_once(key: str) -> bool:
    """Return True for the first call with this key in this process, else False.

    Args:
        key: name of the message, as in `if log_once("slow"): logger.warning(...)`.
    """
    with _lock:
        is_first = key not in _seen
        _seen.add(key)
        return is_first


class RayClient:
    """Information about Ray's connection to a `ray://` cluster, which the Ray engine uses."""

    @staticmethod
    def is_connected() -> bool:
        """Return whether this process is connected to a cluster by `ray://`."""
        ray = sys.modules.get("ray")
        return ray is not None and bool(ray.util.client.ray.is_connected())


ray_client = RayClient()
