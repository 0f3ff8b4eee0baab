"""Restarts of actors whose process died. The node keeps the constructor calls of these actors.

    process dies ─▶ restart() ─▶ a new process, whose first connection is the node's: the keeper
                                    keeper ──INIT, then the holders' new connections──▶ process

An actor lives as long as a process is connected to it. So the node keeps its own connection to a restarted
actor, called the keeper. The node closes the keeper when the processes with handles have had time to
reconnect, and the actor's owner has reconnected or released the actor.

The node never unpacks the values of a constructor call. The node can send shared memory in the call any
number of times. A handle of a different actor in the call is an open connection, over which the node requests
a further connection for each restart. A pending reference in the call is also an open connection, and the
node uses it in the same way until the reference's value arrives. When the value has arrived, the node keeps
it for later restarts.
"""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ObjectLostError
from trainkit.runtime import restart_policy
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.loop import Loop, try_send
from trainkit.runtime.local.node.workers import introduce, is_alive, lost_connection
from trainkit.runtime.local.wire.channel import (
    ACTOR,
    CONNECT,
    FAILURE,
    HANDLE_KINDS,
    INIT,
    PROMISE,
    RECONNECTING_ACTOR,
    Connection,
    Descriptor,
    Frame,
    send_answer,
)
from trainkit.runtime.local.wire.messages import Reconnect, Reconnected, StartActor, Waits, WorkerSpec
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import Handle, Packed, present

_GRACE_S = 2.0
"""Time for which the node keeps a restarted actor alive, so that processes with handles can reconnect."""
_EARLY_S = 1.0
"""Lifetime of a process below which its death counts as early; an early death delays the next restart."""
_NODE = 0
"""Number of the node among the session's processes."""


@dataclass(slots=True, eq=False)
class RestartRecord:
    """Record of a restartable actor.

    Attributes:
        owner: number of the process that requested the actor.
        call: content of the actor's first message, with the constructor's arguments.
        restarts: number of restarts so far.
        spec: specification of the actor's process; None until the first process starts.
        keeper: the node's own connection to the actor, which keeps the actor alive after a restart.
        let_go: True once the owner has released the actor.
        owner_is_back: True if the owner is connected to the actor's current process.
        waiting: clients that noticed the end of the actor's process before the node noticed it. Each entry
            has the client's number, the end of its new connection, and the function that sends the answer.
    """

    owner: int
    call: Packed
    max_restarts: int
    restarts: int = 0
    spec: WorkerSpec | None = None
    keeper: Connection | None = None
    let_go: bool = False
    owner_is_back: bool = False
    last_exit: ExitRecord = field(default_factory=ExitRecord)
    started_s: float = 0.0
    early_deaths: int = 0
    waiting: list[tuple[int, Descriptor, records.Answer]] = field(default_factory=list)


