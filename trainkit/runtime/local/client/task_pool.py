"""Task pools. A pool has a queue of tasks with the same placement, and workers leased to run them.

Once the node grants a lease, the lease reserves its tasks' resources until the pool returns it. The pool
keeps a lease while the pool has tasks to run. After the last task, the pool keeps the lease until a different
process needs the resources, so that the next task with the same placement starts at once.
"""

from __future__ import annotations

import functools
import operator
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ObjectLostError, TaskError, TrainkitError, WorkerDiedError
from trainkit.runtime import restart_policy
from trainkit.runtime.engine import Row, task_row
from trainkit.runtime.local.client.actors import ClientParts
from trainkit.runtime.local.client.background import END
from trainkit.runtime.local.client.leases import AHEAD_S, Task, WorkerLease
from trainkit.runtime.local.client.node_client import death
from trainkit.runtime.local.client.refs import LOST, LocalRef, fail
from trainkit.runtime.local.wire.channel import MOST, VALUE, Descriptor, descriptors_explained
from trainkit.runtime.local.wire.messages import Cancel, Kill, RequestLease, ReturnLease
from trainkit.runtime.serialize import Packed, unpack
from trainkit.runtime.signals import InterruptGuard
from trainkit.runtime.specs import Placement

_is_blocked = operator.attrgetter("blocked")
_FUNCTIONS = 256
"""Number of functions whose run time a pool remembers."""


