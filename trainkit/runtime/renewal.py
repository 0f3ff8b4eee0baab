"""Work that outlives the node of its session: it is told of the loss, and goes on in a new session."""

from __future__ import annotations

from trainkit.errors import NodeDiedError
from trainkit.runtime import api, current


class SessionWatch:
    """The session that some work runs in, and those that take its place when its node dies."""

    def __init__(self) -> None:
        self._engine = current.engine()

    def is_current(self) -> bool:
        """Return whether this program's session is still this one, and its node is there."""
        return api.is_initialized() and current.engine() is self._engine and self.loss() is None

    def loss(self) -> NodeDiedError | None:
        """Ask whether the node is there; return what has become of it if it is not."""
        try:
            self._engine.require_node()
        except NodeDiedError as error:
            return error
        return None

    def renew(self) -> None:
        """Go on in a new session, started as the one before.

        Raises:
            NotInitializedError: the session was shut down, or this is a worker, which ends with its node.
            NodeDiedError: the node of the new one has died too; call this again.
        """
        api.renew()
        self._engine = current.engine()
