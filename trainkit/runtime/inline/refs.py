"""References and streams of the inline engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from trainkit.errors import TaskCancelledError
from trainkit.runtime import serialize, session
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.inline.calls import CallFrame, InlineCallRunner, Outcome, died, failed
from trainkit.runtime.refs import ObjectRef, ObjectRefGenerator
from trainkit.runtime.serialize import Packed, pack, unpack

_END = object()
_NONE = pack(None)


class InlineRef(ObjectRef[Any]):
    """Reference to an existing value or failure.

    Attributes:
        packed: the packed value or failure.
        failed: True if `packed` is a failure.
        of_actor: True if an actor's method returned the value.
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

    def cancel(self) -> None:
        """Do nothing, because the call has already ended."""

    def __reduce__(self) -> Any:
        return session.put_again, (self.value(),)  # a pickle that the user makes must contain the value


class _Completion(InlineRef):
    """Reference to the end of a stream. Reading the value of this reference runs the stream to its end."""

    __slots__ = ("_stream",)

    def __init__(self, ref_id: int, stream: InlineStream) -> None:
        super().__init__(ref_id, _NONE, False, stream.of_actor)
        self._stream = stream

    def value(self) -> Any:
        self._stream.run_to_end()
        if self._stream.failure is not None:
            self.packed, self.failed = self._stream.failure, True
        return super().value()

    def cancel(self) -> None:
        self._stream.cancel()


class InlineStream(ObjectRefGenerator[Any]):
    """Stream that runs a user's generator one step for each requested reference.

    Args:
        caller: runner of user code, which runs the steps.
        frame: context in which the steps run.
        started: outcome of the call, with the generator, or with a failure if the
            generator could not be made.
        new_ref: function that makes a reference to a packed value or failure.
        group: concurrency group of the method.

    Attributes:
        failure: final failure of the generator; None if it has not failed.
    """

    def __init__(
        self,
        caller: InlineCallRunner,
        frame: CallFrame,
        started: Outcome,
        new_ref: Callable[[Packed, bool], InlineRef],
        group: str | None = None,
    ) -> None:
        self._caller = caller
        self._frame = frame
        self._generator = started.value
        self._new_ref = new_ref
        self._id = new_ref(_NONE, False).id
        self._group = group
        self._ready: deque[InlineRef] = deque()
        self._over = False
        self._stepping = False
        self._cancelled = False
        self.failure: Packed | None = None
        if started.failure is not None:
            self._end(started)

    @property
    def of_actor(self) -> bool:
        """True if a method of an actor yields the values."""
        return self._frame.life is not None

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
        # The reference is always done, because a step of the generator runs when the reference to its result
        # is requested.
        return self._new_ref(_NONE, False)

    def completed(self) -> ObjectRef[None]:
        return _Completion(self._id, self)

    def hex(self) -> str:
        return f"{self._id:016x}"

    def run_to_end(self) -> None:
        """Run all remaining steps, and keep the values."""
        while not self._over:
            self._step()

    def cancel(self, error: Exception | None = None) -> None:
        """End the generator at its present `yield`.

        The last reference of the stream raises `error`, or TaskCancelledError if `error` is None.
        """
        self._cancelled = True
        # while a step of the generator runs in another thread, the generator can't be closed; the step closes
        # it when the step is done
        if self._over or self._stepping:
            return
        outcome = self._run(self._close)
        if outcome.failure is None:
            name = self._frame.name
            outcome = failed(error or TaskCancelledError(f"{name} was cancelled"), name)
        self._end(outcome)

    def _step(self) -> None:
        if self._over:
            return
        self._stepping = True
        try:
            if self._frame.life is not None and self._frame.life.over is not None:
                outcome = died(self._frame)
            else:
                outcome = self._run(self._advance)
        except BaseException:  # Ctrl-C has ended the generator
            self._end(Outcome())
            raise
        finally:
            self._stepping = False
        if self._cancelled and not self._over:
            self.cancel()
        elif outcome.failure is not None or outcome.value is _END:
            self._end(outcome)
        else:
            self._ready.append(self._new_ref(outcome.value, False))

    def _run(self, work: Callable[[], Any]) -> Outcome:
        frame = self._frame
        if frame.actor is None or frame.life is None:
            return self._caller.outcome(frame, work)
        with frame.actor.busy(self._group, frame.life):
            return self._caller.outcome(frame, work)

    def _advance(self) -> Any:
        generator = self._generator
        if hasattr(generator, "__anext__"):
            item = self._frame.next_of(generator, _END)
        else:
            item = next(generator, _END)
        return item if item is _END else pack(item, f"a value that {self._frame.name} yielded").owned()

    def _close(self) -> Any:
        generator = self._generator
        if hasattr(generator, "aclose"):
            self._frame.run(generator.aclose())
        elif hasattr(generator, "close"):  # a plain iterator needs no cleanup
            generator.close()

    def _end(self, outcome: Outcome) -> None:
        self._over = True
        self._generator = None
        if outcome.failure is not None:
            self.failure = outcome.failure
            self._ready.append(self._new_ref(outcome.failure, True))
        self._frame.leave()

    def __reduce__(self) -> Any:
        raise TypeError("a generator of references cannot be sent or pickled: send the references it yields")

    def __del__(self) -> None:
        if not self._over:
            self._run(self._close)
            self._end(Outcome())


def stepped(generator: Any, frame: CallFrame) -> Iterator[Any]:
    """Yield the items of an asynchronous generator, with each step run on the loop of `frame`."""
    try:
        while (item := frame.next_of(generator, _END)) is not _END:
            yield item
    finally:
        frame.run(generator.aclose())


# A reference in an argument stays the same object, and each reader unpacks its own copy of the value.
serialize.register(InlineRef, serialize.attached)
serialize.register(_Completion, serialize.attached)
