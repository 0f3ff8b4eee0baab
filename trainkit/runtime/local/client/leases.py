"""Tasks, and the connections to the leased workers that run tasks."""

from __future__ import annotations

import contextlib
import functools
import pickle
import socket
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainkit.errors import TaskCancelledError, TaskError
from trainkit.runtime.local.client.refs import CallConnection, LocalRef, decide, fail
from trainkit.runtime.local.wire import channel
from trainkit.runtime.restart_policy import RetriedKinds
from trainkit.runtime.serialize import Packed

AHEAD_S = 0.002
"""Seconds of work that are sent to a worker in advance.

This time is long enough to hide a round trip to the worker, and short enough to delay other tasks little.
"""

_KNOWN = 64
"""Number of functions that a leased worker is assumed to remember."""


class LeaseOwner(Protocol):
    """Pool whose tasks a leased worker runs."""

    def body_of(self, task: Task) -> Packed:
        """Return the packed call of a task."""

    def cancel(self, task: Task, force: bool, recursive: bool) -> None:
        """Complete a task as cancelled if the task has not begun.

        If the task has begun, stop the task in its worker.
        """

    def stop(self, lease: WorkerLease, task: Task, force: bool, recursive: bool) -> None:
        """Stop `task` in the worker of `lease`, or kill the worker if `force` is True."""

    def expect(self, task: Task) -> None:
        """Register a task that is not in the queue but may be submitted later."""

    def again(self, tasks: Sequence[Task]) -> None:
        """Put `tasks`, which a worker did not complete, at the front of the queue."""

    def made_again(self, task: Task, error: TaskError) -> bool:
        """Retry a task that raised `error` if its options allow it. Return True if the task is retried."""

    def learn(self, function: int, each_s: float, at_least: bool = False) -> None:
        """Record how long a run of the function with the id `function` takes."""

    def progressed(self, lease: WorkerLease) -> None:
        """Send more tasks to a worker that has answered, keep its lease as idle, or return the lease."""

    def lost(self, lease: WorkerLease, tasks: Sequence[Task]) -> None:
        """Retry or fail the tasks of a lease whose worker has ended."""


@dataclass(slots=True, eq=False)
class Task:
    """Call of a remote function. The call waits for a worker, or runs in a worker.

    Attributes:
        pool: the pool that runs the task.
        definition: reference to the pickled function.
        arguments: packed arguments of a small call, see `serialize.lasting`; None if the arguments are only
            in `body`.
        body: the packed call; None until it is needed.
        retries_left: remaining retries of the task; -1 for no limit.
        retry_exceptions: exceptions after which the task is retried; True for any exception.
        max_calls: number of runs of the function after which its worker ends; 0 for no limit.
        alone: True if the task must be alone in its worker, because it may have killed an earlier worker.
        waits: True if the task waits for its arguments or for the decision on a retry, and is therefore not
            queued.
        cancelled: True if the task was cancelled and must not be run or retried.
        forced: True if the task was cancelled with force=True, so that its worker is killed.
        asked_for: True if the caller knows of a failure already, so that this task's failure is not reported
            as unhandled.
    """

    name: str
    pool: LeaseOwner
    definition: LocalRef
    arguments: Any
    body: Packed | None
    refs: list[LocalRef]
    retries_left: int
    retry_exceptions: RetriedKinds = False
    max_calls: int = 0
    alone: bool = False
    waits: bool = False
    cancelled: bool = False
    forced: bool = False
    asked_for: bool = False

    @property
    def is_solitary(self) -> bool:
        """True if the task must be alone in its worker.

        If the worker of a solitary task ends, the task must have ended the worker.
        """
        return self.alone or not self.retries_left or bool(self.max_calls) or self.arguments is None

    def fail_cancelled(self, when: str) -> None:
        """Complete the task's references with a `TaskCancelledError`."""
        fail(self.refs, TaskCancelledError, f"{self.name} was cancelled {when}")