class TaskPool:
    """Pool that runs tasks with the same placement.

    A worker gets one task at a time until the tasks are known to be short. A worker that runs short tasks
    gets about 2 ms of work at once. One lock guards the state of the pool, and is not held while tasks are
    sent. While tasks are queued, at least one lease is requested or busy. If no lease is requested or busy,
    all queued tasks fail, so that no task waits forever.

    Args:
        placement: placement of the pool's tasks.
        most: number of tasks that could run at once if all resources were free.
        parts: objects that all client classes of this process share, such as its connection to the node.
    """

    def __init__(self, placement: Placement, most: int, parts: ClientParts) -> None:
        self._placement = placement
        self._most = most
        self._node, self._background = parts.node, parts.background
        self._waiter, self._codec = parts.waiter, parts.codec
        self._environment = parts.environment
        self._lock = threading.RLock()
        self._queue: deque[Task] = deque()
        self._idle: list[WorkerLease] = []
        self._busy: set[WorkerLease] = set()
        self._asked: set[LocalRef] = set()
        self._expected: set[Task] = set()
        self._each_s: dict[int, float] = {}
        self._retired = False
        self._reclaims = 0

    def expect(self, task: Task) -> None:
        """Register a task that is not in the queue but may be submitted later."""
        task.waits = True
        self._expected.add(task)

    def _no_longer_expect(self, task: Task) -> None:
        task.waits = False
        self._expected.discard(task)

    def made_again(self, task: Task, error: TaskError) -> bool:
        """Retry a task that raised `error` if its options allow it. Return True if the task is retried."""
        if not restart_policy.retries_on(error.cause, task.retry_exceptions):
            with self._lock:
                self._no_longer_expect(task)
            return False
        task.retries_left -= task.retries_left > 0
        self.again([task])
        return True

    def unfinished(self) -> list[Task]:
        """Return the tasks that are not finished, in any order."""
        with self._lock:
            given = [task for lease in self._busy for task in lease.outstanding()]
            return [*given, *self._queue, *(task for task in self._expected if not task.refs[-1].done())]

    def submit(self, task: Task, watch: bool = False) -> None:
        """Run `task` as soon as a worker is available.

        Args:
            task: task whose references have no connection yet.
            watch: True if a thread may already be waiting for the task, although the task has no connection
                yet that the thread could read.
        """
        if self._idle:
            with InterruptGuard():  # Ctrl-C must not lose a lease that was just chosen
                self._submit(task, watch)
        else:
            self._submit(task, watch)

    def _submit(self, task: Task, watch: bool) -> None:
        with self._lock:
            if task.waits:
                self._no_longer_expect(task)
            if task.cancelled:
                return
            lease = self._idle_for(task)
            if lease is not None:
                self._busy.add(lease)
            else:
                if not self._queue:  # if tasks are queued, the busy leases stay watched, see `progressed`
                    self._watch_busy()
                self._queue.append(task)
            lacks = lease is None and self._lacks_leases()
        if lacks and watch:
            self._ask_or_fail()
        elif lacks:
            try:
                self._ask()
            except Exception:
                with self._lock:  # the caller gets the error, so the task must never run
                    if task in self._queue:
                        self._queue.remove(task)
                raise
        if lease is None:
            return
        # The background thread reads the answer, as the caller may never ask for the result. A failure may
        # need a retry, and the task's arguments stay in memory until the answer is read.
        given = task.body is not None and task.body.handles
        if watch or self._queue or task.retry_exceptions or given:
            self._background.watch(lease, self)
        try:
            lease.run([task])
        except Exception as error:
            _not_sent([task], error)
            self.progressed(lease)
            if not watch:
                raise

    def _idle_for(self, task: Task) -> WorkerLease | None:
        while self._idle:
            lease = self._idle.pop()
            if not task.retries_left:
                # an idle worker may have ended unnoticed, and a task without retries would then fail
                lease.try_read()
            if not lease.closed:
                return lease
        return None

    def again(self, tasks: Sequence[Task]) -> None:
        """Put `tasks`, which a worker did not complete, at the front of the queue."""
        with self._lock:
            for task in tasks:
                self._no_longer_expect(task)
                for ref in task.refs:
                    ref.attach(None)
            wanted = [task for task in tasks if not task.cancelled]
            self._queue.extendleft(reversed(wanted))
            self._watch_busy()
        for task in tasks:
            if task.cancelled:
                task.fail_cancelled("before it began")
        self._ask_or_fail()

    def _watch_busy(self) -> None:
        """Have the background thread read busy leases, so that the queue advances even if no caller waits."""
        for busy in self._busy:
            self._background.watch(busy, self)

    def body_of(self, task: Task) -> Packed:
        """Return the packed call of a task."""
        if task.body is None:
            arguments = task.arguments
            args, kwargs = (arguments, {}) if type(arguments) is tuple else pickle.loads(arguments)
            task.body = self._codec.of_call(task.definition, task.name, 1, args, kwargs)
        return task.body

    @property
    def is_over(self) -> bool:
        """True if the pool is retired and has no unfinished tasks and no leases in use."""
        return self._retired and not (self._asked or self._busy or self.unfinished())

    @property
    def asks(self) -> bool:
        """True if a requested lease is not granted yet."""
        return bool(self._asked)

    def _ask(self) -> None:
        """Request a lease for each queued task, up to the number of tasks that could run at once."""
        asked: list[tuple[WorkerLease, LocalRef]] = []
        with InterruptGuard():  # Ctrl-C must not lose a lease that was just requested
            try:
                with self._lock, descriptors_explained:
                    reclaims = self._reclaims
                    while self._lacks_leases():
                        environment = self._environment()
                        ours, theirs = socket.socketpair()
                        lease = WorkerLease(ours, self, self._node.new_id())
                        request = RequestLease(
                            lease.worker_id or 0, self._queue[0].name, self._placement, environment
                        )
                        answer = self._node.ask(request, [Descriptor(theirs.detach())])
                        self._asked.add(answer)
                        asked.append((lease, answer))
            finally:  # requested leases are handled even if no descriptor is left for the next request
                for lease, answer in asked:
                    answer.when_done(functools.partial(self._granted, lease, answer, reclaims))

    def _ask_or_fail(self) -> None:
        """Request leases; if that fails and no worker will become free, fail the queued tasks."""
        try:
            self._ask()
        except Exception as error:
            reason = f"a worker for this task could not be requested: {error}"
            self._fail_if_none_comes(LOST, functools.partial(ObjectLostError, reason))

    def _fail_if_none_comes(self, kind: int, body: Any) -> None:
        """Fail every queued task unless a worker will become free to run it."""
        with self._lock:
            comes = bool(self._asked) or not all(lease.blocked for lease in self._busy)
        if not comes:
            self.fail(kind, body)

    def _lacks_leases(self) -> bool:
        asked = len(self._asked)
        running = len(self._busy) - sum(map(_is_blocked, self._busy))
        return asked < len(self._queue) and asked + running < self._most

    def _granted(self, lease: WorkerLease, answer: LocalRef, reclaims: int) -> None:
        with self._lock:
            self._asked.discard(answer)
            if answer.kind == VALUE:
                self._busy.add(lease)
                self._background.watch(lease, END)  # watching lets tasks be retried even if no thread waits
        if answer.kind == VALUE:
            self.progressed(lease)
            if unpack(answer.body) or self._reclaims != reclaims:
                lease.wanted_back = True  # set only now, so that the task that needed the lease runs first
                if not lease.owing:
                    self.progressed(lease)
        else:  # the node or placement group has ended, or the node has no descriptor left
            self._fail_if_none_comes(answer.kind, answer.body)

    def fail(self, kind: int, body: Any) -> None:
        """Complete every queued task with the failure `body`."""
        with self._lock:
            tasks, self._queue = self._queue, deque()
        for task in tasks:
            for ref in task.refs:
                ref.complete(kind, body)

    def cancel(self, task: Task, force: bool, recursive: bool) -> None:
        """Complete `task` as cancelled if it has not begun; else stop it, or kill its worker if `force`."""
        with self._lock:
            task.cancelled, task.forced = True, task.forced or force
            waits = task.waits or task in self._queue
            self._expected.discard(task)
            if waits and not task.waits:
                self._queue.remove(task)
            # `WorkerLease.run` stops a task that has left the queue but is not sent yet.
            lease = next((lease for lease in self._busy if task.refs[0].id in lease.owing), None)
        if waits:
            task.fail_cancelled("before it began")
        elif lease is not None:
            self.stop(lease, task, force, recursive)

    def stop(self, lease: WorkerLease, task: Task, force: bool, recursive: bool) -> None:
        """Stop `task` in the worker of `lease`, or kill the worker if `force` is True."""
        if force:
            with self._lock:
                lease.condemned = True
            self._node.ask(Kill(lease.worker_id or 0, "one of its tasks was cancelled with force=True"))
            self._background.watch(lease, self)
        else:
            self._node.tell(Cancel(lease.worker_id or 0, task.refs[0].id, recursive))

    def learn(self, function: int, each_s: float, at_least: bool = False) -> None:
        """Record that a run of `function` takes `each_s` seconds, or at least `each_s` seconds if `at_least`
        is True.
        """
        with self._lock:
            known = self._each_s.pop(function, each_s)
            self._each_s[function] = max(known, each_s) if at_least else (known + each_s) / 2
            if len(self._each_s) > _FUNCTIONS:
                del self._each_s[next(iter(self._each_s))]

    def progressed(self, lease: WorkerLease) -> None:
        """Send more tasks to a worker that has answered, keep its lease as idle, or return the lease."""
        while True:
            tasks: list[Task] = []
            with self._lock:
                over = lease.wanted_back or lease.retiring or lease.closed or lease.condemned
                over |= self._retired and not self._queue
                if not over:
                    tasks = self._next_for(lease)
                if tasks:
                    self._background.watch(lease, self)
                elif not over and not lease.owing:
                    self._busy.discard(lease)
                    self._idle.append(lease)
                    self._background.unwatch(lease, self)
            if not tasks:
                if over and not lease.owing:
                    self._give_back(lease)
                return
            try:
                lease.run(tasks)
            except Exception as error:  # the worker is still available for later tasks
                _not_sent(tasks, error)
            else:
                return

    def _next_for(self, lease: WorkerLease) -> list[Task]:
        queue = self._queue
        if not queue or lease.blocked:  # a blocked worker may be waiting for a task in this queue
            return []
        if queue[0].is_solitary or not lease.knows(queue[0]):
            return [] if lease.owing else [queue.popleft()]
        room = self._room(lease, queue[0])
        tasks: list[Task] = []
        while queue and len(tasks) < room and not queue[0].is_solitary and lease.knows(queue[0]):
            tasks.append(queue.popleft())
        return tasks

    def _room(self, lease: WorkerLease, task: Task) -> int:
        """Return the number of tasks like `task` that may be sent to `lease` now."""
        if lease.owing and next(iter(lease.owing.values())).is_solitary:
            return 0
        each_s = self._each_s.get(task.definition.id)
        depth = 1 if each_s is None else max(1, min(MOST, int(AHEAD_S / max(each_s, 1e-6))))
        room = depth - len(lease.owing)
        if lease.owing and 2 * room < depth:
            return 0  # waiting until more tasks fit makes larger batches, which are cheaper
        fair = -(-len(self._queue) // max(1, len(self._busy) + len(self._asked)))
        room = min(room, fair)
        # A worker can return tasks that wait behind a long task only if all of them arrived in one batch.
        return room if room > 1 or not lease.owing else 0

    def _give_back(self, lease: WorkerLease) -> None:
        with self._lock:
            if lease.returned:
                return
            lease.returned = True
            self._forget(lease)
        lease.close_when_sent()
        # this process first takes back the CPUs that it has lent, as otherwise other processes would get the
        # lease's CPUs
        self._waiter.lend_no_longer()
        self._node.tell(ReturnLease(lease.worker_id or 0, lease.retiring or self._retired))
        # new requests of the pool then wait behind the requests for which this lease is returned
        self._ask_or_fail()

    def _forget(self, lease: WorkerLease) -> None:
        self._busy.discard(lease)
        if lease in self._idle:
            self._idle.remove(lease)
        for why in (self, END):
            self._background.unwatch(lease, why)

    def reclaim(self) -> None:
        """Return the idle leases to the node now, and the busy leases when they become idle."""
        with InterruptGuard():  # Ctrl-C must not lose a lease
            self._reclaim_all()

    def _reclaim_all(self) -> None:
        with self._lock:
            self._reclaims += 1
            # The lock is needed, as another thread may be choosing an idle lease for its task.
            busy, idle, self._idle = list(self._busy), self._idle, []
            for lease in busy:
                lease.wanted_back = True
                self._background.watch(lease, self)
        for lease in busy:
            lease.try_read()
        for lease in idle:
            self._give_back(lease)

    def retire(self) -> None:
        """End the pool's workers as soon as its tasks are done; the pool gets no further tasks."""
        with InterruptGuard():  # Ctrl-C must not leave a lease behind
            self._retired = True
            self._reclaim_all()

    def listed(self, pids: Mapping[str, int | None]) -> list[Row]:
        """Return the tasks of this pool as rows of `list_tasks`.

        Args:
            pids: process id of each leased worker, by the worker id that the node lists.
        """
        with self._lock:
            given = [(f"{lease.worker_id or 0:016x}", lease.outstanding()) for lease in self._busy]
            queued = list(self._queue)
        # A worker runs the first of its tasks while the other tasks wait. A worker without a pid has not
        # started.
        where = [(task, key, not place) for key, tasks in given for place, task in enumerate(tasks)]
        where += [(task, "", False) for task in queued]
        return [
            task_row(
                task.name,
                self._placement.resources,
                is_running=is_first and pids.get(key) is not None,
                worker_id=key or None,
                pid=pids.get(key),
                owner_pid=os.getpid(),
                task_id=task.refs[0].hex(),
            )
            for task, key, is_first in where
        ]

    def read_out(self) -> None:
        """Read the answers that no thread has read."""
        with self._lock:
            leases = [*self._busy, *self._idle]
        for lease in leases:
            lease.read_out()

    def close(self) -> None:
        """Drop all leases and fail the queued tasks, at the end of the session."""
        with self._lock:
            leases = [*self._busy, *self._idle]
            self._busy.clear()
            self._idle.clear()
        owed = [task for lease in leases for task in lease.outstanding()]
        for lease in leases:
            lease.close()
        with self._lock:
            owed += self._expected  # the expected tasks include tasks whose worker has just died
            self._queue.extend(task for task in owed if not task.refs[-1].done())
            self._expected.clear()
        self.fail(LOST, self._node.lost)

    def lost(self, lease: WorkerLease, tasks: Sequence[Task]) -> None:
        """Retry or fail the tasks of `lease`, whose worker has ended."""
        with self._lock:
            self._forget(lease)
            self._expected.update(tasks)  # tasks leave this set when they are queued again or completed
        self._background.run(lambda: self._settle(lease, tasks))

    def _settle(self, lease: WorkerLease, tasks: Sequence[Task]) -> None:
        owed = [task for task in tasks if not all(ref.done() for ref in task.refs)]
        if owed:
            self._retry_or_fail(lease, owed)
        with self._lock:
            self._expected.difference_update([task for task in tasks if task.refs[-1].done()])
        self._ask_or_fail()

    def _retry_or_fail(self, lease: WorkerLease, tasks: Sequence[Task]) -> None:
        try:
            exit_ = self._node.exit_of(lease)
        except TrainkitError as error:
            if isinstance(error, ObjectLostError) and not self._node.closing:
                # No task has begun, as the worker is alive but had no descriptor left for the connection.
                lease.retiring = True
                self._give_back(lease)
                self.again(tasks)
                return
            why = error  # the node has ended, and all its workers have ended too
            fail([ref for task in tasks for ref in task.refs], lambda: why)
            self.fail(LOST, lambda: why)
            return
        # Tasks are answered in order, so the first unanswered task was probably running and uses a retry. The
        # later tasks are queued again without using up a retry. However, the later tasks run alone from now
        # on, because a later task may have killed the worker before earlier answers arrived.
        first = tasks[0]
        again = []
        for task in tasks:
            if task.cancelled:
                task.fail_cancelled("while it ran, and its process ended")
            elif lease.condemned or restart_policy.should_retry(exit_, task.retries_left):
                # if the worker was killed because of another task, this task keeps its retries
                if task is first and not lease.condemned:
                    task.retries_left -= task.retries_left > 0
                task.alone = True
                again.append(task)
            else:
                fail(task.refs, death, WorkerDiedError, exit_, task.name)
        lease.pending.clear()
        self.again(again)


def _not_sent(tasks: Sequence[Task], error: Exception) -> None:
    """Fail tasks that could not be sent for lack of descriptors or memory."""
    for task in tasks:
        reason = f"{task.name} could not be sent to its worker: {error!r}"
        fail(task.refs, ObjectLostError, reason)
