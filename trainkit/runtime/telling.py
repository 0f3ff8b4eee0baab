"""The verbs that only tell of the session: what there is, who has it, and where this code runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.resources import total
from trainkit.runtime.context import RuntimeContext
from trainkit.runtime.current import engine
from trainkit.runtime.engine import PROMISES


def get_runtime_context() -> RuntimeContext:
    """Where this code runs: ids of its node, worker, actor and task."""
    return RuntimeContext(engine().where_am_i())


def promises() -> frozenset[str]:
    """What the engine in use promises, by the names of `trainkit.runtime.engine.PROMISES`."""
    return PROMISES[engine().name]


def cluster_resources() -> dict[str, float]:
    """All resources of the session, such as {"CPU": 4.0}; with what large objects may take in memory."""
    stores = [_object_store(node) for node in engine().state("nodes")]
    return _shown(total([engine().cluster_resources(), *stores]))


def available_resources() -> dict[str, float]:
    """The resources that nobody holds now; one that is used up is left out."""
    stores = [_object_store(node, free=True) for node in engine().state("nodes")]
    return _shown(total([engine().available_resources(), *stores]))


def _object_store(node: Mapping[str, Any], *, free: bool = False) -> dict[str, float]:
    """Return what large objects may take on a node, or what of it is free, by the resource's name."""
    store = node["object_store"]
    if not store:
        return {}
    used = store["used_bytes"] if free else 0
    return {"object_store_memory": max(0, store["limit_bytes"] - used)}


def _shown(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items() if amount}


def nodes() -> list[dict[str, Any]]:
    """The machines of the session, each with its name, address, resources and whether it is alive.

    What Ray's `nodes` tells of each, NodeID, Alive, NodeManagerAddress, Resources and Labels, is there by
    those names too.
    """
    return [
        {
            **node,
            "NodeID": node["node_id"],
            "Alive": node["alive"],
            "NodeManagerAddress": node["address"],
            "Resources": _shown({**node["resources"], **_object_store(node)}),
            "Labels": node["labels"],
        }
        for node in engine().state("nodes")
    ]


def list_actors() -> list[dict[str, Any]]:
    """The session's actors, living and dead, with state, name, pid and resources."""
    return engine().state("actors")


def list_tasks() -> list[dict[str, Any]]:
    """Tasks that wait or run, with state, name, pid and resources."""
    return engine().state("tasks")


def list_objects() -> list[dict[str, Any]]:
    """Large objects, with size in bytes, who holds them, and whether they were spilled to disk."""
    return engine().state("objects")


def list_placement_groups() -> list[dict[str, Any]]:
    """Placement groups, with state, bundles and strategy."""
    return engine().state("placement_groups")


def get_gpu_ids() -> list[int | str]:
    """Return the GPUs given to this worker as CUDA_VISIBLE_DEVICES names them; in the program, all.

    Those are numbers or UUIDs. Where the variable isn't set, the numbers count from 0.
    """
    return engine().gpu_ids()
