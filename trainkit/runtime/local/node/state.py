"""State listing of a session: plain mappings for each kind of thing. Ids are hexadecimal."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.resources import total
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.usage import objects
from trainkit.runtime.local.node.logs import SessionLogs
from trainkit.runtime.local.node.placement_groups import PlacementGroups
from trainkit.runtime.local.node.reclaim import WaitExplainer
from trainkit.runtime.local.node.records import (
    DRIVER,
    RequestQueue,
    Row,
    SessionRecord,
    WorkerTable,
    actor_row,
    pending_row,
)
from trainkit.runtime.local.wire.messages import RequestLease, StartActor

Rows = list[Row]


class StateListing:
    """Listing of what there is in the session.

    Args:
        session: the session and its driver.
        table: the living workers, and actors that have ended.
        queue: what waits.
        groups: placement groups.
        explainer: explains waits.
        logs: files of what workers print.
    """

    def __init__(
        self,
        session: SessionRecord,
        table: WorkerTable,
        queue: RequestQueue,
        groups: PlacementGroups,
        explainer: WaitExplainer,
        logs: SessionLogs,
    ) -> None:
        self._session = session
        self._table = table
        self._queue = queue
        self._groups = groups
        self._explainer = explainer
        self._logs = logs
        self._kinds: Mapping[str, Any] = {
            "nodes": self._nodes,
            "actors": self._actors,
            "tasks": self._tasks,
            "workers": self._workers,
            "logs": self._log_files,
            "objects": self._objects,
            "placement_groups": self._placement_groups,
            "requests": self._requests,
        }

    def rows(self, kind: str) -> Rows | ConfigError:
        """Return what there is of `kind`, or the error that there is no such kind."""
        rows = self._kinds.get(kind)
        if rows is None:
            return ConfigError(f"state({kind!r}); there are {', '.join(self._kinds)}")
        found: Rows = rows()
        return found

    def _nodes(self) -> Rows:
        session, machine = self._session, self._groups.machine
        return [
            {
                "node_id": session.node_id,
                "alive": True,
                "hostname": socket.gethostname(),
                "address": "127.0.0.1",
                "pid": os.getpid(),
                "labels": {**session.spec.labels, "ray.io/node-id": session.node_id},
                "resources": dict(session.spec.totals),
                "available": machine.amounts(),
                "object_store": self._store(),
            }
        ]

    def _store(self) -> dict[str, int]:
        account = StoreBudget(self._session.account_fd)
        try:
            return account.figures()
        finally:
            account.close()

    def _actors(self) -> Rows:
        namespace = self._session.spec.namespace
        queued = [
            pending_row(request.start)
            for request in self._queue.all()
            if isinstance(request.start, StartActor)
        ]
        living = [actor_row(worker) for worker in self._table.all() if worker.is_actor]
        rows = [*living, *queued, *self._table.ended_rows()]
        return [{**row, "namespace": row["namespace"] or namespace} for row in rows]

    def _tasks(self) -> Rows:
        rows: Rows = []
        for worker in self._table.all():
            if not worker.is_actor and (worker.allocation is not None or worker.lent is not None):
                rows.append(
                    {
                        "worker_id": f"{worker.worker_id:016x}",
                        "task_id": None,  # only who made the call knows it
                        "name": worker.name,
                        "state": "PENDING" if worker.pid is None else "RUNNING",
                        "pid": worker.pid,
                        "resources": dict(worker.placement.resources),
                        "owner_pid": self._pid_of(worker.owner),
                    }
                )
        for request in self._queue.all():
            if isinstance(request.start, RequestLease):
                rows.append(
                    {
                        "worker_id": f"{request.start.worker_id:016x}",
                        "task_id": None,
                        "name": request.what,
                        "state": "PENDING",
                        "pid": None,
                        "resources": dict(request.start.placement.resources),
                        "owner_pid": self._pid_of(request.client),
                    }
                )
        return rows

    def _workers(self) -> Rows:
        living = [
            (worker.serial, worker.name, "WORKER", worker.pid)
            for worker in self._table.all()
            if worker.pid is not None
        ]
        if not self._session.driver_gone:
            living.insert(0, (DRIVER, "driver", "DRIVER", self._session.driver_pid))
        common = {"is_alive": True, "node_id": self._session.node_id, "ip": "127.0.0.1"}
        return [
            {"worker_id": f"{serial:x}", "name": name, "worker_type": kind, "pid": pid, **common}
            for serial, name, kind, pid in living
        ]

    def _log_files(self) -> Rows:
        return [{"path": path} for path in self._logs.paths()]

    def _objects(self) -> Rows:
        workers = {worker.pid: worker.name for worker in self._table.all() if worker.pid is not None}
        return objects({self._session.driver_pid: "driver", os.getpid(): "node", **workers})

    def _placement_groups(self) -> Rows:
        return [
            {
                "placement_group_id": f"{group_id:016x}",
                "name": group.name,
                "strategy": group.strategy,
                "state": "PENDING" if group.held is None else "CREATED",
                "bundles": [dict(bundle) for bundle in group.bundles],
            }
            for group_id, group in self._groups.living()
        ]

    def _requests(self) -> Rows:
        now = SYSTEM.monotonic()
        rows: Rows = []
        queue = self._queue.all()
        for request, wait in zip(queue, self._explainer.waits(queue), strict=True):
            rows.append(
                {
                    "id": f"{request.waiting.key:016x}",
                    "what": request.what,
                    "asked": total(request.waiting.bundles),
                    "since_s": now - request.since,
                    "lacking": wait.lacking,
                    "holders": wait.holders,
                    "reasons": wait.reasons,
                    "owner_pid": self._pid_of(request.client),
                }
            )
        return rows

    def _pid_of(self, serial: int) -> int | None:
        """Return the pid of the process with that number; None once it has ended, and for nobody's."""
        if serial == DRIVER:
            return None if self._session.driver_gone else self._session.driver_pid
        worker = self._table.by_serial(serial)
        return None if worker is None else worker.pid
