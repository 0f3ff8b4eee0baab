"""Packing of calls and values into bytes, or into shared memory if they are large."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Mapping
from typing import Any

from trainkit.errors import SerializationError
from trainkit.runtime.local.client.node_client import Ids
from trainkit.runtime.local.client.refs import LocalRef
from trainkit.runtime.local.memory.segments import SegmentPool
from trainkit.runtime.local.wire.channel import VALUE
from trainkit.runtime.serialize import Packed, pack

COUNT_BYTES = 2


class CallCodec:
    """Packer of calls and values for sending.

    The packer pickles each function or class once and stores the pickle as a completed reference.

    Args:
        segments: pool of shared memory for large values.
        ids: generator of the ids of this process's references and calls.

    Attributes:
        store: function that returns a packed value, after moving it to shared memory if it is large.
    """

    def __init__(self, segments: SegmentPool, ids: Ids) -> None:
        self.store = segments.write
        self._ids = ids
        self._definitions: dict[int, tuple[weakref.ref[Any], LocalRef]] = {}

    def put(self, value: Any) -> LocalRef:
        """Return a reference to a snapshot of `value`."""
        return self.put_packed(VALUE, pack(value))

    def put_packed(self, kind: int, value: Packed) -> LocalRef:
        """Return a completed reference to a packed value."""
        ref = LocalRef(self._ids.next(), None)
        ref.complete(kind, self.store(value).owned())
        return ref

    def definition(self, target: Any, name: str) -> LocalRef:
        """Return a reference to the pickle of a function or class.

        The pickle is made when it is first needed.
        """
        known = self._definitions.get(id(target))
        if known is not None and known[0]() is target:
            return known[1]
        definition = self.put_packed(VALUE, pack(target, name))
        with contextlib.suppress(TypeError):  # a callable without weak-reference support is pickled each time
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
        """Return a packed call with its target, number of results, arguments, and optional group and name.

        The group is a concurrency group of the actor. The number of results is also appended after the
        pickle, for a worker that can't unpack the pickle.
        """
        said = (group, name) if name is not None else () if group is None else (group,)
        parts = (definition, method, count, args, dict(kwargs), *said)
        try:
            body = self.store(pack(parts, method))
        except SerializationError:
            for index, value in enumerate(args):
                pack(value, f"argument {index} of {method}()")
            for name, value in kwargs.items():
                pack(value, f"argument {name!r} of {method}()")
            raise
        body.payload += count.to_bytes(COUNT_BYTES, "little", signed=True)
        return body
