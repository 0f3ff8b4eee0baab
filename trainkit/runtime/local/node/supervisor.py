"""Supervisor of the workers, which kills workers, reports how workers ended, and restarts actors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from trainkit.errors import TrainkitError
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.loop import Loop
from trainkit.runtime.local.node.restarts import Restarts
from trainkit.runtime.local.node.workers import WorkerProcesses, is_alive, lost_connection
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.local.wire.messages import Cancel, QueryExit, Reconnect, StartActor
from trainkit.runtime.restart_policy import ExitRecord

_RETRY_S = 0.2
"""Interval between attempts to restart an actor while the node has no free file descriptor."""


@dataclass(eq=False)
class Supervisor:
    """Supervisor that kills workers, reports how workers ended, and restarts actors.

    Args:
        loop: the node's event loop.
        table: the living workers.
        queue: the waiting requests.
        processes: object that starts and signals the processes of the workers.
        restarts: the restartable actors.
        publish: delivers an event.
    """

    _loop: Loop
    _table: records.WorkerTable
    _queue: records.RequestQueue
    _processes: WorkerProcesses
    _restarts: Restarts
    _publish: records.Publish

    def kill(
        self, worker_id: int, reason: str, then: Callable[[ExitRecord], None], restart: bool = False
    ) -> None:
        """Kill a worker, and call `then` when the worker is dead.

        If `restart` is True, the worker's actor may be restarted.
        """
        worker = self._table.get(worker_id)
        if worker is None:
            # If `restart` is True, the queued request of a restartable actor that has no process yet stays in
            # the queue.
            if not (restart and self._restarts.record(worker_id)):
                self._queue.withdraw(worker_id)
            exits = self._table.exits
            then(exits.get(worker_id, ExitRecord()))
            return
        worker.may_restart = restart and (worker.may_restart or not worker.ending)
        worker.ending = worker.ending or reason
        worker.inquiries.append(then)
        self._processes.kill(worker)

    def cancel(self, message: Cancel) -> None:
        """Cancel a call of a worker, as soon as the worker has started."""
        worker = self._table.get(message.worker_id)
        if worker is not None:
            self._processes.cancel(worker, message)
        elif message.worker_id in self._queue:
            self._processes.cancel_early(message)

    def may_leave(self, serial: int, introduced: int) -> bool:
        """Return True if no connection is on its way to an actor without handles, so that the actor may
        end.
        """
        worker = self._table.by_serial(serial)
        if worker is None:
            return True
        if worker.introduced == introduced:
            worker.ending = worker.ending or "its last handle is gone"
            return True
        return False

    def departs(self, serial: int, stays: bool, reason: str) -> None:
        """Record that a worker ends cleanly.

        The worker's actor counts as ended even if the process still sends results.
        """
        worker = self._table.by_serial(serial)
        if worker is None:
            return
        worker.departs = True
        if worker.is_actor:
            worker.ending = worker.ending or reason
        if stays and worker.is_actor:
            self._end(worker, self._processes.exit_record(worker, 0))
            worker.is_actor = False
            self._table.rename(worker, -worker.serial)

    def query_exit(self, message: QueryExit, answer: records.Answer) -> None:
        """Answer with a worker's exit record, once the worker has ended.

        A client asks for the exit record because its connection to the worker was closed. If the worker is
        alive, the answer is an error: the worker had no descriptor left for the connection.
        """
        worker = self._table.settled(message.worker_id)
        exits = self._table.exits
        if worker is not None and is_alive(worker):
            answer(lost_connection(worker))
        elif worker is not None:
            worker.inquiries.append(answer)
        elif message.worker_id in exits:
            answer(exits[message.worker_id])
        elif not self._queue.inquire(message.worker_id, answer):
            answer(exits.unknown())

    def reconnect(self, client: int, message: Reconnect, end: Descriptor, answer: records.Answer) -> None:
        """Connect a client whose connection closed to the actor's next process, or
        answer how the actor ended.
        """
        if not self._restarts.reconnect(client, message, end, answer):
            self.query_exit(QueryExit(message.worker_id), answer)

    def worker_exited(self, event: records.WorkerExited) -> None:
        """Kill or transfer the workers that an ended worker owned, and restart the ended
        worker's actor if allowed.
        """
        worker = event.worker
        for orphan in self._table.all():
            if orphan.owner != worker.serial:
                continue
            if not event.in_order:
                reason = f"its owner {worker.name} (pid {worker.pid}) ended"
                self.kill(orphan.worker_id, reason, lambda _: None)
            elif orphan.is_actor:  # an actor lives as long as its handles, so it may outlive its owner
                orphan.owner = event.heir
                self._restarts.let_go(orphan.worker_id)
        self._restart_or_end(worker, event.exit_)

    def _restart_or_end(self, worker: records.WorkerRecord, exit_: ExitRecord) -> None:
        try:
            end = self._restarts.restart(worker, exit_)
        except (OSError, TrainkitError) as error:  # no descriptor is left, so the restart is tried later
            self._restarts.postponed(worker, str(error))
            self._table.keep(worker)
            worker.pid, worker.restarts = None, worker.restarts or 1
            self._loop.after(_RETRY_S, functools.partial(self._try_again, worker, exit_))
            return
        if end is not None:
            self._end(worker, end)
        else:
            _answer_inquiries(worker, exit_)

    def _try_again(self, worker: records.WorkerRecord, exit_: ExitRecord) -> None:
        self._restart_or_end(worker, worker.exit_as_ordered() if worker.ending else exit_)

    def _end(self, worker: records.WorkerRecord, exit_: ExitRecord) -> None:
        if worker.is_actor:
            self._table.add_ended(records.actor_row(worker), exit_)
        # If the worker's next process could not be started, the worker is already removed.
        self._table.remove(worker.worker_id)
        self._end_id(records.WorkerEnded(worker.worker_id, exit_, worker))
        _answer_inquiries(worker, exit_)

    def request_refused(self, event: records.RequestRefused) -> None:
        """Record the exit of a worker whose request was refused."""
        request = event.request
        if isinstance(request.start, StartActor):
            self._table.add_ended(records.pending_row(request.start), event.exit_)
        self.never_started(request.key, event.exit_)

    def never_started(self, worker_id: int, exit_: ExitRecord) -> None:
        """Record the exit of a worker that was never started."""
        self._processes.forget_early(worker_id)
        self._end_id(records.WorkerEnded(worker_id, exit_))

    def _end_id(self, event: records.WorkerEnded) -> None:
        self._table.exits[event.worker_id] = event.exit_
        self._publish(event)


def _answer_inquiries(worker: records.WorkerRecord, exit_: ExitRecord) -> None:
    inquiries, worker.inquiries = worker.inquiries, []
    for answer in inquiries:
        answer(exit_)
