"""Actors that are made anew when their process dies: what of them outlives a process is here, in the node.

    process dies ─▶ revive() ─▶ a new process, whose first connection is the node's: the keeper
                                   keeper ──INIT, then the holders' new connections──▶ process

An actor lives as long as somebody is connected to it. So the keeper stays until those who were have
had time to connect anew, and the one who asked for the actor has, or has let it go.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.runtime import supervise
from trainkit.runtime.local.births import WorkerSpec
from trainkit.runtime.local.channel import Connection, Descriptor
from trainkit.runtime.local.children import Worker, introduce, lost_connection
from trainkit.runtime.local.frames import CONNECT, INIT
from trainkit.runtime.local.loop import try_send
from trainkit.runtime.local.memo import drop, kept
from trainkit.runtime.local.messages import Reconnect, Reconnected, StartActor
from trainkit.runtime.serialize import Packed
from trainkit.runtime.supervise import Exit

if TYPE_CHECKING:
    from trainkit.runtime.local.node import Node

_GRACE_S = 2.0
"""So long after a restart the actor is kept for those who were connected to the process before."""
_EARLY_S = 1.0
"""A process that dies sooner has died early."""

Answer = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class Record:
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
    last_exit: Exit = field(default_factory=Exit)
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
        self._records: dict[int, Record] = {}

    def record(self, worker_id: int) -> Record | None:
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
            self._records[message.worker_id] = Record(
                client, kept(self._node, packed_call, memo.actors), memo.max_restarts
            )

    def started(self, spec: WorkerSpec) -> None:
        """A process is being made for `spec`."""
        record = self._records.get(spec.worker_id)
        if record is not None:
            record.spec, record.started_s = spec, SYSTEM.monotonic()

    def revive(self, worker: Worker, exit_: Exit) -> Exit | None:
        """Make the actor anew whose process has ended, with all that it holds.

        Returns:
            None if that is done; else how the actor has ended for good.

        Raises:
            OSError, TrainkitError: there is no descriptor left for it; it can be tried again.
        """
        record = self._records.get(worker.worker_id)
        if record is None or record.spec is None:
            return exit_
        left = supervise.restarts_left(record.max_restarts, record.restarts)
        if not supervise.should_restart(exit_, left):
            return exit_
        ours, theirs = socket.socketpair()
        self._restart(record, record.spec, worker, exit_, ours, Descriptor(theirs.detach()))
        return None

    def _restart(
        self,
        record: Record,
        spec: WorkerSpec,
        worker: Worker,
        exit_: Exit,
        ours: socket.socket,
        theirs: Descriptor,
    ) -> None:
        early = SYSTEM.monotonic() - record.started_s < _EARLY_S
        record.early_deaths = record.early_deaths + 1 if early else 0
        delay_s = supervise.restart_delay_s(record.early_deaths)
        allocation = worker.allocation
        if allocation is None:
            raise TypeError(f"{worker.name} is no actor: it holds nothing")
        self._end_keeper(record)
        record.keeper = self._node.connection(ours, lambda _: None, lambda: None)
        record.keeper.send(INIT, 0, record.memo)
        self._node.census.start(
            spec._replace(serial=self._node.census.next_serial(), restarts=record.restarts + 1),
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

    def ended(self, worker_id: int, exit_: Exit) -> None:
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
        worker = self._node.census.settled(message.worker_id)  # its process may have said that it ends
        record = self._records.get(message.worker_id)
        if record is None:
            self._node.census.inquire(message.worker_id, answer)
        elif message.life >= record.restarts and worker is not None and self._node.census.lives(worker):
            answer(lost_connection(worker))
        elif message.life >= record.restarts:
            record.waiting.append((client, end, answer))
        else:
            self._join(message.worker_id, record, client, end, answer)

    def _join(self, worker_id: int, record: Record, client: int, end: Descriptor, answer: Answer) -> None:
        worker = self._node.census.worker(worker_id)
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

    def _settle(self, record: Record) -> None:
        """End the keeper when others hold the actor, or nobody does any more."""
        keeper = record.keeper
        needed = not (record.owner_is_back or record.let_go)
        if keeper is None or needed or SYSTEM.monotonic() < record.started_s + _GRACE_S:
            return
        if keeper.has_backlog:  # its process has yet to read what it is made with
            self._node.after(_GRACE_S, functools.partial(self._settle, record))
            return
        self._end_keeper(record)

    def _end_keeper(self, record: Record) -> None:
        keeper, record.keeper = record.keeper, None
        if keeper is not None:
            if not keeper.closed:
                self._node.forget(keeper)
            keeper.close()
