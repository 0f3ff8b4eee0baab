"""Results that come one by one: what a call with `num_returns="streaming"` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from trainkit.runtime.specs import ObjectRef

T_co = TypeVar("T_co", covariant=True)


class ObjectRefGenerator(ABC, Generic[T_co], Iterator[ObjectRef[T_co]], AsyncIterator[ObjectRef[T_co]]):
    """Hands out a reference for each value that a remote generator yields, as soon as it is there.

    `for ref in generator` and `async for ref in generator` wait for the next one. If the generator
    raises, or its process dies, one more reference comes, whose `get` raises that; then it ends.

    The remote generator does not wait for its reader: what it has yielded is kept until it is taken. It is
    stopped when the object that hands out its references is dropped, unless `completed` was called.
    """

    @abstractmethod
    def __next__(self) -> ObjectRef[T_co]:
        """The next value's reference; it is done. Raises StopIteration behind the last."""

    @abstractmethod
    async def __anext__(self) -> ObjectRef[T_co]:
        """The same without blocking the event loop."""

    @abstractmethod
    def completed(self) -> ObjectRef[None]:
        """A reference that is done once the remote generator has ended; its `get` raises what that raised."""

    @abstractmethod
    def hex(self) -> str:
        """The call's id as text."""

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self.hex()})"

    def __iter__(self) -> ObjectRefGenerator[T_co]:
        return self

    def __aiter__(self) -> ObjectRefGenerator[T_co]:
        return self


class DynamicObjectRefGenerator:
    """The value of a call with `num_returns="dynamic"`: references to what the function yielded.

    If it raised, the last of them is that failure. Each reference is handed out once.
    """

    def __init__(self, refs: Iterable[ObjectRef[Any]]) -> None:
        self._refs = list(refs)

    def __iter__(self) -> Iterator[ObjectRef[Any]]:
        while self._refs:
            yield self._refs.pop(0)

    def __len__(self) -> int:
        return len(self._refs)

    @classmethod
    def of(
        cls,
        items: Iterable[Any],
        put: Callable[[Any], ObjectRef[Any]],
        failed: Callable[[Exception], ObjectRef[Any]],
    ) -> DynamicObjectRefGenerator:
        """Run a generator to its end and keep what it yields by `put`, and what it raises by `failed`."""
        refs: list[ObjectRef[Any]] = []
        try:
            refs.extend(map(put, items))
        except Exception as error:
            refs.append(failed(error))
        return cls(refs)
