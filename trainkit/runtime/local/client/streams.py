"""Streams of results, in the process that made the call.

    worker ──ITEM──ITEM──VALUE──▶ StreamRef ──▶ items: done, done, pending ──▶ LocalStream ──▶ user

The call's own reference stands for the end of the stream. The values are references of their own; the
last of them is always pending, so whoever reads faster than values come waits for it as for any other.
Nothing slows the remote generator down when its reader is slower: what has come waits in this process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainkit.runtime import serialize
from trainkit.runtime.local.client.refs import PENDING, CallConnection, LocalRef, reduce_ref
from trainkit.runtime.local.wire.frames import VALUE
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import ObjectRef
from trainkit.runtime.streams import ObjectRefGenerator

if TYPE_CHECKING:
    from trainkit.runtime.local.client.futures import CallControl

ENDED = -3
"""In place of a further value: there is none."""


class StreamRef(LocalRef):
    """Done when the remote generator has ended; until then, where its values arrive.

    Attributes:
        items: references to the values that nobody has taken, and behind them to the one to come.
    """

    __slots__ = ("_new_id", "begun", "items")

    def __init__(self, ref_id: int, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self.begun = False
        self.items: deque[LocalRef] = deque([LocalRef(new_id(), None)])
        super().__init__(ref_id, None)

    def attach(self, peer: CallConnection | None) -> None:
        super().attach(peer)
        self.items[-1].peer = peer

    def item(self, body: Packed) -> None:
        self.begun = True
        arrived = self.items[-1]
        self.items.append(LocalRef(self._new_id(), self.peer))
        arrived.complete(VALUE, body)

    def complete(self, kind: int, body: Any) -> None:
        # A failure takes the place of the value to come; an end only says that none will.
        self.items[-1].complete(ENDED if kind == VALUE else kind, body)
        super().complete(kind, body)


class LocalStream(ObjectRefGenerator[Any]):
    """See `ObjectRefGenerator`. When nobody has it any more, the remote generator is stopped."""

    def __init__(self, engine: CallControl, call: StreamRef) -> None:
        self.call = call
        self._engine = engine
        self._taking = threading.Lock()
        self._runs_to_its_end = False

    def __reduce__(self) -> Any:
        raise TypeError("a generator of references stays in its process: send the references it hands out")

    def __next__(self) -> ObjectRef[Any]:
        while True:
            front = self._front()
            if front is None:
                raise StopIteration
            if front.kind == PENDING:
                self._engine.wait([front], 1, None)
            elif self._take(front):
                return front

    async def __anext__(self) -> ObjectRef[Any]:
        while True:
            front = self._front()
            if front is None:
                raise StopAsyncIteration
            if front.kind == PENDING:
                await self._engine.arrival(front)
            elif self._take(front):
                return front

    def _front(self) -> LocalRef | None:
        """The next value's reference; None behind the last."""
        try:
            front = self.call.items[0]
        except IndexError:  # the failure that ended it was taken
            return None
        return None if front.kind == ENDED else front

    def _take(self, front: LocalRef) -> bool:
        """Take `front`; False if another thread did."""
        with self._taking:
            if not self.call.items or self.call.items[0] is not front:
                return False
            self.call.items.popleft()
            return True

    def completed(self) -> ObjectRef[None]:
        """See `ObjectRefGenerator`; once it is asked for, the remote generator runs to its end."""
        self._runs_to_its_end = True
        return self.call

    def hex(self) -> str:
        return self.call.hex()

    def __del__(self) -> None:
        if not self._runs_to_its_end and not self.call.done():
            self._engine.abandon(self.call)


serialize.register(StreamRef, reduce_ref)
