"""State listing of a session, and explanations of long waits.

The rows of the listing consist of plain values. Ids are hexadecimal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.resources import Bundle, describe, total
from trainkit.runtime.engine import Row, group_row, listing, node_row, task_row, worker_row
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.usage import objects
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.logs import SessionLogs
from trainkit.runtime.local.node.loop import After
from trainkit.runtime.local.node.placement_groups import PlacementGroups
from trainkit.runtime.local.wire.messages import CountCalls, RequestLease, StartActor, Waits
from trainkit.runtime.placement import Allocation, Holder, Room, Wait, explain_wait, order

Rows = list[Row]

_PATIENCE_S = 0.5
"""Longest wait in seconds for the driver's count of unanswered calls.

A driver that takes longer is stopped or very busy.
"""
_AGAIN_S = 30.0
"""Time in seconds after which the driver is asked again if its answer is missing, because the driver may have
failed to send the answer.
"""

_LONG_S = 10.0
"""Waiting time after which the process that made a request gets an explanation of the wait."""

_TOGETHER_S = 2.0
"""Requests made up to this many seconds after an explained request are explained together with it."""

_MOST_EXPLAINED = 3
"""Number of a process's requests that are explained at a time; further requests are only counted."""


@dataclass(eq=False)
class WaitExplainer:
    """Explainer of waits, for the state listing and for processes whose requests wait for a long time.

    Args:
        queue: the waiting requests.
        groups: placement groups, with the ledger of the machine's free resources.
        table: the living workers.
        totals: total resources of the machine.
        after: `Loop.after`.
        notify: `Clients.notify`.
    """

    _queue: records.RequestQueue
    _groups: PlacementGroups
    _table: records.WorkerTable
    _totals: Bundle
    _after: After
    _notify: records.Notify

    def explain_later(self, _: object = None) -> None:
        """Schedule explanations of the waiting requests for the time when they have waited 10 s."""
        waiting = [request.since for request in self._queue.line() if not request.explained]
        if waiting:
            self._after(max(0.0, min(waiting) + _LONG_S - SYSTEM.monotonic()), self._explain)

    def _explain(self) -> None:
        now = SYSTEM.monotonic()
        due: dict[int, list[records.Request]] = {}
        for request in self._queue.line():
            if not request.explained and now - request.since >= _LONG_S - _TOGETHER_S:
                request.explained = True
                due.setdefault(request.client, []).append(request)
        for client, requests in due.items():
            told, rest = requests[:_MOST_EXPLAINED], requests[_MOST_EXPLAINED:]
            for request, wait in zip(told, self.waits(told), strict=True):
                asked = describe(total(request.bundles))
                reasons = "; ".join(wait.reasons)
                text = f"{request.what} has been waiting {now - request.since:.0f} s for {asked}: {reasons}"
                self._notify(client, Waits(text))
            if rest:
                text = f"further waiting requests: {len(rest)}; `trainkit status` lists them"
                self._notify(client, Waits(text))
        self.explain_later()

    def waits(self, requests: Sequence[records.Request]) -> list[Wait]:
        """Return the reasons why each of `requests`, which are in the queue, is not granted."""
        by_key = {request.key: request for request in self._queue.all()}
        machine = Room(
            existing=self._totals, ledger=self._groups.machine, holders=self._holders_of_the_machine()
        )
        line = [request for request in order(self._queue.line()) if request.group is None]
        place = {request.key: index for index, request in enumerate(line)}
        ahead = {request.key for request in self._groups.that_hold_up(line)}

        def of(request: records.Request) -> Wait:
            if not request.ready:
                return Wait(reasons=["an argument of its constructor has not arrived yet"])
            group_id = request.group
            if group_id is None:
                before = [each for each in line[: place[request.key]] if each.key in ahead]
                return explain_wait(request, [machine], before)
            wait = explain_wait(request, self._rooms(request, self._groups[group_id]))
            if group_id not in by_key:
                return wait
            of_group = of(by_key[group_id])
            reasons = [*wait.reasons, *(f"its group: {reason}" for reason in of_group.reasons)]
            return Wait(lacking=of_group.lacking, holders=of_group.holders, reasons=reasons)

        return [of(request) for request in requests]

    def _rooms(self, request: records.Request, group: records.PlacementGroupRecord) -> list[Room]:
        wanted = None if request.start is None else request.start.placement.group
        return [
            Room(
                name=f"bundle {index} of its group",
                existing=group.bundles[index],
                ledger=ledger,
                holders=[
                    _holder(worker, worker.allocation)
                    for worker in self._table.all()
                    if worker.allocation is not None and worker.ledger_group == (request.group, index)
                ],
            )
            for index, ledger in enumerate(group.ledgers)
            if wanted is None or wanted.bundle in (None, index)
        ]

    def _holders_of_the_machine(self) -> list[Holder]:
        workers = [
            _holder(worker, worker.allocation)
            for worker in self._table.all()
            if worker.allocation is not None and worker.ledger_group is None
        ]
        groups = [
            Holder(who=group.what, amounts=total(group.bundles))
            for _, group in self._groups.living()
            if group.held is not None
        ]
        return workers + groups


def _holder(worker: records.WorkerRecord, allocation: Allocation) -> Holder:
    return Holder(who=f"{worker.name} (pid {worker.pid})", amounts=allocation.as_bundle())


