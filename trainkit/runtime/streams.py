"""Results that come one by one: what a call with `num_returns="streaming"` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Generic, TypeVar

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

    def __iter__(self) -> ObjectRefGenerator[T_co]:
        return self

    def __aiter__(self) -> ObjectRefGenerator[T_co]:
        return self
