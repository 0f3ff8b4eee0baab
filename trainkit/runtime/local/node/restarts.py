"""Restarts of actors whose process died, from the constructor calls that the node keeps."""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import ObjectLostError
from trainkit.runtime import restart_policy
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.client.actors import ActorEndpoint
from trainkit.runtime.local.client.refs import PromiseReceiver, send_answer
from trainkit.runtime.local.node.loop import try_send
from trainkit.runtime.local.node.records import WorkerRecord, introduce, lost_connection
from trainkit.runtime.local.wire.channel import Connection, Descriptor
from trainkit.runtime.local.wire.frames import CONNECT, FAILURE, INIT, Frame
from trainkit.runtime.local.wire.messages import Reconnect, Reconnected, StartActor, WorkerSpec
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import Handle, Packed, present

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node


_NODE = 0
"""Its own number, among those of processes."""


class _KeptActor:
    """A handle to an actor, kept open; to its next process too, if it is made anew."""

    def __init__(self, node: Node, endpoint: ActorEndpoint, worker_id: int | None) -> None:
        self.kind = endpoint.kind
        self._node = node
        self._worker_id = worker_id or 0
        self._given_up = False
        record = node.worker_table.restarts.record(self._worker_id)
        self._life = 0 if record is None else record.restarts
        self._connect(socket.socket(fileno=endpoint.peer.sock.detach()))

    def _connect(self, sock: socket.socket) -> None:
        self._conn = self._node.connection(sock, lambda _: None, self._closed)

    def _closed(self) -> None:
        restarts = self._node.worker_table.restarts
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

    def __init__(self, node: Node, promise: PromiseReceiver) -> None:
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
    if isinstance(handle, ActorEndpoint):
        return _KeptActor(node, handle, actor)
    if isinstance(handle, PromiseReceiver):
        return _KeptPromise(node, handle)
    return handle


def drop(body: Packed) -> None:
    """Close what `kept` holds open."""
    handle: Any
    for handle in body.handles:
        if isinstance(handle, (_KeptActor, _KeptPromise)):
            handle.drop()


_GRACE_S = 2.0
"""So long after a restart the actor is kept for those who were connected to the process before."""
_EARLY_S = 1.0
"""A process that dies sooner has died early."""

Answer = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class RestartRecord:
    """An actor that can be made anew.

    Attributes:
        owner: number of the process that asked for it.
        memo: the body of its first frame.
        restarts: how often it has been made anew.
        spec: of its process; None until the first one starts.
        keeper: the node's own connection to it.
        let_go: its owner needs it no more.
        owner_is_back: its owner is connected to the present process.
        waiting: who has found the connection closed before the node has seen the death: its number,
            the end of the new connection, and where the answer goes.
    """

    owner: int
    memo: Packed
    max_restarts: int
    restarts: int = 0
    spec: WorkerSpec | None = None
    keeper: Connection | None = None
    let_go: bool = False
    owner_is_back: bool = False
    last_exit: ExitRecord = field(default_factory=ExitRecord)
    started_s: float = 0.0
    early_deaths: int = 0
    waiting: list[tuple[int, Descriptor, Answer]] = field(default_factory=list)


