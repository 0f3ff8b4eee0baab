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
    """Return the facts of a session of this machine by Ray's names; those of what it has not are None."""
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
        address_info: see the attribute.
        shutdown: ends the session.

    Attributes:
        address_info: facts by Ray's names, such as "node_id", "address" and "session_dir"; those of what
            is not here, such as "gcs_address" on one machine, are None. `context["node_id"]` reads them too.
        dashboard_url: of Ray's dashboard; "" where there is none.
        python_version: of this process.
        ray_version: of the Ray that runs the session; None on the other engines.
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
    """Place of the calling code in the session. Ids that methods return are hexadecimal texts.

    Attributes:
        namespace: of the session's named actors.
        was_current_actor_reconstructed: this actor was made anew after its process had died.
    """

    def __init__(self, where: WhereAmI) -> None:
        self._where = where
        self.namespace = where.namespace
        self.was_current_actor_reconstructed = where.was_restarted

    def get(self) -> dict[str, Any]:
        """Return the ids and the namespace; those of a task and of an actor only where there is one."""
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
        """Return the id of the actor that this runs in; None outside one."""
        return self._where.actor_id

    def get_actor_name(self) -> str | None:
        """Return the name given by `.options(name=)`, "" for an actor without one; None outside an actor."""
        return self._where.actor_name

    def get_task_id(self) -> str | None:
        """Return the id of the call that this runs in; None outside one."""
        return self._where.task_id

    def get_task_name(self) -> str | None:
        """Return the name of the call that this runs in, "Class.method" in an actor; None outside one."""
        return self._where.task_name

    def is_canceled(self) -> bool:
        """Return True if the call that this runs in was cancelled, so that it can end early.

        Only a method of an actor has to ask, as it goes on then; a task is interrupted.

        Raises:
            ConfigError: no call runs here.
        """
        if self._where.task_id is None:
            raise ConfigError("is_canceled() was asked for outside a call")
        return engine().is_cancelled()

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group that this process was started in; None outside one."""
        group = self.current_placement_group_id
        return None if group is None else group.hex()

    def get_assigned_resources(self) -> dict[str, float]:
        """Return what this process holds."""
        held = self._where.resources
        return {name: float(amount) for name, amount in held.items()}

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the indices of the GPUs given to this process, as {"GPU": ["0"]}."""
        return {"GPU": [str(index) for index in engine().gpu_ids()]}

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of the machine."""
        here = next(row for row in engine().state("nodes") if row["node_id"] == self._where.node_id)
        return dict(here["labels"])

    @property
    def current_actor(self) -> Any:
        """A handle of the actor that this runs in.

        Raises:
            ConfigError: this is no actor.
        """
        found = engine().current_actor()
        if found is None:
            raise ConfigError("current_actor was asked for outside an actor")
        return ActorHandle(*found)

    @property
    def job_id(self) -> JobID:
        """The id of `get_job_id`."""
        return JobID.from_hex(self._where.job_id)

    @property
    def node_id(self) -> NodeID:
        """The id of `get_node_id`."""
        return NodeID.from_hex(self._where.node_id)

    @property
    def task_id(self) -> TaskID | None:
        """The id of `get_task_id`."""
        return None if self._where.task_id is None else TaskID.from_hex(self._where.task_id)

    @property
    def actor_id(self) -> ActorID | None:
        """The id of `get_actor_id`."""
        return None if self._where.actor_id is None else ActorID.from_hex(self._where.actor_id)

    @property
    def current_placement_group_id(self) -> PlacementGroupID | None:
        """The id of the placement group that this process was started in; None outside one."""
        found = engine().current_group()
        return None if found is None else PlacementGroupID(found[0].group)

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """True if what is started here goes into this process's own placement group."""
        found = engine().current_group()
        return found is not None and found[0].capture


def get_runtime_context() -> RuntimeContext:
    """Where this code runs: ids of its node, worker, actor and task."""
    return RuntimeContext(engine().where_am_i())


def promises() -> frozenset[str]:
    """Return the promises of the engine in use, by the names of `trainkit.runtime.engine.PROMISES`."""
    return engine().promises


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

    What Ray's `nodes` tells of each, such as NodeID, Alive, NodeManagerAddress and Resources, is there by
    those names too.
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
