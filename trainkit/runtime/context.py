"""Where code runs, in Ray's words: `get_runtime_context()`."""

from __future__ import annotations

from trainkit.runtime.specs import WhereAmI


class RuntimeContext:
    """The place of the calling code in the session; ids are hexadecimal texts.

    Attributes:
        namespace: of the session's named actors.
        was_current_actor_reconstructed: this actor was made anew after its process had died.
    """

    def __init__(self, where: WhereAmI) -> None:
        self._where = where
        self.namespace = where.namespace
        self.was_current_actor_reconstructed = where.was_restarted

    def get_node_id(self) -> str:
        """Of the machine."""
        return self._where.node_id

    def get_worker_id(self) -> str:
        """Of this process."""
        return self._where.worker_id

    def get_actor_id(self) -> str | None:
        """Of the actor that this runs in; None outside one."""
        return self._where.actor_id

    def get_task_id(self) -> str | None:
        """Of the call that this runs in; None outside one."""
        return self._where.task_id

    def get_assigned_resources(self) -> dict[str, float]:
        """What this process holds."""
        return dict(self._where.resources)
