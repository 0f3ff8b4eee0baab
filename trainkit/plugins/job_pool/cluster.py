"""State of Ray's nodes, and requests that wait, as Ray's own autoscaler reads them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import ray
from ray.autoscaler.v2.sdk import get_cluster_resource_state
from ray.core.generated.autoscaler_pb2 import DrainNodeReason, NodeStatus
from ray.experimental import internal_kv

from trainkit.plugins.job_pool.rules import Waiting
from trainkit.plugins.ray.groups import JOBS, plain
from trainkit.resources import Bundle, total


@dataclass(frozen=True)
class Node:
    """Node of the cluster.

    Attributes:
        id: Ray's id.
        is_alive: True until the node has ended.
        is_draining: True if the node takes no further calls.
        free: free resources.
        idle_s: seconds since the node was last used.
    """

    id: str
    is_alive: bool
    is_draining: bool
    free: Bundle
    idle_s: float


def look() -> tuple[dict[str, Node], list[Waiting]]:
    """Return all nodes that have ever joined, by name, and the requests that no node can take now."""
    state = get_cluster_resource_state(_gcs())
    names = {row["NodeID"]: row["NodeName"] for row in ray.nodes()}
    nodes = {
        names[each.node_id.hex()]: Node(
            each.node_id.hex(),
            each.status != NodeStatus.DEAD,
            each.status == NodeStatus.DRAINING,
            plain(each.available_resources),
            each.idle_duration_ms / 1000,
        )
        for each in state.node_states
        if each.node_id.hex() in names
    }
    waiting = [
        Waiting([plain(each.request.resources_bundle)])
        for each in state.pending_resource_requests
        for _ in range(each.count)
    ]
    return nodes, waiting + [_together(gang.requests) for gang in state.pending_gang_resource_requests]


def _together(requests: Any) -> Waiting:
    kinds = [constraint for request in requests for constraint in request.placement_constraints]
    bundles = [plain(request.resources_bundle) for request in requests]
    if any(kind.HasField("affinity") for kind in kinds):
        return Waiting([total(bundles)])
    return Waiting(bundles, apart=any(kind.HasField("anti_affinity") for kind in kinds))


def announce(count: int, each: Bundle, prefix: str) -> None:
    """Let requests count on jobs that are submitted when requests wait.

    Args:
        count: maximum number of jobs.
        each: resources of the node of each job.
        prefix: beginning of the names of these nodes.
    """
    internal_kv._internal_kv_put(JOBS, pickle.dumps((count, dict(each), prefix)))
    # Ray says of each request that waits for a job that nothing can ever fulfil it.
    ray._private.ray_constants.AUTOSCALER_EVENTS = 0


def drain(node: Node, why: str, *, end: float | None = None) -> bool:
    """Let a node take no further calls; return False if this is refused, because the node is not idle.

    Args:
        node: the node.
        why: reason, for messages.
        end: Unix time at which the node is lost; None: drain the node only if it is idle.
    """
    reason = "DRAIN_NODE_REASON_IDLE_TERMINATION" if end is None else "DRAIN_NODE_REASON_PREEMPTION"
    deadline_ms = 0 if end is None else int(end * 1000)
    return bool(_gcs().drain_node(node.id, DrainNodeReason.Value(reason), why, deadline_ms)[0])


def actors_on(nodes: set[str]) -> list[str]:
    """Return the ids of the actors on nodes, which are given by their ids."""
    rows = ray._private.state.actors().values()
    return [row["ActorID"] for row in rows if row["Address"]["NodeID"] in nodes]


def _gcs() -> Any:
    return ray._private.worker.global_worker.gcs_client
