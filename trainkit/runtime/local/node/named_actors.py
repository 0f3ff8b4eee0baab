"""Named and detached actors of a session.

A detached actor is kept alive by a connection that the node holds, as handles elsewhere keep others.
Whoever finds an actor by its name may send one end of a connection along, which is handed to the actor's
process; if there is none yet, as soon as there is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.runtime.local.node.records import WorkerRecord, introduce
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.local.wire.messages import FindActor, Found, NotFound, StartActor
from trainkit.runtime.local.wire.names import NameTable, taken_message

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node


class NamedActor:
    """A registered actor.

    Attributes:
        waiting: connections for its process, which has not started yet.
        hold: keeps a detached actor alive.
    """

    def __init__(self, found: Found, namespace: str, name: str | None, detached: bool) -> None:
        self.found = found
        self.namespace = namespace
        self.name = name
        self.detached = detached
        self.waiting: list[Descriptor] = []
        self.hold: socket.socket | None = None


class NamedActors:
    """The registered actors of a session.

    Args:
        node: whose loop it lives in.
        namespace: of the session.
        emptied: called when the last detached actor has ended.
    """

    def __init__(self, node: Node, namespace: str, emptied: Callable[[], None]) -> None:
        self._node = node
        self._namespace = namespace
        self._emptied = emptied
        self._names = NameTable()
        self._entries: dict[int, NamedActor] = {}

    def start(
        self,
        client: int,
        message: StartActor,
        first: Descriptor,
        answer: Callable[[Any], None],
        remember: Callable[[], None],
    ) -> None:
        """Register an actor and ask for its process, or tell of the one that has its name.

        Args:
            client: number of the process that asks.
            message: what it asks for.
            first: the actor's first connection.
            answer: sends an answer.
            remember: notes what the actor is made anew with, if it is to be made at all.
        """
        wanted = message.registration
        if wanted is None or message.interface is None:
            remember()
            self._node.stores.start_actor(client, message, first)
            return
        namespace = wanted.namespace or self._namespace
        holder = None if wanted.name is None else self._bearer(namespace, wanted.name)
        if holder is not None:
            if wanted.get_if_exists:
                answer(self._as_it_is_now(holder))
            else:
                answer(ConfigError(self._taken(holder)))
            return
        conduct = message.conduct
        retries, in_order = conduct.max_task_retries, conduct.in_order
        found = Found(message.worker_id, message.name, message.interface, None, retries, in_order)
        entry = NamedActor(found, namespace, wanted.name, wanted.detached)
        self._entries[message.worker_id] = entry
        if wanted.name is not None:
            self._names.give(namespace, wanted.name, message.worker_id)
        answer(None)
        remember()
        self._node.stores.start_actor(client, message, first)

    def _as_it_is_now(self, entry: NamedActor) -> Found:
        life = self._node.worker_table.restarts.life_of(entry.found.worker_id)
        return entry.found._replace(life=life)

    def find(self, message: FindActor, conns: Sequence[Descriptor], answer: Callable[[Any], None]) -> None:
        """Tell of the actor of that name, if there is one, and connect it to `conns`."""
        namespace = message.namespace or self._namespace
        entry = self._bearer(namespace, message.name)
        if entry is None or (message.detached and not entry.detached):
            answer(NotFound(namespace, self._names.known(namespace)))
            return
        for conn in conns:
            self._connect(entry, conn)
        answer(self._as_it_is_now(entry))

    def started(self, worker: WorkerRecord) -> None:
        """The process of an actor has been asked for: hand over the connections that wait for it."""
        entry = self._entries.get(worker.worker_id)
        if entry is None:
            return
        if entry.detached:
            if entry.hold is not None:
                entry.hold.close()
            entry.hold, theirs = socket.socketpair()
            entry.waiting.append(Descriptor(theirs.detach()))
        waiting, entry.waiting = entry.waiting, []
        for conn in waiting:
            introduce(worker, conn)

    def ended(self, worker_id: int) -> None:
        """An actor is dead for good: its name is free."""
        entry = self._entries.pop(worker_id, None)
        if entry is None:
            return
        self._names.release(worker_id)
        if entry.hold is not None:
            entry.hold.close()
        if entry.detached and not self.has_detached():
            self._emptied()

    def has_detached(self) -> bool:
        """Whether there is an actor that outlives its program."""
        return any(entry.detached for entry in self._entries.values())

    def entries(self) -> list[NamedActor]:
        """All registered actors."""
        return list(self._entries.values())

    def _bearer(self, namespace: str, name: str) -> NamedActor | None:
        worker_id = self._names.bearer(namespace, name)
        if worker_id is None:
            return None
        worker = self._node.worker_table.worker(worker_id)
        if (
            worker is not None and worker.ending and not worker.may_restart
        ):  # as good as dead: nobody should meet it any more
            self._names.release(worker_id)
            return None
        return self._entries[worker_id]

    def _connect(self, entry: NamedActor, conn: Descriptor) -> None:
        worker = self._node.worker_table.worker(entry.found.worker_id)
        if worker is None:
            entry.waiting.append(conn)
        else:
            introduce(worker, conn)

    def _taken(self, holder: NamedActor) -> str:
        worker = self._node.worker_table.worker(holder.found.worker_id)
        where = f"pid {worker.pid}" if worker is not None and worker.pid else "which waits to be started"
        return taken_message(holder.name or "", holder.namespace, f"{holder.found.label} ({where})")
