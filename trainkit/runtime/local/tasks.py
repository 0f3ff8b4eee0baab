"""Tasks of one shape: a queue of calls, and the processes leased from the node to run them.

A lease holds its task's resources from the node's grant until it is returned. It is kept while there
are tasks to run, and afterwards until somebody else wants what it holds, so that the next task of the
same shape starts at once.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import TrainkitError, WorkerDiedError
from trainkit.runtime import supervise
from trainkit.runtime.local.channel import CALL, VALUE, Descriptor, Frame
from trainkit.runtime.local.messages import Lease as LeaseRequest
from trainkit.runtime.local.messages import ReturnLease
from trainkit.runtime.local.nodelink import death
from trainkit.runtime.local.refs import LOST, LocalRef, Peer
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import Placement

if TYPE_CHECKING:
    from trainkit.runtime.local.client import LocalEngine


@dataclass(slots=True, eq=False)
class Task:
    """A call that waits for a process, or runs in one."""

    name: str
    body: Packed
    refs: list[LocalRef]
    retries_left: int


class Lease(Peer):
    """The connection to a leased process; runs one task at a time."""

    def __init__(self, sock: socket.socket, pool: TaskPool, worker_id: int) -> None:
        super().__init__(sock, "task", worker_id)
        self.pool = pool
        self.task: Task | None = None
        self.wanted_back = False

    def run(self, task: Task) -> None:
        """Send `task`, whose answers then come over this connection."""
        self.task, self.name = task, task.name
        for ref in task.refs:
            ref.peer = self
        self.request(CALL, task.body, task.refs)

    def on_frame(self, frame: Frame) -> None:
        super().on_frame(frame)
        if not self.pending:
            self.task = None
            self.pool.finished(self)

    def on_close(self) -> None:
        self.sock.close()
        task, self.task = self.task, None
        self.pool.lost(self, task)


class TaskPool:
    """Runs tasks that need the same placement.

    All state is guarded by one lock; tasks are sent without holding it. While tasks are queued, some
    lease is asked for or busy, or the whole queue is failed: nothing is left to wait for ever.
    """

    def __init__(self, engine: LocalEngine, placement: Placement) -> None:
        self._engine = engine
        self._placement = placement
        self._lock = threading.RLock()
        self._queue: deque[Task] = deque()
        self._idle: list[Lease] = []
        self._busy: set[Lease] = set()
        self._asked: set[LocalRef] = set()

    def submit(self, task: Task, watch: bool = False) -> None:
        """Run `task` as soon as there is a process for it.

        Args:
            task: its references have no peer yet.
            watch: somebody may be waiting for it already, without a connection to read.
        """
        with self._lock:
            lease = self._idle.pop() if self._idle else None
            if lease is None:
                self._queue.append(task)
                for busy in self._busy:
                    self._engine.pump.watch(busy, self)
            else:
                self._busy.add(lease)
        if lease is None:
            try:
                self._ask()
            except OSError:  # no descriptor left: the caller is told, so it must not run all the same
                with self._lock:
                    if task in self._queue:
                        self._queue.remove(task)
                raise
            return
        if watch:
            self._engine.pump.watch(lease, self)
        lease.run(task)

    def _ask(self) -> None:
        """Ask the node for as many leases as there are tasks for; at most what could ever run at once."""
        most = self._engine.most_tasks(self._placement)
        asked: list[tuple[Lease, LocalRef]] = []
        with self._lock:
            while len(self._asked) < len(self._queue) and len(self._asked) + len(self._busy) < most:
                ours, theirs = socket.socketpair()
                lease = Lease(ours, self, self._engine.new_id())
                request = LeaseRequest(
                    lease.worker_id or 0, self._queue[0].name, self._placement, self._engine.surroundings()
                )
                answer = self._engine.link.ask(request, [Descriptor(theirs.detach())])
                self._asked.add(answer)
                asked.append((lease, answer))
        for lease, answer in asked:
            answer.when_done(functools.partial(self._granted, lease, answer))

    def _granted(self, lease: Lease, answer: LocalRef) -> None:
        with self._lock:
            self._asked.discard(answer)
            if answer.kind == VALUE:
                self._busy.add(lease)
        if answer.kind == VALUE:
            self.finished(lease)
        else:  # the node is gone, or the placement group: no other answer would be better
            self.fail(answer.kind, answer.body)

    def fail(self, kind: int, body: Any) -> None:
        """Fail every queued task with an answer that stands for all."""
        with self._lock:
            tasks, self._queue = self._queue, deque()
        for task in tasks:
            for ref in task.refs:
                ref.complete(kind, body)

    def finished(self, lease: Lease) -> None:
        """`lease` has nothing to do: give it the next task, keep it, or return it."""
        task: Task | None = None
        with self._lock:
            give_back = lease.wanted_back or lease.closed
            if self._queue and not give_back:
                task = self._queue.popleft()
                self._engine.pump.watch(lease, self)
            elif not give_back:
                self._busy.discard(lease)
                self._idle.append(lease)
                self._engine.pump.unwatch(lease, self)
        if task is not None:
            lease.run(task)
        elif give_back:
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        with self._lock:
            self._forget(lease)
        lease.close_when_sent()
        self._engine.link.tell(ReturnLease(lease.worker_id or 0))
        self._ask()  # behind those who wanted it

    def _forget(self, lease: Lease) -> None:
        self._busy.discard(lease)
        if lease in self._idle:
            self._idle.remove(lease)
        self._engine.pump.unwatch(lease, self)

    def reclaim(self) -> None:
        """Return what is idle now, and the rest as it becomes idle."""
        with self._lock:
            busy, idle = list(self._busy), list(self._idle)
            for lease in busy:
                lease.wanted_back = True
                self._engine.pump.watch(lease, self)
        for lease in busy:
            lease.try_read()
        for lease in idle:
            self._give_back(lease)

    def listed(self, pids: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """The tasks of this pool as `list_tasks` shows them.

        Args:
            pids: of the leased processes, by their ids as the node lists them.
        """
        with self._lock:
            running = [(lease.worker_id or 0, lease.task.name) for lease in self._busy if lease.task]
            queued = [task.name for task in self._queue]
        common = {"resources": dict(self._placement.resources), "owner_pid": self._engine.pid}
        rows: list[dict[str, Any]] = []
        for worker_id, name in running:
            key = f"{worker_id:016x}"
            pid = pids.get(key)
            state = "PENDING" if pid is None else "RUNNING"  # its process may not be there yet
            rows.append({"worker_id": key, "name": name, "state": state, "pid": pid, **common})
        rows += [
            {"worker_id": None, "name": name, "state": "PENDING", "pid": None, **common} for name in queued
        ]
        return rows

    def close(self) -> None:
        """Drop all leases and fail what is queued; the session is over."""
        with self._lock:
            leases = [*self._busy, *self._idle]
            self._busy.clear()
            self._idle.clear()
        for lease in leases:
            lease.close()
        self.fail(LOST, self._engine.link.gone)

    def lost(self, lease: Lease, task: Task | None) -> None:
        """The process of `lease` is gone: run its task again if that is allowed, else fail it."""
        with self._lock:
            self._forget(lease)
        self._engine.pump.run(lambda: self._settle(lease, task))

    def _settle(self, lease: Lease, task: Task | None) -> None:
        if task is not None and lease.pending:
            self._retry_or_fail(lease, task)
        self._ask()

    def _retry_or_fail(self, lease: Lease, task: Task) -> None:
        try:
            exit_ = self._engine.link.inquest(lease)
        except TrainkitError as error:  # the node is gone, and every process with it
            why = error
            for ref in task.refs:
                ref.complete(LOST, lambda: why)
            self.fail(LOST, lambda: why)
            return
        if supervise.should_retry(exit_, task.retries_left):
            lease.pending.clear()
            task.retries_left -= 1
            for ref in task.refs:
                ref.peer = None
            self.submit(task, watch=True)
            return
        for ref in task.refs:
            ref.complete(LOST, lambda: death(WorkerDiedError, exit_, task.name))