class Restarts:
    """Restartable actors of the session.

    Args:
        loop: the node's event loop.
        table: the living workers.
        start: `WorkerProcesses.start`.
        notify: function that sends a message to the process with a given number.
    """

    def __init__(
        self, loop: Loop, table: records.WorkerTable, start: Callable[..., None], notify: records.Notify
    ) -> None:
        self._loop = loop
        self._table = table
        self._start = start
        self._notify = notify
        self._records: dict[int, RestartRecord] = {}

    def record(self, worker_id: int) -> RestartRecord | None:
        """Return the record of a living restartable actor; None for any other actor."""
        return self._records.get(worker_id)

    def remember(self, client: int, message: StartActor, body: Packed) -> None:
        """Keep the constructor call in `message` if the actor is restartable."""
        made = message.constructor_call
        if made is not None:
            call = Packed(made.payload, body.buffers, body.handles[1:], made.stored)
            kept = self._kept(call, made.actors)
            self._records[message.worker_id] = RestartRecord(client, kept, made.max_restarts)

    def worker_started(self, event: records.WorkerStarted) -> None:
        """Record the start of an actor's first process."""
        record = self._records.get(event.worker.worker_id)
        if record is not None and record.spec is None:
            record.spec, record.started_s = event.worker.spec, SYSTEM.monotonic()

    def restart(self, worker: records.WorkerRecord, exit_: ExitRecord) -> ExitRecord | None:
        """Restart the actor whose process has ended, with the same resources.

        Returns:
            None if the actor was restarted; the exit record of its last process if the actor has ended for
            good.

        Raises:
            OSError, TrainkitError: no descriptor is left for the restart; the caller may try again.
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
        worker: records.WorkerRecord,
        exit_: ExitRecord,
        ours: socket.socket,
        theirs: Descriptor,
    ) -> None:
        now = SYSTEM.monotonic()
        record.early_deaths = record.early_deaths + 1 if now - record.started_s < _EARLY_S else 0
        delay_s = restart_policy.restart_delay_s(record.early_deaths)
        allocation = worker.allocation
        if allocation is None:
            raise TypeError(f"{worker.name} is not an actor, as it has no resources")
        self._end_keeper(record)
        record.keeper = self._loop.connection(ours, lambda _: None, lambda: None)
        record.keeper.send(INIT, 0, record.call)
        spec = spec._replace(serial=self._table.next_serial(), restarts=record.restarts + 1)
        self._start(
            spec,
            theirs,
            owner=worker.owner,
            allocation=allocation,
            ledger_group=worker.ledger_group,
            delay_s=delay_s,
        )
        worker.allocation = None
        if (started := self._table.get(spec.worker_id)) is not None:
            started.held_s = worker.held_s
        record.spec, record.started_s = spec, now
        record.restarts += 1
        record.last_exit = exit_
        record.owner_is_back = False
        waiting, record.waiting = record.waiting, []
        for client, end, answer in waiting:
            self._join(spec.worker_id, record, client, end, answer)
        self._loop.after(delay_s + _GRACE_S, functools.partial(self._settle, record))

    def postponed(self, worker: records.WorkerRecord, why: str) -> None:
        """Report to the driver, once after each death, that an actor can't be restarted yet."""
        if worker.pid is not None:
            text = f"{worker.name} (pid {worker.pid}) can't be restarted yet and waits: {why}"
            self._notify(records.DRIVER, Waits(text))

    def worker_ended(self, event: records.WorkerEnded) -> None:
        """Drop the record of an actor that has ended for good, or never started."""
        record = self._records.pop(event.worker_id, None)
        if record is not None:
            self._end_keeper(record)
            _drop(record.call)
            waiting, record.waiting = record.waiting, []  # dropping the entries closes their connections
            for _, _, answer in waiting:
                answer(event.exit_)

    def reconnect(self, client: int, message: Reconnect, end: Descriptor, answer: records.Answer) -> bool:
        """Connect a client whose connection closed to the actor's next process.

        Return False if the actor can't be restarted.
        """
        # The process may have announced its end in a message that was not read yet.
        worker = self._table.settled(message.worker_id)
        record = self._records.get(message.worker_id)
        if record is None:
            return False
        if message.life < record.restarts:
            self._join(message.worker_id, record, client, end, answer)
        elif worker is not None and is_alive(worker):
            answer(lost_connection(worker))
        else:
            record.waiting.append((client, end, answer))
        return True

    def _join(
        self, worker_id: int, record: RestartRecord, client: int, end: Descriptor, answer: records.Answer
    ) -> None:
        worker = self._table.get(worker_id)
        if record.keeper is not None and not record.keeper.closed:
            # The connection is sent over the keeper, so that it arrives before the keeper closes.
            try_send(record.keeper, CONNECT, 0, Packed(b"", (), [end]))
        elif worker is not None:
            introduce(worker, end)
        answer(Reconnected(record.restarts, record.last_exit))
        if client == record.owner:
            record.owner_is_back = True
            self._settle(record)

    def let_go(self, worker_id: int) -> None:
        """Record that an actor's owner has released the actor."""
        record = self._records.get(worker_id)
        if record is not None:
            record.let_go = True
            self._settle(record)

    def _settle(self, record: RestartRecord) -> None:
        """Close the keeper if the owner has reconnected or released the actor and the grace time is over."""
        keeper = record.keeper
        needed = not (record.owner_is_back or record.let_go)
        if keeper is None or needed or SYSTEM.monotonic() < record.started_s + _GRACE_S:
            return
        if keeper.has_backlog:  # the process has not read the constructor call yet
            self._loop.after(_GRACE_S, functools.partial(self._settle, record))
            return
        self._end_keeper(record)

    def _end_keeper(self, record: RestartRecord) -> None:
        keeper, record.keeper = record.keeper, None
        if keeper is not None:
            self._loop.end(keeper)

    def _kept(self, body: Packed, actors: Sequence[int | None] = ()) -> Packed:
        """Return a received message body in a form that can be sent repeatedly.

        Args:
            body: received body, whose handles are unusable afterwards.
            actors: id of the actor of each handle; None for a handle whose actor is unknown.
        """
        known = itertools.chain(actors, itertools.repeat(None))
        handles = [self._kept_handle(*pair) for pair in zip(body.handles, known, strict=False)]
        return Packed(body.payload, body.buffers, handles, body.stored)

    def _kept_handle(self, handle: Handle, actor: int | None) -> Handle:
        if not isinstance(handle, _Received):
            return handle
        if handle.kind == PROMISE:
            return _KeptPromise(self._loop, handle, self._kept)
        record = None if actor is None else self._records.get(actor)
        reconnect = functools.partial(self.reconnect, _NODE)
        life = 0 if record is None else record.restarts
        return _KeptActor(self._loop, handle, Reconnect(actor or 0, life), reconnect)


