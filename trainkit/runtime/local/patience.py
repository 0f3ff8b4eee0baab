"""What is done for those who wait: others are asked to give back, and the wait is explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.clock import SYSTEM
from trainkit.resources import describe, total
from trainkit.runtime.local.messages import Reclaim, Waits

if TYPE_CHECKING:
    from trainkit.runtime.local.node import Node

_PATIENCE_S = 10.0
"""After this long a waiting request is explained to who made it."""


class Patience:
    """Looks after the requests that wait.

    Args:
        node: whose loop it lives in.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._will_explain = False

    def reclaim(self) -> None:
        """Ask all processes for the leases that they keep without need."""
        for client in self._node.clients():
            self._node.notify(client, Reclaim())

    def explain_later(self) -> None:
        """See to it that what waits now is explained when it has waited long."""
        waiting = [request.since for request in self._node.stores.queue if not request.explained]
        if waiting and not self._will_explain:
            self._will_explain = True
            self._node.after(max(0.0, min(waiting) + _PATIENCE_S - SYSTEM.monotonic()), self._explain)

    def _explain(self) -> None:
        self._will_explain = False
        now = SYSTEM.monotonic()
        for request in self._node.stores.queue:
            if not request.explained and now - request.since >= _PATIENCE_S:
                request.explained = True
                asked = describe(total(request.waiting.bundles))
                self._node.notify(
                    request.client,
                    Waits(
                        f"{request.what} has been waiting {_PATIENCE_S:g} s for {asked}; {self._holders()}"
                    ),
                )

        self.explain_later()

    def _holders(self) -> str:
        stores = self._node.stores
        holders = [
            f"{worker.name} (pid {worker.pid}) holds {describe(worker.placement.resources)}"
            for worker in self._node.census.workers()
            if worker.allocation is not None and worker.placement.resources
        ]
        groups = [
            f"a group holds {describe(total(group.bundles))}"
            for group in stores.groups.living()
            if group.held
        ]
        free = describe({name: amount for name, amount in stores.available().items() if amount > 0})
        return f"free: {free}; " + "; ".join(holders + groups or ["nobody holds any"])
