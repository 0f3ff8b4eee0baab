"""Facts about the session: the runtime context and the listings of nodes, actors, tasks and objects."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from trainkit.errors import ConfigError
from trainkit.resources import total
from trainkit.runtime.remote import ActorHandle
from trainkit.runtime.session import engine
from trainkit.runtime.specs import ActorID, JobID, NodeID, PlacementGroupID, TaskID, WhereAmI


def address_info(node_id: str, session_dir: str | None) -> dict[str, Any]:
    """Return the facts of a session of this machine by Ray's names; facts of missing services are None."""
    return {
        "node_ip_address": "127.0.0.1",
        "node_id": node_id,
        "session_dir": session_dir,
        "webui_url": "",
        **dict.fromkeys(
            (
                "address",
                "dashboard_agent_listen_port",
                "gcs_address",
                "metrics_export_port",
                "object_store_address",
                "raylet_socket_name",
                "redis_address",
            )
        ),
    }


class SessionContext(Mapping[str, Any]):
    """Return value of `init`: facts about the session, and a context manager that ends it.

    Args:
        address_info: facts about the session.
        shutdown: function that ends the session.

    Attributes:
        address_info: facts by Ray's names, such as "node_id", "address" and "session_dir". Facts of services
            that do not exist, such as "gcs_address" on one machine, are None. `context["node_id"]` reads them
            too.
        dashboard_url: address of Ray's dashboard; "" if there is none.
        python_version: Python version of this process.
        ray_version: version of Ray; None on the other engines.
    """

    def __init__(self, address_info: Mapping[str, Any], shutdown: Callable[[], None]) -> None:
        self.address_info = dict(address_info)
        self.dashboard_url: str = self.address_info.get("webui_url") or ""
        self.python_version = platform.python_version()
        self.ray_version: str | None = self.address_info.pop("ray_version", None)
        self._shutdown = shutdown

    def disconnect(self) -> None:
        """End the session, as `shutdown` does."""
        self._shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shutdown()

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __repr__(self) -> str:
        return f"SessionContext(dashboard_url={self.dashboard_url!r}, address_info={self.address_info})"


class RuntimeContext:
    """Position of the calling code in the session. Its methods return ids as hexadecimal strings.

    Attributes:
        namespace: namespace of the session's named actors.
        was_current_actor_reconstructed: True if this actor was restarted after its process died.
    """

    def __init__(self, where: WhereAmI) -> None:
        self._where = where
        self.namespace = where.namespace
        self.was_current_actor_reconstructed = where.was_restarted

    def get(self) -> dict[str, Any]:
        """Return the ids and the namespace; the task's and the actor's id only inside a task or an actor."""
        found = {
            "job_id": self.job_id,
            "node_id": self.node_id,
            "namespace": self.namespace,
            "task_id": self.task_id,
            "actor_id": self.actor_id,
        }
        return {name: value for name, value in found.items() if value is not None}

    def get_job_id(self) -> str:
        """Return the id of the program that started the session."""
        return self._where.job_id

    def get_node_id(self) -> str:
        """Return the id of the machine."""
        return self._where.node_id

    def get_worker_id(self) -> str:
        """Return the id of this process."""
        return self._where.worker_id

    def get_actor_id(self) -> str | None:
        """Return the id of the actor that runs this code; None outside an actor."""
        return self._where.actor_id

    def get_actor_name(self) -> str | None:
        """Return the name given by `.options(name=)`; "" for an unnamed actor, None outside an actor."""
        return self._where.actor_name

    def get_task_id(self) -> str | None:
        """Return the id of the call that runs this code; None outside a call."""
        return self._where.task_id

    def get_task_name(self) -> str | None:
        """Return the name of the call that runs this code, such as "Class.method"; None outside a call."""
        return self._where.task_name

    def is_canceled(self) -> bool:
        """Return True if the call that runs this code was cancelled, so that the call can end early.

        Only methods of actors need to check, because cancelling does not interrupt them as it interrupts
        tasks.

        Raises:
            ConfigError: the code does not run in a call.
        """
        if self._where.task_id is None:
            raise ConfigError("is_canceled() was asked for outside a call")
        return engine().is_cancelled()

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group in which this process was started; None outside a group."""
        group = self.current_placement_group_id
        return None if group is None else group.hex()

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the resources that this process holds, by name."""
        held = self._where.resources
        return {name: float(amount) for name, amount in held.items()}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the indices of the GPUs assigned to this process, such as {"GPU": ["0"]}."""
        return {"GPU": [str(index) for index in engine().gpu_ids()]}

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of the machine."""
        here = next(row for row in engine().state("nodes") if row["node_id"] == self._where.node_id)
        return dict(here["labels"])

    @property
    def current_actor(self) -> Any:
        """Handle of the actor that runs this code.

        Raises:
            ConfigError: the code does not run in an actor.
        """
        found = engine().current_actor()
        if found is None:
            raise ConfigError("current_actor was asked for outside an actor")
        return ActorHandle(*found)

    @property
    def job_id(self) -> JobID:
        """Id that `get_job_id` returns, as an object."""
        return JobID.from_hex(self._where.job_id)

    @property
    def node_id(self) -> NodeID:
        """Id that `get_node_id` returns, as an object."""
        return NodeID.from_hex(self._where.node_id)

    @property
    def task_id(self) -> TaskID | None:
        """Id that `get_task_id` returns, as an object."""
        return None if self._where.task_id is None else TaskID.from_hex(self._where.task_id)

    @property
    def actor_id(self) -> ActorID | None:
        """Id that `get_actor_id` returns, as an object."""
        return None if self._where.actor_id is None else ActorID.from_hex(self._where.actor_id)

    @property
    def current_placement_group_id(self) -> PlacementGroupID | None:
        """Id of the placement group in which this process was started; None outside a group."""
        found = engine().current_group()
        return None if found is None else PlacementGroupID(found[0].group)

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """True if tasks and actors started here use this process's own placement group."""
        found = engine().current_group()
        return found is not None and found[0].capture


