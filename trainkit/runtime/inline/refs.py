"""References and streams of the inline engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from trainkit.errors import TaskCancelledError
from trainkit.runtime import serialize, session
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.inline.calls import CallFrame, Outcome, failed
from trainkit.runtime.refs import ObjectRef, ObjectRefGenerator
from trainkit.runtime.serialize import Packed, pack, unpack

_END = object()
_NONE = pack(None)


class InlineRef(ObjectRef[Any]):
    """Reference to an existing value or failure.

    Attributes:
        packed: the packed value or failure.
        failed: True for a failure.
        of_actor: True for the result of an actor's method.
    """

    __slots__ = ("failed", "of_actor", "packed")

    def __init__(self, ref_id: int, packed: Packed, failed: bool, of_actor: bool = False) -> None:
        self.id = ref_id
        self.packed = packed
        self.failed = failed
        self.of_actor = of_actor

    def value(self) -> Any:
        """Return a new copy of the value, or raise the failure."""
        if self.failed:
            raise raisable(unpack_failure(self.packed))
        return unpack(self.packed)

    def future(self, into: Future[Any] | None = None) -> Future[Any]:
        future: Future[Any] = into or Future()
        try:
            future.set_result(self.value())
        except Exception as error:  # the error of `get` becomes the future's exception
            future.set_exception(error)
        return future

    def __reduce__(self) -> Any:
        return session.put_again, (self.value(),)  # the user's own pickle must contain the value


class InlineStream(ObjectRefGenerator[Any]):
    """Stream that runs a user's generator one step for each requested reference.

    Args:
        stream_id: id of the call.
        frame: frame of the steps.
        started: outcome of the call, with the generator or a failure.
        run: function that runs a step in the frame.
        new_ref: function that makes a reference to a packed value or failure.
    """

    def __init__(
        self,
        stream_id: int,
        frame: CallFrame,
        started: Outcome,
        run: Callable[[Callable[[], Any]], Outcome],
        new_ref: Callable[[Packed, bool], InlineRef],
    ) -> None:
        self.of_actor = frame.actor is not None
        self._id = stream_id
        self._frame = frame
        self._generator = started.value
        self._run = run
        self._new_ref = new_ref
        self._ready: deque[InlineRef] = deque()
        self._failure: Packed | None = None
        self._over = False
        if started.failure is not None:
            self._end(started)

    def __next__(self) -> InlineRef:
        if not self._ready:
            self._step()
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    async def __anext__(self) -> InlineRef:
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    def upcoming(self) -> ObjectRef[Any]:
        return self._new_ref(_NONE, False)  # a step runs only when this reference's value is read

    def completed(self) -> ObjectRef[None]:
        while not self._over:
            self._step()
        failed = self._failure is not None
        return InlineRef(self._id, self._failure or _NONE, failed, self.of_actor)

    def hex(self) -> str:
        return f"{self._id:016x}"

    def cancel(self, error: Exception | None = None) -> None:
        """End the generator at its current `yield`. Its last reference raises `error` or a cancellation."""
        if self._over:
            return
        outcome = self._run(self._close)
        if outcome.failure is None:
            name = self._frame.name
            outcome = failed(error or TaskCancelledError(f"{name} was cancelled"), name)
        self._end(outcome)

    def _step(self) -> None:
        if self._over:
            return
        outcome = self._run(self._advance)
        if outcome.failure is not None or outcome.value is _END:
            self._end(outcome)
        else:
            self._ready.append(self._new_ref(outcome.value, False))

    def _advance(self) -> Any:
        item = next(self._generator, _END)
        return item if item is _END else pack(item, f"a value that {self._frame.name} yielded").owned()

    def _close(self) -> None:
        if hasattr(self._generator, "close"):  # a plain iterator has no `close` and needs no cleanup
            self._generator.close()

    def _end(self, outcome: Outcome) -> None:
        self._over = True
        self._generator = None
        if outcome.failure is not None:
            self._failure = outcome.failure
            self._ready.append(self._new_ref(outcome.failure, True))
        self._frame.leave()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a generator of references stays where it was made: send the references that it yields"
        )

    def __del__(self) -> None:
        if not self._over:
            self._run(self._close)
            self._end(Outcome())


def stepped(generator: Any, frame: CallFrame) -> Iterator[Any]:
    """Yield the items of an asynchronous generator, with each step run on the loop of `frame`."""
    try:
        while (item := frame.run(anext(generator, _END))) is not _END:
            yield item
    finally:
        frame.run(generator.aclose())


# The runtime passes on a reference as the same object. Each reader unpacks its own copy of the value.
serialize.register(InlineRef, serialize.attached)
