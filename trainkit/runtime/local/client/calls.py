"""Context and packing of calls, and the decision to retry a call after an exception."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import ObjectLostError, SerializationError, TaskError
from trainkit.runtime.failures import unpack_failure
from trainkit.runtime.local.client.node_client import Ids
from trainkit.runtime.local.client.refs import CallConnection, LocalRef, fail
from trainkit.runtime.local.memory.segments import SegmentPool, opened
from trainkit.runtime.local.wire.channel import FAILURE, VALUE, Frame
from trainkit.runtime.serialize import Packed, pack
from trainkit.runtime.specs import WhereAmI

calling: ContextVar[tuple[Any, ...]] = ContextVar("trainkit_calling", default=(0, ""))
"""Id and name of the call that runs in this thread or coroutine, and optional items; id 0 for no call."""


class GivenName(str):
    """Name that the user gave to a method call. It is shown without the class name."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """Namespace, actor and resources of a process.

    Attributes:
        actor_id: id of the process's actor; None outside an actor.
        actor_name: name of the actor; "" without a name.
        class_name: name of the actor's class.
        resources: resources reserved for the process.
        restarts: number of the actor's restarts so far.
    """

    namespace: str = ""
    actor_id: int | None = None
    actor_name: str = ""
    class_name: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 0

    def seen_by(self, serial: int, mark: str) -> WhereAmI:
        """Return this context in its public form.

        Args:
            serial: number of the process in the session.
            mark: path of the session's folder.
        """
        call, name = calling.get()[:2]
        session = Path(mark).name.rpartition("-")[2]
        is_actor = self.actor_id is not None
        has_class = is_actor and not isinstance(name, GivenName)
        return WhereAmI(
            node_id=session,
            worker_id=f"{serial:x}",
            namespace=self.namespace,
            job_id=session,
            actor_id=f"{self.actor_id:016x}" if is_actor else None,
            actor_name=self.actor_name if is_actor else None,
            task_id=f"{call:016x}" if call else None,
            task_name=(f"{self.class_name}.{name}" if has_class else str(name)) if call else None,
            was_restarted=self.restarts > 0,
            resources=dict(self.resources),
        )


COUNT_BYTES = 2


class CallCodec:
    """Packer of calls and values. It packs each function or class once, as a completed reference.

    Args:
        segments: pool of shared memory for large values.
        ids: source of this process's ids.
    """

    def __init__(self, segments: SegmentPool, ids: Ids) -> None:
        self._segments = segments
        self._ids = ids
        self._definitions: dict[int, tuple[weakref.ref[Any], LocalRef]] = {}

    def store(self, value: Packed) -> Packed:
        """Return `value`, after moving it to shared memory if it is large."""
        return self._segments.write(value)

    def put(self, value: Any) -> LocalRef:
        """Return a reference to a snapshot of `value`."""
        return self.put_packed(VALUE, pack(value))

    def put_packed(self, kind: int, value: Packed) -> LocalRef:
        """Return a completed reference to a packed value."""
        ref = LocalRef(self._ids.next(), None)
        ref.complete(kind, self._segments.write(value).owned())
        return ref

    def definition(self, target: Any, name: str) -> LocalRef:
        """Return a reference to the pickle of a function or class, which is pickled at its first use."""
        known = self._definitions.get(id(target))
        if known is not None and known[0]() is target:
            return known[1]
        definition = self.put_packed(VALUE, pack(target, name))
        with contextlib.suppress(TypeError):  # a callable without weak references is pickled each time
            forget = functools.partial(self._definitions.pop, id(target), None)
            self._definitions[id(target)] = (weakref.ref(target, lambda _: forget()), definition)
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
        """Return the packed call: its target, number of results, arguments, and optional group and name.

        The number of results is also appended after the pickle, for a worker that can't unpack the pickle.
        """
        said = (group, name) if name is not None else () if group is None else (group,)
        parts = (definition, method, count, args, dict(kwargs), *said)
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


Verdict = Callable[[TaskError], bool]


def decide(peer: CallConnection, failure: Packed, refs: Sequence[LocalRef], made_again: Verdict) -> None:
    """Complete `refs` with their call's failure, unless `made_again` retries the call.

    The decision is made in a separate thread. Unpickling the error runs user code, which may wait for other
        calls, while the caller is reading `peer`. Until the decision, `refs` have no connection.
    """
    waiting = {ref.id: peer.pending.pop(ref.id) for ref in refs if ref.id in peer.pending}
    for ref in refs:
        ref.attach(None)

    def work() -> None:
        try:
            if made_again(unpack_failure(opened(failure))):
                return
        except BaseException as error:  # the user's code may raise any error, even SystemExit
            _fail(peer, refs, error)
            return
        peer.forget([ref.id for ref in refs])
        peer.pending.update(waiting)
        for ref_id in waiting:
            CallConnection.on_frame(peer, Frame(FAILURE, ref_id, failure))

    try:
        threading.Thread(target=work, name="trainkit-retry", daemon=True).start()
    except RuntimeError as error:  # the machine can start no further thread
        _fail(peer, refs, error)


def _fail(peer: CallConnection, refs: Sequence[LocalRef], error: BaseException) -> None:
    peer.forget([ref.id for ref in refs])
    reason = f"a call raised, and could not be made again as retry_exceptions asks: {error!r}"
    fail([ref for ref in refs if not ref.done()], ObjectLostError, reason)