class WorkerLease(CallConnection):
    """Connection to a leased worker, which runs its tasks in order.

    Attributes:
        owing: tasks that were sent and not answered, in the order sent, by the ids of their results.
        wanted_back: True if the lease is returned as soon as all its tasks are answered.
        returned: True once the lease was returned.
        retiring: True if a function has reached `max_calls`, so that the lease is returned after its last
            answer and its worker then ends.
        condemned: True if the worker is being killed because of one task. The worker's other tasks run again
            without using up a retry.
        blocked: True if the running task waits for other tasks and needs no CPU now.
        runs: number of runs in this worker of each function that has `max_calls`.
    """

    tells_failures = True

    def __init__(self, sock: socket.socket, pool: LeaseOwner, worker_id: int) -> None:
        super().__init__(sock, "task", worker_id)
        self.pool = pool
        self.owing: dict[int, Task] = {}
        self.wanted_back = False
        self.returned = False
        self.retiring = False
        self.blocked = False
        self.condemned = False
        self.runs: Counter[int] = Counter()
        self._known: set[int] = set()

    def knows(self, task: Task) -> bool:
        """Return True if the worker has the task's function already, so that only the arguments are sent."""
        return task.arguments is not None and task.definition.id in self._known

    def run(self, tasks: Sequence[Task]) -> None:
        """Send one task, or several tasks whose functions the worker has already.

        Several tasks are sent in one frame, so that the worker has all of them when it begins the first task.
        """
        retiring = self.retiring
        # the tasks are registered before they are sent, or an early answer would make the lease look idle
        for task in tasks:
            for ref in task.refs:
                ref.attach(self)
                self.owing[ref.id] = task
            if task.max_calls:
                self.runs[task.definition.id] += 1
                self.retiring |= self.runs[task.definition.id] >= task.max_calls
        try:
            self._send_tasks(tasks)
        except BaseException:  # the worker has not received any of the tasks
            self.forget([ref.id for task in tasks for ref in task.refs])
            self.runs.subtract(task.definition.id for task in tasks if task.max_calls)
            self.retiring = retiring
            raise
        for task in tasks:
            if task.cancelled:  # the task was cancelled while it was sent
                self.pool.stop(self, task, task.forced, recursive=True)

    def _send_tasks(self, tasks: Sequence[Task]) -> None:
        if self.knows(tasks[0]):
            self._run_known(tasks)
            return
        (task,) = tasks
        self.request(channel.CALL, self.pool.body_of(task), task.refs)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known.add(task.definition.id)

    def forget(self, refs: Iterable[int]) -> None:
        super().forget(refs)
        for ref_id in refs:
            self.owing.pop(ref_id, None)

    def _run_known(self, tasks: Sequence[Task]) -> None:
        calls = [(task.refs[0], task.definition.id, task.arguments) for task in tasks]
        for ref, _, _ in calls:
            self.pending[ref.id] = weakref.ref(ref)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.post_together([(ref.id, target, arguments) for ref, target, arguments in calls])
        if self.closed:
            self._fail_pending()

    def _fail_pending(self) -> None:
        """Return the unanswered tasks of an ended worker to the pool, which retries or fails them."""
        with self._send_lock:
            tasks = self.outstanding()
            self.owing.clear()
        self.pool.lost(self, tasks)

    def on_frame(self, frame: channel.Frame) -> None:
        if frame.kind == channel.RETURNED:
            self._take_back(*pickle.loads(frame.body.payload))
            return
        if frame.kind == channel.FAILURE and self._is_dealt_with(frame):
            return
        super().on_frame(frame)
        if frame.kind not in (channel.ANSWERS, channel.ITEM):
            self.blocked = False
            self.owing.pop(frame.call_id, None)
            self.pool.progressed(self)

    def failure(self, frame: channel.Frame) -> Packed:
        task = self.owing.get(frame.call_id)
        is_news = task is not None and not task.cancelled and not task.asked_for
        return super().failure(frame) if is_news else frame.body

    def on_answers(
        self, ids: list[int], values: list[Any], pickled: list[tuple[int, bytes]], spent_s: float
    ) -> None:
        super().on_answers(ids, values, pickled, spent_s)
        owing = self.owing
        self.blocked = False
        answered = [*ids, *(call_id for call_id, _ in pickled)]
        each_s = spent_s / len(answered)
        for call_id in answered:
            task = owing.pop(call_id, None)
        if task is not None:
            self.pool.learn(task.definition.id, each_s)
        self.pool.progressed(self)

    def _is_dealt_with(self, frame: channel.Frame) -> bool:
        """Return True if a failure needs no action yet, as more frames follow or a retry is being decided."""
        task = self.owing.get(frame.call_id)
        if task is None or not task.retry_exceptions:
            return False
        # all results of a task fail together, so only the last result's failure decides
        *others, last = task.refs
        if frame.call_id != last.id:
            return True
        if task.retries_left and not task.cancelled and not any(ref.done() for ref in task.refs):
            for ref in task.refs:
                self.owing.pop(ref.id, None)
            self.pool.expect(task)
            decide(self, frame.body, task.refs, functools.partial(self.pool.made_again, task))
            self.blocked = False
            self.pool.progressed(self)
            return True
        for ref in others:
            self.owing.pop(ref.id, None)
            super().on_frame(channel.Frame(channel.FAILURE, ref.id, frame.body))
        return False

    def _take_back(self, call_ids: Sequence[int], why: str) -> None:
        """Queue again the tasks that the worker returned without running them; see `channel.RETURNED`."""
        tasks = [task for task in map(self.owing.get, call_ids) if task is not None]
        if why == channel.UNKNOWN:
            self._known.clear()
        elif tasks:
            self.pool.learn(tasks[0].definition.id, AHEAD_S, at_least=True)
        self.blocked = why == channel.BLOCKED
        for task in tasks:
            self.forget([ref.id for ref in task.refs])
        self.pool.again(tasks)
        self.pool.progressed(self)

    def outstanding(self) -> list[Task]:
        """Return the tasks that were sent and not answered, in the order sent."""
        return list(dict.fromkeys(self.owing.values()))

    def on_close(self) -> None:
        self.sock.close()
        self._fail_pending()
