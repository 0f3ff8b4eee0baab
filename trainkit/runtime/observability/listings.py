"""Listings of a session's nodes, actors, tasks, objects and resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.resources import total
from trainkit.runtime.session import engine


def cluster_resources() -> dict[str, float]:
    """Return all resources of the session, such as {"CPU": 4.0}, including memory for large objects."""
    stores = [_object_store(node) for node in engine().state("nodes")]
    return _shown(total([engine().cluster_resources(), *stores]))


def available_resources() -> dict[str, float]:
    """Return the free amount of each resource of the session, without resources that are used up."""
    stores = [_object_store(node, free=True) for node in engine().state("nodes")]
    return _shown(total([engine().available_resources(), *stores]))


def _object_store(node: Mapping[str, Any], *, free: bool = False) -> dict[str, float]:
    """Return {"object_store_memory": bytes}, with the total or the
    free memory for large objects on a node.
    """
    store = node["object_store"]
    if not store:
        return {}
    used = store["used_bytes"] if free else 0
    return {"object_store_memory": max(0, store["limit_bytes"] - used)}


def _shown(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items() if amount}


def nodes() -> list[dict[str, Any]]:
    """Return a row for each machine of the session, with name, address, resources and a
    flag for a living machine.

    Each row also has columns with Ray's names, such as NodeID, Alive, NodeManagerAddress and Resources.
    """
    return [
        {
            **node,
            "NodeID": node["node_id"],
            "Alive": node["alive"],
            "NodeManagerAddress": node["address"],
            "NodeName": node["address"],
            "NodeManagerHostname": node["hostname"],
            "Resources": _shown({**node["resources"], **_object_store(node)}),
            "Labels": node["labels"],
        }
        for node in engine().state("nodes")
    ]


def list_actors() -> list[dict[str, Any]]:
    """Return the session's living and dead actors, with state, name, pid and resources."""
    return engine().state("actors")


def list_tasks() -> list[dict[str, Any]]:
    """Return the tasks that wait or run, with state, name, pid and resources."""
    return engine().state("tasks")


def list_objects() -> list[dict[str, Any]]:
    """Return the large objects, with size in bytes, pids of the
    processes that use them, and True if on disk.
    """
    return engine().state("objects")


def list_placement_groups() -> list[dict[str, Any]]:
    """Return the placement groups, with state, bundles and strategy."""
    return engine().state("placement_groups")


def get_gpu_ids() -> list[int | str]:
    """Return the ids of the GPUs assigned to this worker. In the driver, return the ids of all GPUs.

    The ids are numbers or UUIDs, as in CUDA_VISIBLE_DEVICES. If this variable is not set, the numbers start
    at 0.
    """
    return engine().gpu_ids()
