"""State listing of a Ray cluster, with the same columns as on the local engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.core.generated.common_pb2 import WorkerType
from ray.core.generated.gcs_pb2 import ActorTableData, WorkerTableData
from ray.util import placement_group_table

from trainkit.errors import ConfigError
from trainkit.plugins.ray.groups import plain
from trainkit.runtime.engine import Row, group_row, listing, task_row, worker_row

_ACTOR_STATES = {"DEPENDENCIES_UNREADY": "PENDING", "PENDING_CREATION": "PENDING"}
_MOST_ROWS = 10_000
_OUTPUT = (".out", ".err")


def state(kind: str) -> list[Row]:
    """Implement `Engine.state`.

    Raises:
        ConfigError: the listing `kind` does not exist, or it needs Ray's dashboard, which is not running.
    """
    return listing(_KINDS, kind)


def _nodes() -> list[Row]:
    available = ray._private.state.available_resources_per_node()
    return [
        {
            "node_id": node["NodeID"],
            "alive": node["Alive"],
            "hostname": node["NodeManagerHostname"],
            "address": node["NodeManagerAddress"],
            "pid": None,  # Ray does not report the process id
            "labels": dict(node.get("Labels") or {}),
            "resources": plain(node["Resources"]),
            "available": plain(available.get(node["NodeID"], {})),
            "object_store": _store(node["Resources"], available.get(node["NodeID"], {})),
        }
        for node in ray.nodes()
    ]


def _store(existing: Mapping[str, float], available: Mapping[str, float]) -> dict[str, int] | None:
    limit = existing.get("object_store_memory")
    if limit is None:
        return None
    return {"limit_bytes": int(limit), "used_bytes": int(limit - available.get("object_store_memory", 0.0))}


def _actors() -> list[Row]:
    accessor = ray._private.state.state._connect_and_get_accessor()
    actors = [ActorTableData.FromString(row) for row in accessor.get_actor_table(None, None)]
    return [
        {
            "actor_id": row.actor_id.hex(),
            "class_name": row.class_name,
            "name": row.name or None,
            "namespace": row.ray_namespace,
            "state": _ACTOR_STATES.get(state := ActorTableData.ActorState.Name(row.state), state),
            "pid": row.pid or None,
            "resources": dict(row.required_resources),
            "detached": row.is_detached,
            "restarts": row.num_restarts,
            "death_cause": row.death_cause.actor_died_error_context.error_message or None,
        }
        for row in actors
    ]


def _groups() -> list[Row]:
    return [
        group_row(
            number,
            group["name"],
            group["strategy"],
            group["state"] == "CREATED",
            [group["bundles"][index] for index in sorted(group["bundles"])],
        )
        for number, group in placement_group_table().items()
        if group["state"] != "REMOVED"
    ]


def _tasks() -> list[Row]:
    return [
        task_row(
            task.name,
            task.required_resources,
            is_running=task.state == "RUNNING",
            worker_id=task.worker_id,
            pid=task.worker_pid,
            owner_pid=None,  # Ray does not report the process id of the owner
            task_id=task.task_id,
        )
        for task in _from_dashboard("list_tasks")
        if task.state not in ("FINISHED", "FAILED")
    ]


def _objects() -> list[Row]:
    found: dict[str, dict[str, Any]] = {}
    for held in _from_dashboard("list_objects"):
        entry = found.setdefault(
            held.object_id, {"object_id": held.object_id, "size_bytes": held.object_size, "pids": []}
        )
        entry["pids"].append(held.pid)
    return list(found.values())


def _workers() -> list[Row]:
    accessor = ray._private.state.state._connect_and_get_accessor()
    workers = [WorkerTableData.FromString(row) for row in accessor.get_worker_table()]
    return [
        worker_row(
            row.worker_address.worker_id.hex(),
            WorkerType.Name(row.worker_type).lower(),
            WorkerType.Name(row.worker_type),
            row.pid or None,
            row.worker_address.node_id.hex(),
            row.worker_address.ip_address,
        )
        for row in workers
        if row.is_alive
    ]


def _logs() -> list[Row]:
    node = ray._private.worker._global_node
    if node is None:  # this is a client of a remote cluster, which has no logs here
        return []
    folder = Path(node.get_logs_dir_path())
    return [{"path": str(path)} for path in sorted(folder.glob("worker-*-*.*")) if path.suffix in _OUTPUT]


def _from_dashboard(verb: str) -> Any:
    try:
        from ray.util import state as listings

        return getattr(listings, verb)(limit=_MOST_ROWS, detail=True)
    except Exception as error:  # the exception depends on which part of the dashboard is missing
        raise ConfigError(
            f"Ray's {verb} needs Ray's dashboard: start Ray with the dashboard (pip install 'ray[default]', "
            "and trainkit.init(include_dashboard=True) or ray start), or call this where the dashboard "
            f"runs. Ray's error: {error}"
        ) from error


_KINDS: dict[str, Callable[[], list[Row]]] = {
    "nodes": _nodes,
    "actors": _actors,
    "tasks": _tasks,
    "workers": _workers,
    "logs": _logs,
    "objects": _objects,
    "placement_groups": _groups,
    "requests": list,  # Ray does not list waiting requests
}
