"""Context of a running call, with the ids of its node, worker, actor and task."""

from __future__ import annotations

from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime.calls.remote import ActorHandle
from trainkit.runtime.ids import ActorID, JobID, NodeID, TaskID
from trainkit.runtime.scheduling import PlacementGroupID
from trainkit.runtime.session import engine
from trainkit.runtime.specs import WhereAmI


class RuntimeContext:
    """Context of the calling code, such as the ids of its machine, process, actor and call.

    Methods return ids as hexadecimal strings.

    Attributes:
        namespace: namespace of the session's named actors.
        was_current_actor_reconstructed: True if this actor was restarted after its process died.
    """

    def __init__(self, where: WhereAmI) -> None:
        self._where = where
        self.namespace = where.namespace
        self.was_current_actor_reconstructed = where.was_restarted

    def get(self) -> dict[str, Any]:
        """Return a dictionary of the ids and the namespace.

        Outside a task or actor, the id of the task or actor is missing.
        """
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
        """Return the name that `.options(name=)` gave the actor; "" for an unnamed
        actor, None outside an actor.
        """
        return self._where.actor_name

    def get_task_id(self) -> str | None:
        """Return the id of the call that runs this code; None outside a call."""
        return self._where.task_id

    def get_task_name(self) -> str | None:
        """Return the name of the call that runs this code, such as "Class.method"; None outside a call."""
        return self._where.task_name

    def is_canceled(self) -> bool:
        """Return True if the call that runs this code was cancelled and should end early.

        Only methods of actors need to check, because cancelling interrupts tasks but not methods.

        Raises:
            ConfigError: the code does not run in a call.
        """
        if self._where.task_id is None:
            raise ConfigError("is_canceled() works only inside a task or an actor's method")
        return engine().is_cancelled()

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group in which this process was started; None outside a group."""
        group = self.current_placement_group_id
        return None if group is None else group.hex()

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the resources that are reserved for this process, by name."""
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
            raise ConfigError("current_actor is available only inside an actor")
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
        """True if tasks and actors started by this process use the placement group
        of this process by default.
        """
        found = engine().current_group()
        return found is not None and found[0].capture


def get_runtime_context() -> RuntimeContext:
    """Return the context of the calling code, with the ids of its node, worker, actor and task."""
    return RuntimeContext(engine().where_am_i())
