"""Named and detached actors of a session.

Handles keep other actors alive; a detached actor is kept alive by a connection of the node. A process that
looks up an actor by name may send one end of a new connection with its request. The node forwards this end of
the connection to the actor's process as soon as the process exists.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from trainkit.errors import ConfigError
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.restarts import Restarts
from trainkit.runtime.local.node.workers import introduce
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.local.wire.messages import FindActor, Found, NotFound, StartActor
from trainkit.runtime.specs import taken_message


class NamedActor:
    """Named or detached actor.

    Attributes:
        waiting: connections that are sent to the actor's process as soon as the process has started.
        hold: the node's end of the connection that keeps a detached actor alive.
    """

    def __init__(self, found: Found, namespace: str, name: str, detached: bool) -> None:
        self.found = found
        self.namespace = namespace
        self.name = name
        self.detached = detached
        self.waiting: list[Descriptor] = []
        self.hold: socket.socket | None = None


class NamedActors:
    """Named and detached actors of a session.

    Args:
        table: the living workers.
        restarts: the restartable actors.
        namespace: the session's namespace.
        publish: delivers an event.
    """

    def __init__(
        self, table: records.WorkerTable, restarts: Restarts, namespace: str, publish: records.Publish
    ) -> None:
        self._table = table
        self._restarts = restarts
        self._namespace = namespace
        self._publish = publish
        self._actors: dict[int, NamedActor] = {}
        self._ids: dict[tuple[str, str], int] = {}
        """Ids of the actors that have a name, by namespace and name."""

    def register(self, message: StartActor, answer: records.Answer) -> bool:
        """Register an actor and return True.

        If the requested name is taken, answer with the actor that has the name, or with
        an error, and return False.
        """
        wanted = message.registration
        if wanted is None or message.interface is None:
            return True
        namespace = wanted.namespace or self._namespace
        holder = self._called(namespace, wanted.name)
        if holder is not None:
            answer(self._found(holder) if wanted.get_if_exists else ConfigError(self._taken(holder)))
            return False
        conduct = message.conduct
        retries, in_order = conduct.max_task_retries, conduct.in_order
        found = Found(message.worker_id, message.name, message.interface, None, retries, in_order)
        self._actors[message.worker_id] = NamedActor(found, namespace, wanted.name, wanted.detached)
        self._ids[namespace, wanted.name] = message.worker_id
        answer(None)
        return True

    def find(self, message: FindActor, conns: Sequence[Descriptor], answer: records.Answer) -> None:
        """Answer with the actor that has the requested name, and send `conns` to this actor.

        Answer `NotFound` if no actor has the name.
        """
        namespace = message.namespace or self._namespace
        actor = self._called(namespace, message.name)
        if actor is None or (message.detached and not actor.detached):
            answer(NotFound(namespace, sorted(name for space, name in self._ids if space == namespace)))
            return
        for conn in conns:
            self._connect(actor, conn)
        answer(self._found(actor))

    def worker_started(self, event: records.WorkerStarted) -> None:
        """Send the waiting connections to an actor's newly started process."""
        actor = self._actors.get(event.worker.worker_id)
        if actor is None:
            return
        if actor.detached:
            if actor.hold is not None:
                actor.hold.close()
            actor.hold, theirs = socket.socketpair()
            actor.waiting.append(Descriptor(theirs.detach()))
        waiting, actor.waiting = actor.waiting, []
        for conn in waiting:
            introduce(event.worker, conn)

    def worker_ended(self, event: records.WorkerEnded) -> None:
        """Free the name of an actor that has ended for good."""
        actor = self._actors.pop(event.worker_id, None)
        if actor is None:
            return
        if self._ids.get((actor.namespace, actor.name)) == event.worker_id:
            del self._ids[actor.namespace, actor.name]
        if actor.hold is not None:
            actor.hold.close()
        if actor.detached and not self.has_detached():
            self._publish(records.DetachedActorsEnded())

    def has_detached(self) -> bool:
        """Return whether a detached actor exists."""
        return any(actor.detached for actor in self._actors.values())

    def _called(self, namespace: str, name: str) -> NamedActor | None:
        worker_id = self._ids.get((namespace, name))
        if worker_id is None:
            return None
        worker = self._table.get(worker_id)
        if worker is not None and worker.ending and not worker.may_restart:
            del self._ids[namespace, name]  # the actor is being killed, so lookups must not find it
            return None
        return self._actors[worker_id]

    def _found(self, actor: NamedActor) -> Found:
        record = self._restarts.record(actor.found.worker_id)
        return actor.found._replace(life=None if record is None else record.restarts)

    def _connect(self, actor: NamedActor, conn: Descriptor) -> None:
        worker = self._table.get(actor.found.worker_id)
        if worker is None:
            actor.waiting.append(conn)
        else:
            introduce(worker, conn)

    def _taken(self, holder: NamedActor) -> str:
        worker = self._table.get(holder.found.worker_id)
        where = f"pid {worker.pid}" if worker is not None and worker.pid else "which waits to be started"
        return taken_message(holder.name, holder.namespace, f"{holder.found.label} ({where})")