def get_runtime_context() -> RuntimeContext:
    """Return the position of the calling code: ids of its node, worker, actor and task."""
    return RuntimeContext(engine().where_am_i())


def promises() -> frozenset[str]:
    """Return the promises of the current engine; `trainkit.runtime.engine.PROMISES` explains their names."""
    return engine().promises


def cluster_resources() -> dict[str, float]:
    """Return all resources of the session, such as {"CPU": 4.0}, including memory for large objects."""
    stores = [_object_store(node) for node in engine().state("nodes")]
    return _shown(total([engine().cluster_resources(), *stores]))


def available_resources() -> dict[str, float]:
    """Return the free resources; resources that are used up are left out."""
    stores = [_object_store(node, free=True) for node in engine().state("nodes")]
    return _shown(total([engine().available_resources(), *stores]))


def _object_store(node: Mapping[str, Any], *, free: bool = False) -> dict[str, float]:
    """Return the memory for large objects on a node, or only its free part, by the resource's name."""
    store = node["object_store"]
    if not store:
        return {}
    used = store["used_bytes"] if free else 0
    return {"object_store_memory": max(0, store["limit_bytes"] - used)}


def _shown(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items() if amount}


def nodes() -> list[dict[str, Any]]:
    """Return the session's machines, each with name, address, resources and whether it is alive.

    Each row also has Ray's names, such as NodeID, Alive, NodeManagerAddress and Resources.
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
    """Return the session's actors, living and dead, with state, name, pid and resources."""
    return engine().state("actors")


def list_tasks() -> list[dict[str, Any]]:
    """Return the tasks that wait or run, with state, name, pid and resources."""
    return engine().state("tasks")


def list_objects() -> list[dict[str, Any]]:
    """Return the large objects with their size in bytes, their holders, and whether they are on disk."""
    return engine().state("objects")


def list_placement_groups() -> list[dict[str, Any]]:
    """Return the placement groups, with state, bundles and strategy."""
    return engine().state("placement_groups")


def get_gpu_ids() -> list[int | str]:
    """Return the ids of the GPUs assigned to this worker; in the driver, of all GPUs.

    The ids are numbers or UUIDs, as in CUDA_VISIBLE_DEVICES. If that is not set, the numbers count from 0.
    """
    return engine().gpu_ids()