class Restarts:
    """All actors that can be made anew.

    Args:
        node: whose loop it lives in.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._records: dict[int, RestartRecord] = {}

    def record(self, worker_id: int) -> RestartRecord | None:
        """What is kept of a living actor; None for one that is never made anew."""
        return self._records.get(worker_id)

    def life_of(self, worker_id: int) -> int | None:
        """How often an actor has been made anew; None for one that never is."""
        record = self._records.get(worker_id)
        return None if record is None else record.restarts

    def remember(self, client: int, message: StartActor, body: Packed) -> None:
        """Keep what it takes to make the actor of `message` anew, if it asks for that."""
        memo = message.memo
        if memo is not None:
            packed_call = Packed(memo.payload, body.buffers, body.handles[1:], memo.stored)
            self._records[message.worker_id] = RestartRecord(
                client, kept(self._node, packed_call, memo.actors), memo.max_restarts
            )

    def started(self, spec: WorkerSpec) -> None:
        """A process is being made for `spec`."""
        record = self._records.get(spec.worker_id)
        if record is not None:
            record.spec, record.started_s = spec, SYSTEM.monotonic()

    def revive(self, worker: WorkerRecord, exit_: ExitRecord) -> ExitRecord | None:
        """Make the actor anew whose process has ended, with all that it holds.

        Returns:
            None if that is done; else how the actor has ended for good.

        Raises:
            OSError, TrainkitError: there is no descriptor left for it; it can be tried again.
        """
        record = self._records.get(worker.worker_id)
        if record is None or record.spec is None:
            return exit_
        left = restart_policy.restarts_left(record.max_restarts, record.restarts)
        if not restart_policy.should_restart(exit_, left):
            return exit_
        ours, theirs = socket.socketpair()
        self._restart(record, record.spec, worker, exit_, ours, Descriptor(theirs.detach()))
        return None

    def _restart(
        self,
        record: RestartRecord,
        spec: WorkerSpec,
        worker: WorkerRecord,
        exit_: ExitRecord,
        ours: socket.socket,
        theirs: Descriptor,
    ) -> None:
        early = SYSTEM.monotonic() - record.started_s < _EARLY_S
        record.early_deaths = record.early_deaths + 1 if early else 0
        delay_s = restart_policy.restart_delay_s(record.early_deaths)
        allocation = worker.allocation
        if allocation is None:
            raise TypeError(f"{worker.name} is no actor: it holds nothing")
        self._end_keeper(record)
        record.keeper = self._node.connection(ours, lambda _: None, lambda: None)
        record.keeper.send(INIT, 0, record.memo)
        self._node.worker_table.start(
            spec._replace(serial=self._node.worker_table.next_serial(), restarts=record.restarts + 1),
            theirs,
            owner=worker.owner,
            placement=worker.placement,
            allocation=allocation,
            ledger_group=worker.ledger_group,
            delay_s=delay_s,
            registration=worker.registration,
            class_name=worker.class_name,
        )
        worker.allocation = None
        record.restarts += 1
        record.last_exit = exit_
        record.owner_is_back = False
        waiting, record.waiting = record.waiting, []
        for client, end, answer in waiting:
            self._join(spec.worker_id, record, client, end, answer)
        self._node.after(delay_s + _GRACE_S, functools.partial(self._settle, record))

    def ended(self, worker_id: int, exit_: ExitRecord) -> None:
        """Forget an actor that has ended for good, or never started."""
        record = self._records.pop(worker_id, None)
        if record is not None:
            self._end_keeper(record)
            drop(record.memo)
            waiting, record.waiting = record.waiting, []  # their connections close with the last mention
            for _, _, answer in waiting:
                answer(exit_)

    def reconnect(self, client: int, message: Reconnect, end: Descriptor, answer: Answer) -> None:
        """Connect a holder whose connection closed to the actor's next process, or say how it ended."""
        worker = self._node.worker_table.settled(message.worker_id)  # its process may have said that it ends
        record = self._records.get(message.worker_id)
        if record is None:
            self._node.worker_table.inquire(message.worker_id, answer)
        elif message.life >= record.restarts and worker is not None and self._node.worker_table.lives(worker):
            answer(lost_connection(worker))
        elif message.life >= record.restarts:
            record.waiting.append((client, end, answer))
        else:
            self._join(message.worker_id, record, client, end, answer)

    def _join(
        self, worker_id: int, record: RestartRecord, client: int, end: Descriptor, answer: Answer
    ) -> None:
        worker = self._node.worker_table.worker(worker_id)
        if record.keeper is not None and not record.keeper.closed:
            # Over the keeper, so that it comes before the keeper's end.
            try_send(record.keeper, CONNECT, 0, Packed(b"", (), [end]))
        elif worker is not None:
            introduce(worker, end)
        answer(Reconnected(record.restarts, record.last_exit))
        if client == record.owner:
            record.owner_is_back = True
            self._settle(record)

    def let_go(self, worker_id: int) -> None:
        """The owner of an actor needs it no more."""
        record = self._records.get(worker_id)
        if record is not None:
            record.let_go = True
            self._settle(record)

    def _settle(self, record: RestartRecord) -> None:
        """End the keeper when others hold the actor, or nobody does any more."""
        keeper = record.keeper
        needed = not (record.owner_is_back or record.let_go)
        if keeper is None or needed or SYSTEM.monotonic() < record.started_s + _GRACE_S:
            return
        if keeper.has_backlog:  # its process has yet to read what it is made with
            self._node.after(_GRACE_S, functools.partial(self._settle, record))
            return
        self._end_keeper(record)

    def _end_keeper(self, record: RestartRecord) -> None:
        keeper, record.keeper = record.keeper, None
        if keeper is not None:
            if not keeper.closed:
                self._node.forget(keeper)
            keeper.close()
