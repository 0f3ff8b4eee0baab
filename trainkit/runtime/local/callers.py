"""The worker's end of a caller's connection, and the calls that come over it."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainkit.runtime.local.batch import BatchingConnection
from trainkit.runtime.local.bodies import COUNT_BYTES
from trainkit.runtime.local.frames import ANSWERS, CALL, Frame
from trainkit.runtime.local.objects import opened
from trainkit.runtime.serialize import PROTOCOL, unpack


class SmallCall(NamedTuple):
    """A call that came together with others, see `batch`.

    Attributes:
        target: the method, or the number of the function's definition.
        arguments: see `batch.lasting`.
    """

    call_id: int
    target: str | int
    arguments: Any
    kind: int = CALL


class CallerConnection(BatchingConnection):
    """A connection that calls come over.

    Attributes:
        spent_s: seconds that the answers posted on it took.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.spent_s = 0.0

    def make_batch(self, entries: list[Any]) -> tuple[int, bytes]:
        ids, values, pickled = [], [], []
        for call_id, value, payload in entries:
            if payload is None:
                ids.append(call_id)
                values.append(value)
            else:
                pickled.append((call_id, payload))
        spent_s, self.spent_s = self.spent_s, 0.0
        return ANSWERS, pickle.dumps((ids, values, pickled, spent_s), PROTOCOL)


def parts_of(call: Frame | SmallCall) -> Sequence[Any]:
    """A call unpacked: definition, method, how many results, arguments by place and name, group and name."""
    if isinstance(call, SmallCall):
        arguments = call.arguments
        return (
            None,
            call.target,
            1,
            *((arguments, {}) if type(arguments) is tuple else pickle.loads(arguments)),
        )
    parts: Sequence[Any] = unpack(opened(call.body))
    return parts


def results_of(call: Frame | SmallCall) -> int:
    """How many answers a call is to have, also if it can't be unpacked; see `CallBodies.of_call`."""
    if isinstance(call, SmallCall):
        return 1
    return max(1, int.from_bytes(call.body.payload[-COUNT_BYTES:], "little", signed=True))
