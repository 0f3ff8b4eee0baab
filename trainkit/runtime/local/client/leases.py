"""Leased workers: the connection to one, and the tasks that it was given."""

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
from trainkit.runtime.local.client.calls import decide
from trainkit.runtime.local.client.refs import CallConnection, LocalRef, fail
from trainkit.runtime.local.wire import channel
from trainkit.runtime.restart_policy import RetriedKinds
from trainkit.runtime.serialize import Packed

AHEAD_S = 0.002
"""Work that a process is given ahead: enough to hide the way there and back, and little to wait behind."""

_KNOWN = 64
"""Functions that a lease's process is taken to remember."""


class LeaseOwner(Protocol):
    """The pool that a leased worker runs the tasks of."""

    def body_of(self, task: Task) -> Packed:
        """Return the whole call."""

    def cancel(self, task: Task, force: bool, recursive: bool) -> None:
        """Complete a task that has not begun; have its process stop it otherwise."""

    def stop(self, lease: WorkerLease, task: Task, force: bool, recursive: bool) -> None:
        """Have the process of `lease` stop `task`, or end the process."""

    def expect(self, task: Task) -> None:
        """Note a task that is not in the queue, and may be submitted later."""

    def again(self, tasks: Sequence[Task]) -> None:
        """Run tasks, which were given to a process in vain, before the others."""

    def made_again(self, task: Task, error: TaskError) -> bool:
        """Run a task that raised `error` again if that is asked for; return whether it was."""

    def learn(self, function: int, each_s: float, at_least: bool = False) -> None:
        """Note how long runs of `function` took."""

    def progressed(self, lease: WorkerLease) -> None:
        """Give a lease that owes less than before more to do, keep it, or return it."""

    def lost(self, lease: WorkerLease, tasks: Sequence[Task]) -> None:
        """Deal with the tasks of a lease whose process is gone."""


@dataclass(slots=True, eq=False)
class Task:
    """A call that waits for a process, or runs in one.

    Attributes:
        pool: where it runs.
        definition: the function.
        arguments: of a small call, see `batch.lasting`; None if `body` holds them.
        body: the whole call, once it is needed.
        retries_left: -1 without end.
        retry_exceptions: run it again also when it raises any exception, or one of these.
        max_calls: its process ends after so many runs of the function; 0 never.
        alone: it is sent when nothing else is in the process, as it may be what made one die.
        waits: for its arguments, or for the decision about what it raised; it is not in the pool's queue.
        cancelled: it must not be run, or not again.
        forced: its process is to be ended for that.
        asked_for: somebody has waited for it in vain, so its failure is no news.
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
        """True if it is to be alone in its process: should that die, it is known which task was in it."""
        return self.alone or not self.retries_left or bool(self.max_calls) or self.arguments is None

    def fail_cancelled(self, when: str) -> None:
        """Complete its references as those of a cancelled call."""
        fail(self.refs, TaskCancelledError, f"{self.name} was cancelled {when}")


class WorkerLease(CallConnection):
    """The connection to a leased process, which runs what it is given in order.

    Attributes:
        owing: the tasks it was given and has not answered, in order, by the numbers of their results.
        wanted_back: it is returned as soon as it owes nothing.
        returned: it was.
        retiring: the same, and its process ends: it has run a function as often as that may be.
        condemned: it is being killed for one of its tasks, and the others are not at fault.
        blocked: its task waits for others, and so needs no CPU now.
        runs: how often each function that ends its process after some was run here.
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
        """Return True if its process has the function of `task`, so that the arguments alone are sent."""
        return task.arguments is not None and task.definition.id in self._known

    def run(self, tasks: Sequence[Task]) -> None:
        """Send `tasks`, whose answers then come over this connection: one, or several that it knows.

        Several go in one frame, so that their process has all of them when it begins the first.
        """
        retiring = self.retiring
        for task in tasks:  # all, before the first is answered and it seems to owe nothing
            for ref in task.refs:
                ref.attach(self)
                self.owing[ref.id] = task
            if task.max_calls:
                self.runs[task.definition.id] += 1
                self.retiring |= self.runs[task.definition.id] >= task.max_calls
        try:
            self._send_tasks(tasks)
        except BaseException:  # its process has none of them
            self.forget([ref.id for task in tasks for ref in task.refs])
            self.runs.subtract(task.definition.id for task in tasks if task.max_calls)
            self.retiring = retiring
            raise
        for task in tasks:
            if task.cancelled:  # just now
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
        """The process is gone: what it owes is the pool's to run again, or to fail."""
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
        """Return whether nothing is to be done about a failure yet: more is to come, or to be decided."""
        task = self.owing.get(frame.call_id)
        if task is None or not task.retry_exceptions:
            return False
        *others, last = task.refs  # all results of a task fail alike, so the last of them decides
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
        """The process has not begun these, and will not; see `channel.RETURNED`."""
        tasks = [task for task in map(self.owing.get, call_ids) if task is not None]
        if why == channel.UNKNOWN:
            self._known.clear()
        elif tasks:
            self.pool.learn(tasks[0].definition.id, AHEAD_S, at_least=True)
        self.blocked = why == channel.BLOCKED
        for task in tasks:
            self.forget([ref.id for ref in task.refs])
            for ref in task.refs:
                ref.attach(None)
        self.pool.again(tasks)
        self.pool.progressed(self)

    def outstanding(self) -> list[Task]:
        """The tasks it was given and has not answered, in order."""
        return list(dict.fromkeys(self.owing.values()))

    def on_close(self) -> None:
        self.sock.close()
        self._fail_pending()
