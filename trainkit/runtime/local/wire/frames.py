"""Frames of a connection, and their kinds."""

from __future__ import annotations

import struct
from typing import NamedTuple

from trainkit.runtime.serialize import Packed

# kind, whether the body lies in a segment, handle count, buffer count, call id, bytes that follow
HEADER = struct.Struct("<B?HIQQ")

INIT = 1  # the first frame to an actor: its class and its constructor's arguments
CALL = 2  # a method, or a task's function, with its arguments
VALUE = 3  # the answer to a call, or to a request
FAILURE = 4  # user code raised
CONNECT = 5  # a further connection to this process; it is the frame's only handle
REQUEST = 6  # to the node, which answers with VALUE or FAILURE
NOTICE = 7  # to or from the node, not answered
CALLS = 8  # several small calls
ANSWERS = 9  # several small values, and how long they took
RETURNED = 10  # the numbers of calls that will not be begun here, to be made elsewhere, and why
ITEM = 11  # what a streaming call has yielded; VALUE or FAILURE ends it

BLOCKED = "blocked"  # the call before them waits for others
SLOW = "slow"  # the call before them takes long
UNKNOWN = "unknown"  # their function is not known here, or no more


class Frame(NamedTuple):
    """One message: its kind, the call it belongs to, and what it carries."""

    kind: int
    call_id: int
    body: Packed


def encoded(kind: int, call_id: int, body: Packed) -> bytes:
    """Return a frame as bytes; its descriptors go beside."""
    if not body.handles and not body.buffers:
        return b"%b%b" % (HEADER.pack(kind, False, 0, 0, call_id, len(body.payload)), body.payload)
    lengths = struct.pack(f"<{len(body.buffers)}Q", *(len(buffer) for buffer in body.buffers))
    kinds = bytes(handle.kind for handle in body.handles)
    parts = [kinds, lengths, body.payload, *body.buffers]
    size = sum(len(part) for part in parts)
    return b"".join([HEADER.pack(kind, body.stored, len(kinds), len(body.buffers), call_id, size), *parts])
