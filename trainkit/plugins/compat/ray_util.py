"""Functions of `ray.util` under Ray's names: results in order of arrival, serializers, one-time messages."""

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
        chunk_size: number of results in a chunk. When all results of a chunk have arrived, they are yielded
            in the order of `refs`.
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
    """Call `fn` with each item of `items`, and yield the results as they arrive.

    Args:
        fn: remote function.
        items: arguments, one for each call. Each item is read just before its call.
        backpressure_size: maximum number of unfinished calls; None means no limit.
        chunk_size: see `as_completed`.
        yield_obj_refs: see `as_completed`.
        **kwargs: see `as_completed`.

    Raises:
        ConfigError: `backpressure_size` or `chunk_size` is less than 1, or `num_returns` is given.
    """
    if backpressure_size is not None:
        _require_size("backpressure_size", backpressure_size)
    return _Arriving([], chunk_size, yield_obj_refs, kwargs).of_calls(fn, items, backpressure_size)


class _Arriving:
    """Set of object references, divided into finished and pending references.

    The pending references are checked only when no finished reference is left. If all references were checked
    before each chunk, the total time would be quadratic in the number of references.
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
        """Return the next results, or their references; [] if the timeout passes first."""
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
    """Return the state of one placement group, or of all placement groups.

    Args:
        group: placement group; None means all groups of the session.

    Returns:
        For one group, its entry in `trainkit.list_placement_groups()`, or {} if the group was removed. For
        all groups, a dictionary that maps each group's id to its entry.
    """
    entries = {entry["placement_group_id"]: entry for entry in list_placement_groups()}
    return entries if group is None else entries.get(f"{group.id:016x}", {})


_serialized: set[type] = set()


def register_serializer(
    cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
) -> None:
    """Use custom functions when this process sends instances of exactly the class `cls`.

    Args:
        cls: class of the instances; subclasses are not affected.
        serializer: function that converts an instance to a value that can be pickled.
        deserializer: function that converts the serializer's value back to an instance. The deserializer is
            sent with each instance.
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
    """Part of a value because of which the value can't be pickled.

    Attributes:
        obj: the part itself.
        path: names of the attributes or items that lead from the whole value to the part.
        parent: the whole value.
    """

    obj: Any
    path: tuple[str, ...]
    parent: Any


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: IO[str] | None = None
) -> tuple[bool, set[Any]]:
    """Check whether a value can be sent to a worker; print the finding and return it.

    Args:
        base_obj: the value.
        name: name for the value in the message; default: the value's own name.
        depth: no effect, because the search continues to the deepest part.
        print_file: file for the message; None means standard output.

    Returns:
        `True` and an empty set, or `False` and a set with one `FailureTuple`, which describes the part that
        can't be sent.
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
    """Return True for the first call with this key in this process, and False for later calls.

    Args:
        key: any name for the message, as in `if log_once("slow"): logger.warning(...)`.
    """
    with _lock:
        is_first = key not in _seen
        _seen.add(key)
        return is_first


class RayClient:
    """Information about a connection to a `ray://` cluster, when sessions run on Ray."""

    @staticmethod
    def is_connected() -> bool:
        """Return True if this process is connected to a cluster by a `ray://` address."""
        ray = sys.modules.get("ray")
        return ray is not None and bool(ray.util.client.ray.is_connected())


ray_client = RayClient()
