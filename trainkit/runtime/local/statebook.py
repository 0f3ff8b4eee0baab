"""What there is, as plain data: the node's answers to `State`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.resources import total

if TYPE_CHECKING:
    from trainkit.runtime.local.node import Node


def answer_state(node: Node, kind: str) -> list[dict[str, Any]] | ConfigError:
    """What there is of `kind`, or the error that there is no such kind."""
    maker = _MAKERS.get(kind)
    if maker is None:
        return ConfigError(f"there is no list of {kind!r}; there are {', '.join(sorted(_MAKERS))}")
    return maker(node)


def _nodes(node: Node) -> list[dict[str, Any]]:
    return [
        {
            "node_id": f"{os.getpid():x}",
            "alive": True,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "resources": dict(node.spec.totals),
            "available": node.stores.available(),
        }
    ]


def _actors(node: Node) -> list[dict[str, Any]]:
    found = []
    for entry in node.registry.entries():
        worker = node.census.worker(entry.found.worker_id)
        found.append(
            {
                "actor_id": f"{entry.found.worker_id:016x}",
                "class_name": entry.found.label,
                "name": entry.name,
                "namespace": entry.namespace,
                "state": "PENDING" if worker is None else "ALIVE",
                "pid": None if worker is None else worker.pid,
                "resources": {} if worker is None else dict(worker.placement.resources),
                "detached": entry.detached,
                "restarts": 0,
                "death_cause": "",
            }
        )
    return found


def _requests(node: Node) -> list[dict[str, Any]]:
    now = SYSTEM.monotonic()
    free = node.stores.available()
    found = []
    for request in node.stores._queue:
        asked = total(request.waiting.bundles)
        lacking = sorted(name for name, amount in asked.items() if amount > free.get(name, 0))
        holders = [
            f"{worker.name} (pid {worker.pid})"
            for worker in node.census.workers()
            if worker.allocation is not None and worker.placement.resources
        ]
        found.append(
            {
                "id": f"{request.waiting.key:016x}",
                "what": request.what,
                "asked": asked,
                "since_s": now - request.since,
                "lacking": lacking,
                "holders": holders,
                "reasons": [f"{name} missing; held by {', '.join(holders) or 'nobody'}" for name in lacking],
                "owner_pid": None,
            }
        )
    return found


def _none(_: Node) -> list[dict[str, Any]]:
    return []


_MAKERS: dict[str, Callable[[Node], list[dict[str, Any]]]] = {
    "nodes": _nodes,
    "actors": _actors,
    "requests": _requests,
    "tasks": _none,
    "placement_groups": _none,
}
