"""What a call is packed into: what to run, how many results it has, and the arguments."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

from trainkit.errors import SerializationError
from trainkit.runtime.local.frames import VALUE
from trainkit.runtime.local.nodelink import Ids
from trainkit.runtime.local.objects import SegmentPool
from trainkit.runtime.local.refs import LocalRef
from trainkit.runtime.serialize import Packed, pack

COUNT_BYTES = 2


class CallBodies:
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
