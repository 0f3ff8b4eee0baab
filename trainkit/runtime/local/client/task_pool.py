"""Task pools: queues of tasks of one shape, and the workers leased to run them.

A lease holds its tasks' resources from the node's grant until it is returned. It is kept while there
are tasks to run, and afterwards until somebody else wants what it holds, so that the next task of the
same shape starts at once.
"""

from __future__ import annotations

import errno
import functools
import operator
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainkit.errors import ObjectLostError, TaskError, TrainkitError, WorkerDiedError
from trainkit.runtime import restart_policy
from trainkit.runtime.engine import Row, task_row
from trainkit.runtime.local.client.background import END, BackgroundThread
from trainkit.runtime.local.client.calls import CallCodec
from trainkit.runtime.local.client.leases import AHEAD_S, Task, WorkerLease
from trainkit.runtime.local.client.node_client import NodeClient, death
from trainkit.runtime.local.client.refs import LOST, LocalRef, fail
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.wire.batching import MOST
from trainkit.runtime.local.wire.channel import VALUE, Descriptor, explain, no_descriptor_left
from trainkit.runtime.local.wire.messages import Cancel, Kill, RequestLease, ReturnLease, WorkerEnvironment
from trainkit.runtime.serialize import Packed, unpack
from trainkit.runtime.signals import InterruptGuard
from trainkit.runtime.specs import Placement

_is_blocked = operator.attrgetter("blocked")
_FUNCTIONS = 256
"""Functions whose duration is remembered."""