@dataclass(eq=False)
class StateListing:
    """Listing of the session's nodes, actors, tasks and other objects.

    Args:
        session: record of the session and its driver.
        table: the living workers, and actors that have ended.
        queue: the waiting requests.
        groups: placement groups.
        explainer: explains waits.
        logs: log files of the workers.
    """

    _session: records.SessionRecord
    _table: records.WorkerTable
    _queue: records.RequestQueue
    _groups: PlacementGroups
    _explainer: WaitExplainer
    _logs: SessionLogs

    def __post_init__(self) -> None:
        self._kinds = {
            "nodes": self._nodes,
            "actors": self._actors,
            "tasks": self._tasks,
            "workers": self._workers,
            "logs": lambda: [{"path": path} for path in self._logs.paths()],
            "objects": self._objects,
            "placement_groups": self._placement_groups,
            "requests": self._requests,
        }

    def rows(self, kind: str) -> Rows | ConfigError:
        """Return the rows of the listing `kind`, such as "actors"; an error if no such listing exists."""
        try:
            return listing(self._kinds, kind)
        except ConfigError as error:
            return error

    def _nodes(self) -> Rows:
        node_id, spec, machine = self._session.node_id, self._session.spec, self._groups.machine
        return [node_row(node_id, spec.labels, spec.totals, machine.amounts(), self._store())]

    def _store(self) -> dict[str, int]:
        account = StoreBudget(self._session.account_fd)
        try:
            return account.figures()
        finally:
            account.close()

    def _actors(self) -> Rows:
        namespace = self._session.spec.namespace
        queued = [
            records.pending_row(request.start)
            for request in self._queue.all()
            if isinstance(request.start, StartActor)
        ]
        living = [records.actor_row(worker) for worker in self._table.all() if worker.is_actor]
        actors = [*living, *queued, *self._table.ended_rows()]
        return [{**row, "namespace": row["namespace"] or namespace} for row in actors]

    def _tasks(self) -> Rows:
        # The rows have no task id, as only the process that made a call knows its id.
        leased = [
            task_row(
                worker.name,
                worker.spec.placement.resources,
                is_running=worker.pid is not None,
                worker_id=f"{worker.worker_id:016x}",
                pid=worker.pid,
                owner_pid=self._pid_of(worker.owner),
            )
            for worker in self._table.all()
            if not worker.is_actor and (worker.allocation is not None or worker.lent is not None)
        ]
        queued = [
            task_row(
                request.what,
                request.start.placement.resources,
                is_running=False,
                worker_id=f"{request.start.worker_id:016x}",
                pid=None,
                owner_pid=self._pid_of(request.client),
            )
            for request in self._queue.all()
            if isinstance(request.start, RequestLease)
        ]
        return leased + queued

    def _workers(self) -> Rows:
        living = [
            (worker.serial, worker.name, "WORKER", worker.pid)
            for worker in self._table.all()
            if worker.pid is not None
        ]
        if not self._session.driver_gone:
            living.insert(0, (records.DRIVER, "driver", "DRIVER", self._session.driver_pid))
        node_id = self._session.node_id
        return [worker_row(f"{serial:x}", name, kind, pid, node_id) for serial, name, kind, pid in living]

    def _objects(self) -> Rows:
        workers = {worker.pid: worker.name for worker in self._table.all() if worker.pid is not None}
        return objects({self._session.driver_pid: "driver", os.getpid(): "node", **workers})

    def _placement_groups(self) -> Rows:
        return [
            group_row(f"{group_id:016x}", group.name, group.strategy, group.held is not None, group.bundles)
            for group_id, group in self._groups.living()
        ]

    def _requests(self) -> Rows:
        now = SYSTEM.monotonic()
        queue = self._queue.all()
        return [
            {
                "id": f"{request.key:016x}",
                "what": request.what,
                "asked": total(request.bundles),
                "since_s": now - request.since,
                "lacking": wait.lacking,
                "holders": wait.holders,
                "reasons": wait.reasons,
                "owner_pid": self._pid_of(request.client),
            }
            for request, wait in zip(queue, self._explainer.waits(queue), strict=True)
        ]

    def _pid_of(self, serial: int) -> int | None:
        """Return the pid of the process with that number; None for an ended process and for `NOBODY`."""
        if serial == records.DRIVER:
            return None if self._session.driver_gone else self._session.driver_pid
        worker = self._table.by_serial(serial)
        return None if worker is None else worker.pid


@dataclass(eq=False)
class CallCounts:
    """Counts of the driver's unanswered actor calls, which only the driver knows.

    Args:
        session: record of the session and its driver.
        after: `Loop.after`.
        notify: `Clients.notify`.
    """

    _session: records.SessionRecord
    _after: After
    _notify: records.Notify
    _waiting: list[records.Answer] = field(default_factory=list)
    _asked: bool = False

    def ask(self, answer: records.Answer) -> None:
        """Call `answer` with a row for each actor that the driver knows, or without rows if the driver
        does not reply within 0.5 s.
        """
        if self._session.driver_gone:
            answer([])
            return
        self._waiting.append(answer)
        # Only one request is sent at a time, so that only one request waits for a stopped driver when the
        # driver resumes.
        if not self._asked:
            self._asked = True
            self._notify(records.DRIVER, CountCalls())
            self._after(_AGAIN_S, self._ask_again)
        self._after(_PATIENCE_S, partial(self._answer, answer, []))

    def _ask_again(self) -> None:
        """Allow a new request to the driver, because the last request was answered or lost."""
        self._asked = False

    def counted(self, calls: Mapping[int, int]) -> None:
        """Answer all waiting requests with the driver's counts."""
        self._asked = False
        rows = [{"actor_id": f"{worker_id:016x}", "calls": count} for worker_id, count in calls.items()]
        for answer in list(self._waiting):
            self._answer(answer, rows)

    def _answer(self, answer: records.Answer, rows: Rows) -> None:
        if answer in self._waiting:
            self._waiting.remove(answer)
            answer(rows)