class _Received:
    """Received handle of an actor or a pending reference, which the node only forwards."""

    def __init__(self, kind: int, fd: int) -> None:
        self.kind = kind
        self._end = Descriptor(fd)

    def open_fd(self) -> int:
        return self._end.take()


def keep_handles() -> None:
    """Make this process represent received handles of actors and pending
    references by `_Received` objects.
    """
    for kind in (ACTOR, RECONNECTING_ACTOR, PROMISE):
        HANDLE_KINDS[kind] = functools.partial(_Received, kind)


class _KeptActor:
    """Handle of an actor that stays usable across the actor's restarts.

    Args:
        loop: the node's event loop.
        handle: the received handle.
        known_as: message for reconnecting, with the actor's id and the number of its restarts.
        reconnect: `Restarts.reconnect`, called with the node as the client.
    """

    def __init__(
        self, loop: Loop, handle: _Received, known_as: Reconnect, reconnect: Callable[..., bool]
    ) -> None:
        self.kind = handle.kind
        self._loop = loop
        self._known_as = known_as
        self._reconnect = reconnect
        self._given_up = False
        self._connect(socket.socket(fileno=handle.open_fd()))

    def _connect(self, sock: socket.socket) -> None:
        self._conn = self._loop.connection(sock, lambda _: None, self._closed)

    def _closed(self) -> None:
        if self._given_up:
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # no descriptor is left, so other processes must keep that actor alive
            return
        if self._reconnect(self._known_as, Descriptor(theirs.detach()), self._connected):
            self._connect(ours)
        else:  # the actor has ended for good
            ours.close()

    def _connected(self, answer: Any) -> None:
        self._given_up = not isinstance(answer, Reconnected)
        if isinstance(answer, Reconnected):
            self._known_as = self._known_as._replace(life=answer.life)

    def open_fd(self) -> int:
        # the actor may be dead by now; the receiver then asks the node for the reason
        return self._conn.open_fd()

    def drop(self) -> None:
        self._given_up = True
        self._loop.end(self._conn)


class _KeptPromise:
    """Received reference to a pending value. Once the value has arrived, this object keeps the value.

    Args:
        loop: the node's event loop.
        handle: the received handle.
        kept: function that converts a value to a form that can be sent repeatedly.
    """

    def __init__(self, loop: Loop, handle: _Received, kept: Callable[[Packed], Packed]) -> None:
        self.kind = handle.kind
        self._loop = loop
        self._kept = kept
        self._answer: Frame | None = None
        self._waiting: list[Connection] = []
        sock = socket.socket(fileno=handle.open_fd())
        self._conn = loop.connection(sock, self._arrived, self._never_arrives)

    def _arrived(self, frame: Frame) -> None:
        try:
            for handle in frame.body.handles:
                present(handle)
        except ObjectLostError as error:
            frame = frame._replace(kind=FAILURE, body=pack_failure(error, "trainkit"))
        self._answer = frame._replace(body=self._kept(frame.body))
        for conn in self._waiting:
            self._tell(conn, self._answer)
        self._waiting.clear()

    def _tell(self, conn: Connection, answer: Frame) -> None:
        try:
            # the receiver closes the connection
            send_answer(conn, answer.kind, answer.body, answer.call_id, "trainkit")
        except OSError:  # the process that should receive the answer has ended
            self._loop.end(conn)

    def _never_arrives(self) -> None:
        for conn in self._waiting:
            # Processes that wait for the value turn the closed connection into an error.
            self._loop.end(conn)
        self._waiting.clear()

    def open_fd(self) -> int:
        further = None if self._answer is not None else self._conn.open_further()
        if further is not None:
            return further
        ours, theirs = socket.socketpair()
        self._serve(ours)
        return theirs.detach()

    def _serve(self, sock: socket.socket) -> None:
        conn = self._loop.connection(sock, self._asked, lambda: None)
        if self._answer is not None:
            self._tell(conn, self._answer)
        elif self._conn.closed:
            self._loop.end(conn)
        else:
            self._waiting.append(conn)

    def _asked(self, frame: Frame) -> None:
        for handle in frame.body.handles:
            if isinstance(handle, Descriptor):
                self._serve(socket.socket(fileno=handle.take()))

    def drop(self) -> None:
        self._loop.end(self._conn)
        self._never_arrives()
        # The answer is dropped explicitly, because callbacks may keep `self` alive.
        answer, self._answer = self._answer, None
        if answer is not None:
            _drop(answer.body)


def _drop(body: Packed) -> None:
    """Close the connections of the handles in `body`."""
    handle: Any
    for handle in body.handles:
        if isinstance(handle, (_KeptActor, _KeptPromise)):
            handle.drop()
