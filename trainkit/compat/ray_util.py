"""Functions by the names of `ray.util`: results as they arrive, serializers, messages once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from trainkit.errors import ConfigError, SerializationError
from trainkit.runtime import serialize
from trainkit.runtime.api import get, list_placement_groups, wait
from trainkit.runtime.scheduling import PlacementGroup
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
    return _Arriving([], chunk_size, yield_obj_refs, kwargs).of_calls(fn, items, backpressure_size)


class _Arriving:
    """Set of references, some of which are known to be done.

    All are looked at only when none is known to be done: a look at each chunk would take a time that
    grows with the square of their number.
    """

    def __init__(
        self, refs: list[ObjectRef[Any]], chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]
    ) -> None:
        _require_size("chunk_size", chunk_size)
        if "num_returns" in kwargs:
            raise ConfigError("num_returns: give chunk_size, which says how many results to wait for")
        self._pending = refs
        self._done: list[ObjectRef[Any]] = []
        self._chunk_size = chunk_size
        self._yield_obj_refs = yield_obj_refs
        self._kwargs = kwargs

    def of_calls(self, fn: Any, items: Iterable[Any], most: int | None) -> Iterator[Any]:
        """Call `fn` with each item, at most so many at a time, and yield the results."""
        for item in items:
            self._pending.append(fn.remote(item))
            if most is not None and len(self._pending) + len(self._done) >= most:
                yield from self._next_chunk()
        yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """Yield the results that are left."""
        while self._pending or self._done:
            yield from self._next_chunk()

    def _next_chunk(self) -> list[Any]:
        """Return the next results, or their references; none if the timeout came first."""
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
        raise ConfigError(f"{name}={value!r}: give 1 or more")


def placement_group_table(group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return the facts of one placement group, or of all.

    Args:
        group: None for all of the session's.

    Returns:
        For one group, its entry of `trainkit.list_placement_groups()`, empty if it was removed; for all,
        such entries by id.
    """
    entries = {entry["placement_group_id"]: entry for entry in list_placement_groups()}
    return entries if group is None else entries.get(f"{group.id:016x}", {})


_serialized: set[type] = set()


def register_serializer(
    cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
) -> None:
    """Send instances of exactly `cls` by functions of the user's; holds for this process.

    Args:
        cls: the class.
        serializer: makes a value that can be pickled of an instance.
        deserializer: makes an instance of that value. It travels with each of them.
    """
    serialize.register(cls, lambda _, instance: (deserializer, (serializer(instance),)))
    _serialized.add(cls)


def deregister_serializer(cls: type) -> None:
    """Send instances of `cls` by pickle again; without effect if nothing was registered for it."""
    if cls in _serialized:
        _serialized.discard(cls)
        serialize.deregister(cls)


@dataclass(frozen=True, eq=False)
class FailureTuple:
    """Part of a value that can't be pickled.

    Attributes:
        obj: the part.
        path: where it is in the value.
        parent: the value.
    """

    obj: Any
    path: tuple[str, ...]
    parent: Any


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: IO[str] | None = None
) -> tuple[bool, set[Any]]:
    """Return whether a value can be sent to a worker, and the part that can't; prints what was found.

    Args:
        base_obj: the value.
        name: shown for it; default, its own.
        depth: without effect: the search ends at the deepest part.
        print_file: where to print; None is standard output.

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
        key: names the message, as in `if log_once("slow"): logger.warning(...)`.
    """
    with _lock:
        is_first = key not in _seen
        _seen.add(key)
        return is_first


class RayClient:
    """Ray's connection to a cluster by `ray://`, which is the Ray engine's to use."""

    @staticmethod
    def is_connected() -> bool:
        """Return whether this process has one."""
        ray = sys.modules.get("ray")
        return ray is not None and bool(ray.util.client.ray.is_connected())


ray_client = RayClient()
