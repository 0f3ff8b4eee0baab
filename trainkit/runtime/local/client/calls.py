"""Packing of calls, and the decision about a call that raised: made again, or failed."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainkit.errors import ObjectLostError, SerializationError, TaskError
from trainkit.runtime.failures import unpack_failure
from trainkit.runtime.local.client.node_client import Ids
from trainkit.runtime.local.client.refs import LOST, CallConnection, LocalRef
from trainkit.runtime.local.memory.segments import SegmentPool, opened
from trainkit.runtime.local.wire.frames import FAILURE, VALUE, Frame
from trainkit.runtime.serialize import Packed, pack

COUNT_BYTES = 2


class CallCodec:
    """Packs calls; a function or a class is packed once, and travels with them as a finished reference.

    Args:
        segments: where large ones go.
        ids: this process's.
    """

    def __init__(self, segments: SegmentPool, ids: Ids) -> None:
        self._segments = segments
        self._ids = ids
        self._definitions: dict[int, tuple[weakref.ref[Any], LocalRef]] = {}

    def definition(self, target: Any, name: str) -> LocalRef:
        """`target` pickled once: a function or class is sent as it was when it was first used."""
        known = self._definitions.get(id(target))
        if known is not None and known[0]() is target:
            return known[1]
        definition = LocalRef(self._ids.next(), None)
        definition.complete(VALUE, self._segments.write(pack(target, name)).owned())
        try:
            forget = functools.partial(self._definitions.pop, id(target), None)
            self._definitions[id(target)] = (weakref.ref(target, lambda _: forget()), definition)
        except TypeError:  # some callables can't be referred to weakly: those are pickled each time
            return definition
        return definition

    def of_call(
        self,
        definition: LocalRef | None,
        method: str,
        count: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        group: str | None = None,
        name: str | None = None,
    ) -> Packed:
        """The body of a call: what to call, how many results, and the arguments; its group and name if any.

        How many results stands behind the pickle once more, for a process that can't unpack the rest.
        """
        parts = (definition, method, count, args, dict(kwargs), *_said(group, name))
        try:
            body = self._segments.write(pack(parts, method))
        except SerializationError:
            for index, value in enumerate(args):
                pack(value, f"argument {index} of {method}()")
            for name, value in kwargs.items():
                pack(value, f"argument {name!r} of {method}()")
            raise
        body.payload += count.to_bytes(COUNT_BYTES, "little", signed=True)
        return body


def _said(group: str | None, name: str | None) -> tuple[str | None, ...]:
    """Return what a call says beside its arguments; it ends with the last thing said."""
    if name is not None:
        return group, name
    return () if group is None else (group,)


Verdict = Callable[[TaskError], bool]


def decide(peer: CallConnection, failure: Packed, refs: Sequence[LocalRef], made_again: Verdict) -> None:
    """Give `refs` the failure of their call, unless `made_again` makes the call again for its error.

    In a thread of its own: to rebuild the error runs the user's code, which may wait for others, and
    the caller of this reads `peer`. Until it is decided no connection owes `refs`.
    """
    waiting = {ref.id: peer.pending.pop(ref.id) for ref in refs if ref.id in peer.pending}
    for ref in refs:
        ref.attach(None)

    def work() -> None:
        try:
            if made_again(unpack_failure(opened(failure))):
                return
        except BaseException as error:  # the user's code may even try to end the process
            _fail(peer, refs, error)
            return
        peer.forget([ref.id for ref in refs])
        peer.pending.update(waiting)
        for ref_id in waiting:
            CallConnection.on_frame(peer, Frame(FAILURE, ref_id, failure))

    try:
        threading.Thread(target=work, name="trainkit-retry", daemon=True).start()
    except RuntimeError as error:  # the machine has no thread left
        _fail(peer, refs, error)


def _fail(peer: CallConnection, refs: Sequence[LocalRef], error: BaseException) -> None:
    peer.forget([ref.id for ref in refs])
    reason = f"a call raised, and could not be made again as retry_exceptions asks: {error!r}"
    for ref in refs:
        if not ref.done():
            ref.complete(LOST, functools.partial(ObjectLostError, reason))
