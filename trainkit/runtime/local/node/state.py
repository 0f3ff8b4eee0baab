"""State listing of a session: plain mappings for each kind of thing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.resources import total
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.usage import objects
from trainkit.runtime.local.node.reclaim import explain_each_wait
from trainkit.runtime.local.node.records import DRIVER, actor_row, pending_row
from trainkit.runtime.local.wire.messages import RequestLease, StartActor
from trainkit.settings import SESSION_MARK

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node

Rows = list[dict[str, Any]]


def answer_state(node: Node, kind: str) -> Rows | ConfigError:
    """What there is of `kind`, or the error that there is no such kind."""
    answer = _ANSWERS.get(kind)
    if answer is None:
        return ConfigError(f"state({kind!r}); there are {', '.join(_ANSWERS)}")
    return answer(node)


def node_id() -> str:
    """The id of this machine in the session; the same in all its processes."""
    return os.environ[SESSION_MARK].rpartition("-")[2]


def _nodes(node: Node) -> Rows:
    return [
        {
            "node_id": node_id(),
            "alive": True,
            "hostname": socket.gethostname(),
            "address": "127.0.0.1",
            "pid": os.getpid(),
            "labels": {**node.spec.labels, "ray.io/node-id": node_id()},
            "resources": dict(node.spec.totals),
            "available": node.stores.available(),
            "object_store": _store(node),
        }
    ]


def _store(node: Node) -> dict[str, int]:
    account = StoreBudget(node.account_fd)
    try:
        return account.figures()
    finally:
        account.close()


def _actors(node: Node) -> Rows:
    queued = [
        pending_row(request.start) for request in node.stores.queue if isinstance(request.start, StartActor)
    ]
    living = [actor_row(worker) for worker in node.worker_table.workers() if worker.is_actor]
    rows = [*living, *queued, *node.worker_table.dead.rows()]
    return [{**row, "namespace": row["namespace"] or node.spec.namespace} for row in rows]


def _tasks(node: Node) -> Rows:
    rows: Rows = []
    for worker in node.worker_table.workers():
        if not worker.is_actor and (worker.allocation is not None or worker.lent is not None):
            rows.append(
                {
                    "worker_id": f"{worker.worker_id:016x}",
                    "task_id": None,  # only who made the call knows it
                    "name": worker.name,
                    "state": "PENDING" if worker.pid is None else "RUNNING",
                    "pid": worker.pid,
                    "resources": dict(worker.placement.resources),
                    "owner_pid": pid_of(node, worker.owner),
                }
            )
    for request in node.stores.queue:
        if isinstance(request.start, RequestLease):
            rows.append(
                {
                    "worker_id": f"{request.start.worker_id:016x}",
                    "task_id": None,
                    "name": request.what,
                    "state": "PENDING",
                    "pid": None,
                    "resources": dict(request.start.placement.resources),
                    "owner_pid": pid_of(node, request.client),
                }
            )
    return rows


def _workers(node: Node) -> Rows:
    living = [
        (worker.serial, worker.name, "WORKER", worker.pid)
        for worker in node.worker_table.workers()
        if worker.pid is not None
    ]
    if not node.driver_gone:
        living.insert(0, (DRIVER, "driver", "DRIVER", node.driver_pid))
    common = {"is_alive": True, "node_id": node_id(), "ip": "127.0.0.1"}
    return [
        {"worker_id": f"{serial:x}", "name": name, "worker_type": kind, "pid": pid, **common}
        for serial, name, kind, pid in living
    ]


def _logs(node: Node) -> Rows:
    return [{"path": path} for path in node.logs.paths()]


def _objects(node: Node) -> Rows:
    workers = {worker.pid: worker.name for worker in node.worker_table.workers() if worker.pid is not None}
    return objects({node.driver_pid: "driver", os.getpid(): "node", **workers})


def _placement_groups(node: Node) -> Rows:
    return [
        {
            "placement_group_id": f"{group_id:016x}",
            "name": group.name,
            "strategy": group.strategy,
            "state": "PENDING" if group.held is None else "CREATED",
            "bundles": [dict(bundle) for bundle in group.bundles],
        }
        for group_id, group in node.stores.groups.living()
    ]


def _requests(node: Node) -> Rows:
    now = SYSTEM.monotonic()
    rows: Rows = []
    queue = node.stores.queue
    for request, wait in zip(queue, explain_each_wait(node, queue), strict=True):
        rows.append(
            {
                "id": f"{request.waiting.key:016x}",
                "what": request.what,
                "asked": total(request.waiting.bundles),
                "since_s": now - request.since,
                "lacking": wait.lacking,
                "holders": wait.holders,
                "reasons": wait.reasons,
                "owner_pid": pid_of(node, request.client),
            }
        )
    return rows


def pid_of(node: Node, serial: int) -> int | None:
    """Of the process with that number; None once it has ended, and for what belongs to nobody."""
    if serial == DRIVER:
        return None if node.driver_gone else node.driver_pid
    worker = node.worker_table.by_serial(serial)
    return None if worker is None else worker.pid


_ANSWERS: Mapping[str, Callable[[Node], Rows]] = {
    "nodes": _nodes,
    "actors": _actors,
    "tasks": _tasks,
    "workers": _workers,
    "logs": _logs,
    "objects": _objects,
    "placement_groups": _placement_groups,
    "requests": _requests,
}
