"""References to values, and generators of references."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


T_co = TypeVar("T_co", covariant=True)


class Uncopied:
    """Base class of objects that refer to remote values or actors.

    `copy` and `deepcopy` return the reference or the handle itself.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class ObjectRef(Uncopied, Generic[T_co]):
    """Reference to a present or future value. A reference can be passed to `get`, to `wait` or to a call.

    References are equal if they refer to the same value, even in different processes. When user code pickles
    a reference, for example into a file, the pickle waits for the value and includes it. The unpickled
    reference refers to a copy of the value, even in another session.

    Attributes:
        id: number that is unique among all references of a session.
    """

    __slots__ = ("__weakref__", "id")

    id: int

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ObjectRef) and self.id == other.id)

    def __hash__(self) -> int:
        return self.id

    def hex(self) -> str:
        """Return the id as hexadecimal digits."""
        return f"{self.id:016x}"

    def binary(self) -> bytes:
        """Return the id as bytes."""
        return bytes.fromhex(self.hex())

    def size(self) -> int:
        """Return the length of the id in bytes."""
        return len(self.binary())

    def is_nil(self) -> bool:
        """Return False, because a reference always refers to a value."""
        return False

    def __repr__(self) -> str:
        return f"ObjectRef({self.id:016x})"

    def __iter__(self) -> Any:
        raise TypeError("an ObjectRef cannot be iterated: use trainkit.get(ref) for its value")

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for the value on an event loop, as in `await ref`. Raise the same errors as `get`."""
        return self.as_future().__await__()

    @abstractmethod
    def future(self, into: Future[Any] | None = None) -> Future[T_co]:
        """Return a future for the value. An error that `get` would raise becomes the future's exception.

        Args:
            into: running future that gets the value instead of a new future. The callbacks of
                this future must not block.
        """

    def as_future(self) -> asyncio.Future[T_co]:
        """Return an asyncio future for the value, on the running event loop. `await` uses this method."""
        import asyncio  # imported here, as the import may take a tenth of a second

        return asyncio.wrap_future(self.future())


class ObjectRefGenerator(ABC, Generic[T_co], Iterator[ObjectRef[T_co]], AsyncIterator[ObjectRef[T_co]]):
    """Generator of references to values of a remote generator, each yielded when its value exists.

    `for ref in generator` and `async for ref in generator` wait for the next value. If the remote generator
    raises or its process dies, one last reference is yielded, whose `get` raises the error.

    The remote generator does not wait for its reader, as its values are kept until they are taken. The remote
    generator is stopped when this object is garbage-collected, unless `completed` was called.
    """

    @abstractmethod
    def __next__(self) -> ObjectRef[T_co]:
        """Return the reference to the next value as soon as the value exists.

        Raise StopIteration after the last value.
        """

    @abstractmethod
    async def __anext__(self) -> ObjectRef[T_co]:
        """Return the next reference without blocking the event loop."""

    @abstractmethod
    def upcoming(self) -> ObjectRef[Any]:
        """Return a reference that is done once the next value exists or the generator ends.

        The value is not taken.
        """

    @abstractmethod
    def completed(self) -> ObjectRef[None]:
        """Return a reference that is done when the remote generator has ended.

        `get` of the reference raises any error of the generator.
        """

    @abstractmethod
    def hex(self) -> str:
        """Return the call's id as text."""

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self.hex()})"

    def __iter__(self) -> ObjectRefGenerator[T_co]:
        return self

    def __aiter__(self) -> ObjectRefGenerator[T_co]:
        return self


class DynamicObjectRefGenerator:
    """Result of a call with `num_returns="dynamic"`, with references to the values that the function yielded.

    If the function raised, `get` of the last reference raises that failure. Each reference is yielded once.
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
        """Run a generator to its end.

        Store the generator's values with `put`, and its error with `failed`.
        """
        refs: list[ObjectRef[Any]] = []
        try:
            refs.extend(map(put, items))
        except Exception as error:
            refs.append(failed(error))
        return cls(refs)
