"""What the node keeps of an actor's constructor call, to make it again: values it never looks into.

Memory segments can be sent any number of times as they are. A handle to another actor is an open
connection, over which a further one is asked for each time. A pending reference is a connection too,
over which its value comes once: it is taken when it comes, and told to each process that waits for it.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ObjectLostError
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.channel import Connection, Descriptor
from trainkit.runtime.local.endpoints import Endpoint
from trainkit.runtime.local.frames import CONNECT, FAILURE, Frame
from trainkit.runtime.local.loop import try_send
from trainkit.runtime.local.messages import Reconnect, Reconnected
from trainkit.runtime.local.refs import PromisePeer, send_answer
from trainkit.runtime.serialize import Handle, Packed, present

if TYPE_CHECKING:
    from trainkit.runtime.local.node import Node

_NODE = 0
"""Its own number, among those of processes."""


class _KeptActor:
    """A handle to an actor, kept open; to its next process too, if it is made anew."""

    def __init__(self, node: Node, endpoint: Endpoint, worker_id: int | None) -> None:
        self.kind = endpoint.kind
        self._node = node
        self._worker_id = worker_id or 0
        self._given_up = False
        record = node.census.restarts.record(self._worker_id)
        self._life = 0 if record is None else record.restarts
        self._connect(socket.socket(fileno=endpoint.peer.sock.detach()))

    def _connect(self, sock: socket.socket) -> None:
        self._conn = self._node.connection(sock, lambda _: None, self._closed)

    def _closed(self) -> None:
        restarts = self._node.census.restarts
        if self._given_up or restarts.record(self._worker_id) is None:
            return  # it has ended for good
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # no descriptor left: then others have to keep that actor alive
            return
        self._connect(ours)
        end = Descriptor(theirs.detach())
        restarts.reconnect(_NODE, Reconnect(self._worker_id, self._life), end, self._connected)

    def _connected(self, answer: Any) -> None:
        self._given_up = not isinstance(answer, Reconnected)
        if isinstance(answer, Reconnected):
            self._life = answer.life

    def open_fd(self) -> int:
        ours, theirs = socket.socketpair()
        # If that actor is dead by now, the receiver finds a closed connection, and asks why.
        try_send(self._conn, CONNECT, 0, Packed(b"", (), [Descriptor(ours.detach())]))
        return theirs.detach()

    def drop(self) -> None:
        _end(self._node, self._conn)


class _KeptPromise:
    """A reference whose value is still to come, or has come."""

    def __init__(self, node: Node, promise: PromisePeer) -> None:
        self.kind = promise.kind
        self._node = node
        self._answer: Frame | None = None
        self._waiting: list[Connection] = []
        self._conn = node.connection(
            socket.socket(fileno=promise.sock.detach()), self._arrived, self._never_arrives
        )

    def _arrived(self, frame: Frame) -> None:
        try:
            for handle in frame.body.handles:
                present(handle)
        except ObjectLostError as error:
            frame = frame._replace(kind=FAILURE, body=pack_failure(error, "trainkit"))
        self._answer = frame._replace(body=kept(self._node, frame.body))
        for conn in self._waiting:
            self._tell(conn, self._answer)
        self._waiting.clear()

    def _tell(self, conn: Connection, answer: Frame) -> None:
        try:
            send_answer(conn, answer.kind, answer.body, answer.call_id, "trainkit")  # the receiver closes it
        except OSError:  # it is gone
            _end(self._node, conn)

    def _never_arrives(self) -> None:
        for conn in self._waiting:  # closed: the receiver says what that means
            _end(self._node, conn)
        self._waiting.clear()

    def open_fd(self) -> int:
        ours, theirs = socket.socketpair()
        conn = self._node.connection(ours, lambda _: None, lambda: None)
        if self._answer is not None:
            self._tell(conn, self._answer)
        elif self._conn.closed:
            _end(self._node, conn)
        else:
            self._waiting.append(conn)
        return theirs.detach()

    def drop(self) -> None:
        _end(self._node, self._conn)
        self._never_arrives()
        answer, self._answer = self._answer, None  # a connection's callbacks may keep this for a while
        if answer is not None:
            drop(answer.body)


def _end(node: Node, conn: Connection) -> None:
    if not conn.closed:
        node.forget(conn)
    conn.close()


def kept(node: Node, body: Packed, actors: Sequence[int | None] = ()) -> Packed:
    """`body`, just received, in a form that can be sent again and again from the node's loop.

    Args:
        node: whose loop it is.
        body: its handles are of no use afterwards.
        actors: of each handle, the actor it leads to, as far as that is known.
    """
    known = itertools.chain(actors, itertools.repeat(None))
    handles = [_kept(node, handle, actor) for handle, actor in zip(body.handles, known, strict=False)]
    return Packed(body.payload, body.buffers, handles, body.stored)


def _kept(node: Node, handle: Handle, actor: int | None) -> Handle:
    if isinstance(handle, Endpoint):
        return _KeptActor(node, handle, actor)
    if isinstance(handle, PromisePeer):
        return _KeptPromise(node, handle)
    return handle


def drop(body: Packed) -> None:
    """Close what `kept` holds open."""
    handle: Any
    for handle in body.handles:
        if isinstance(handle, (_KeptActor, _KeptPromise)):
            handle.drop()