class TaskPool:
    """Runs tasks that need the same placement.

    A process gets one task at a time until it is known that they are short; then some milliseconds'
    worth at once. All state is guarded by one lock; tasks are sent without holding it. While tasks are
    queued, some lease is asked for or busy, or the whole queue is failed: nothing is left to wait for ever.

    Args:
        placement: of every task.
        most: so many could run at once if everything were free.
        node: grants leases.
        background: reads leases that nobody waits for.
        waiter: takes this process's CPUs back before what a lease held goes to somebody else.
        codec: packs calls.
        environment: returns what a worker started now inherits.
    """

    def __init__(
        self,
        placement: Placement,
        most: int,
        node: NodeClient,
        background: BackgroundThread,
        waiter: Waiter,
        codec: CallCodec,
        environment: Callable[[], WorkerEnvironment],
    ) -> None:
        self._placement = placement
        self._most = most
        self._node = node
        self._background = background
        self._waiter = waiter
        self._codec = codec
        self._environment = environment
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
        """Note a task that is not in the queue, and may be submitted later."""
        task.waits = True
        self._expected.add(task)

    def _no_longer_expect(self, task: Task) -> None:
        task.waits = False
        self._expected.discard(task)

    def made_again(self, task: Task, error: TaskError) -> bool:
        """Run a task that raised `error` again if that is asked for; return whether it was."""
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
        """Run `task` as soon as there is a process for it.

        Args:
            task: its references have no peer yet.
            watch: somebody may be waiting for it already, without a connection to read.
        """
        if self._idle:
            with InterruptGuard():  # Ctrl-C must not lose a process that was just chosen
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
                if not self._queue:  # they are watched as long as there is one, see `progressed`
                    self._watch_busy()
                self._queue.append(task)
            lacks = lease is None and self._lacks_leases()
        if lacks and watch:
            self._ask_or_fail()
        elif lacks:
            try:
                self._ask()
            except Exception as error:
                with self._lock:  # the caller is told, so it must not run all the same
                    if task in self._queue:
                        self._queue.remove(task)
                if isinstance(error, OSError):
                    explain(error)
                raise
        if lease is None:
            return
        # Maybe nobody ever asks for its answer: it is run again if that is a failure, and holds what it was
        # given until it is read.
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
                lease.try_read()  # nobody reads an idle one; its end is no reason to fail this task
            if not lease.closed:
                return lease
        return None

    def again(self, tasks: Sequence[Task]) -> None:
        """Run `tasks`, which were given to a process in vain, before the others."""
        with self._lock:
            for task in tasks:
                self._no_longer_expect(task)
            wanted = [task for task in tasks if not task.cancelled]
            self._queue.extendleft(reversed(wanted))
            self._watch_busy()
        for task in tasks:
            if task.cancelled:
                task.fail_cancelled("before it began")
        self._ask_or_fail()

    def _watch_busy(self) -> None:
        """Have busy leases read, so that the queue moves on although no caller may be reading."""
        for busy in self._busy:
            self._background.watch(busy, self)

    def body_of(self, task: Task) -> Packed:
        """The whole call."""
        if task.body is None:
            arguments = task.arguments
            args, kwargs = (arguments, {}) if type(arguments) is tuple else pickle.loads(arguments)
            task.body = self._codec.of_call(task.definition, task.name, 1, args, kwargs)
        return task.body

    @property
    def is_over(self) -> bool:
        """True if it is retired, and has done what it had."""
        return self._retired and not (self._asked or self._busy or self.unfinished())

    @property
    def asks(self) -> bool:
        """True if a lease is asked for that is not there yet."""
        return bool(self._asked)

    def _ask(self) -> None:
        """Ask the node for as many leases as there are tasks for; at most what could ever run at once."""
        asked: list[tuple[WorkerLease, LocalRef]] = []
        with InterruptGuard():  # Ctrl-C must not lose one that was just asked for
            try:
                with self._lock:
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
            finally:  # those that were asked for come, also if there is no descriptor left for the next
                for lease, answer in asked:
                    answer.when_done(functools.partial(self._granted, lease, answer, reclaims))

    def _ask_or_fail(self) -> None:
        """Ask where no caller can be told that it takes a descriptor: else who waits for the tasks is."""
        try:
            self._ask()
        except Exception as error:
            reason = f"a process to run it in could not be asked for: {error}"
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                reason = str(no_descriptor_left())
            self._fail_if_none_comes(LOST, functools.partial(ObjectLostError, reason))

    def _fail_if_none_comes(self, kind: int, body: Any) -> None:
        """Fail every queued task unless a process will be free to run it."""
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
                self._background.watch(lease, END)  # its tasks are run again, though nobody waits for them
        if answer.kind == VALUE:
            self.progressed(lease)
            if unpack(answer.body) or self._reclaims != reclaims:
                lease.wanted_back = True  # from now on: what it was granted for comes first
                if not lease.owing:
                    self.progressed(lease)
        else:  # the node is gone, or the placement group, or the node has no descriptor left
            self._fail_if_none_comes(answer.kind, answer.body)

    def fail(self, kind: int, body: Any) -> None:
        """Fail every queued task with an answer that stands for all."""
        with self._lock:
            tasks, self._queue = self._queue, deque()
        for task in tasks:
            for ref in task.refs:
                ref.complete(kind, body)

    def cancel(self, task: Task, force: bool, recursive: bool) -> None:
        """Complete `task` if it has not begun, else have its process stop it, or end that."""
        with self._lock:
            task.cancelled, task.forced = True, task.forced or force
            waits = task.waits or task in self._queue
            self._expected.discard(task)
            if waits and not task.waits:
                self._queue.remove(task)
            # One that is between the queue and its lease is stopped by that, as it is sent.
            lease = next((lease for lease in self._busy if task.refs[0].id in lease.owing), None)
        if waits:
            task.fail_cancelled("before it began")
        elif lease is not None:
            self.stop(lease, task, force, recursive)

    def stop(self, lease: WorkerLease, task: Task, force: bool, recursive: bool) -> None:
        """Have the process of `lease` stop `task`, or end the process."""
        if force:
            with self._lock:
                lease.condemned = True
            self._node.ask(Kill(lease.worker_id or 0, "a task of its was cancelled with force=True"))
            self._background.watch(lease, self)
        else:
            self._node.tell(Cancel(lease.worker_id or 0, task.refs[0].id, recursive))

    # the work of a lease

    def learn(self, function: int, each_s: float, at_least: bool = False) -> None:
        """Runs of `function` took `each_s` seconds each, just now; or one takes at least so long."""
        with self._lock:
            known = self._each_s.pop(function, each_s)
            self._each_s[function] = max(known, each_s) if at_least else (known + each_s) / 2
            if len(self._each_s) > _FUNCTIONS:
                del self._each_s[next(iter(self._each_s))]

    def progressed(self, lease: WorkerLease) -> None:
        """`lease` owes less than before: give it more, keep it, or return it."""
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
            except Exception as error:  # the process is there for those behind them
                _not_sent(tasks, error)
            else:
                return

    def _next_for(self, lease: WorkerLease) -> list[Task]:
        queue = self._queue
        if not queue or lease.blocked:  # what the process waits for may be in the queue
            return []
        if queue[0].is_solitary or not lease.knows(queue[0]):
            return [] if lease.owing else [queue.popleft()]
        room = self._room(lease, queue[0])
        tasks: list[Task] = []
        while queue and len(tasks) < room and not queue[0].is_solitary and lease.knows(queue[0]):
            tasks.append(queue.popleft())
        return tasks

    def _room(self, lease: WorkerLease, task: Task) -> int:
        """How many tasks like `task` may be given to `lease` now."""
        if lease.owing and next(iter(lease.owing.values())).is_solitary:
            return 0
        each_s = self._each_s.get(task.definition.id)
        depth = 1 if each_s is None else max(1, min(MOST, int(AHEAD_S / max(each_s, 1e-6))))
        room = depth - len(lease.owing)
        if lease.owing and 2 * room < depth:
            return 0  # more at once is cheaper
        fair = -(-len(self._queue) // max(1, len(self._busy) + len(self._asked)))
        room = min(room, fair)
        # The process looks for what could wait behind a long task where several came together.
        return room if room > 1 or not lease.owing else 0

    def _give_back(self, lease: WorkerLease) -> None:
        with self._lock:
            if lease.returned:
                return
            lease.returned = True
            self._forget(lease)
        lease.close_when_sent()
        self._waiter.lend_no_longer()  # before another gets what this lease held
        self._node.tell(ReturnLease(lease.worker_id or 0, lease.retiring or self._retired))
        self._ask_or_fail()  # behind those who wanted it

    def _forget(self, lease: WorkerLease) -> None:
        self._busy.discard(lease)
        if lease in self._idle:
            self._idle.remove(lease)
        for why in (self, END):
            self._background.unwatch(lease, why)

    def reclaim(self) -> None:
        """Return what is idle now, and the rest as it becomes idle."""
        with InterruptGuard():  # Ctrl-C must not lose one
            self._reclaim_all()

    def _reclaim_all(self) -> None:
        with self._lock:
            self._reclaims += 1
            # Taken here, as another thread may be looking for an idle one for its task.
            busy, idle, self._idle = list(self._busy), self._idle, []
            for lease in busy:
                lease.wanted_back = True
                self._background.watch(lease, self)
        for lease in busy:
            lease.try_read()
        for lease in idle:
            self._give_back(lease)

    def retire(self) -> None:
        """Have the processes end as soon as what is there is done; no further task comes."""
        with InterruptGuard():  # Ctrl-C must not leave one behind
            self._retired = True
            self._reclaim_all()

    def listed(self, pids: Mapping[str, int | None]) -> list[Row]:
        """The tasks of this pool as `list_tasks` shows them.

        Args:
            pids: of the leased processes, by their ids as the node lists them.
        """
        with self._lock:
            given = [(f"{lease.worker_id or 0:016x}", lease.outstanding()) for lease in self._busy]
            queued = list(self._queue)
        # The tasks behind the first of a process wait in it; and the process may not be there yet.
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
        """Read the answers that nobody has."""
        with self._lock:
            leases = [*self._busy, *self._idle]
        for lease in leases:
            lease.read_out()

    def close(self) -> None:
        """Drop all leases and fail what is queued; the session is over."""
        with self._lock:
            leases = [*self._busy, *self._idle]
            self._busy.clear()
            self._idle.clear()
        owed = [task for lease in leases for task in lease.outstanding()]
        for lease in leases:
            lease.close()
        with self._lock:
            owed += self._expected  # such as those whose process died just now
            self._queue.extend(task for task in owed if not task.refs[-1].done())
            self._expected.clear()
        self.fail(LOST, self._node.lost)

    # deaths

    def lost(self, lease: WorkerLease, tasks: Sequence[Task]) -> None:
        """The process of `lease` is gone: run its tasks again if that is allowed, else fail them."""
        with self._lock:
            self._forget(lease)
            self._expected.update(tasks)  # until they are in the queue again, or done
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
                # Its process lives, and had no descriptor left: nothing has begun, and nothing ever would.
                for task in tasks:
                    for ref in task.refs:
                        ref.attach(None)
                lease.retiring = True
                self._give_back(lease)
                self.again(tasks)
                return
            why = error  # the node is gone, and every process with it
            for task in tasks:
                for ref in task.refs:
                    ref.complete(LOST, lambda: why)
            self.fail(LOST, lambda: why)
            return
        # They were answered in order, so it is the first that ran; the others run again at no charge, but
        # alone, as one of them may have done it and its predecessors' answers been lost.
        first = tasks[0]
        again = []
        for task in tasks:
            if task.cancelled:
                task.fail_cancelled("while it ran, and its process ended")
            elif lease.condemned or restart_policy.should_retry(exit_, task.retries_left):
                if task is first and not lease.condemned:  # another task's end is not this one's failure
                    task.retries_left -= task.retries_left > 0
                task.alone = True
                for ref in task.refs:
                    ref.attach(None)
                again.append(task)
            else:
                for ref in task.refs:
                    ref.complete(LOST, functools.partial(death, WorkerDiedError, exit_, task.name))
        lease.pending.clear()
        self.again(again)


def _not_sent(tasks: Sequence[Task], error: Exception) -> None:
    """Fail tasks that there is no descriptor left for, or no memory."""
    for task in tasks:
        reason = f"{task.name} could not be sent to its process: {error!r}"
        fail(task.refs, ObjectLostError, reason)
