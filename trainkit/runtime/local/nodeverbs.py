"""The verbs of the local engine that come down to one question to the node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from trainkit.resources import Bundle
from trainkit.runtime.capture import require_one_node
from trainkit.runtime.local.devices import gpu_ids
from trainkit.runtime.local.messages import Available, FindGroup, Release, Reserve, State
from trainkit.runtime.local.nodelink import NodeLink
from trainkit.runtime.specs import PlacementGroupId


class NodeVerbs:
    """Part of `client.LocalEngine`; see `trainkit.runtime.engine.Engine`.

    Args:
        link: the connection to the node.
        totals: all resources of the session.
        gpus: names of the GPUs that this process may use.
        group: the placement group it was started in, with its bundles.
    """

    def __init__(
        self,
        link: NodeLink,
        totals: Bundle,
        gpus: Sequence[str],
        group: tuple[PlacementGroupId, list[Bundle]] | None,
    ) -> None:
        self.link = link
        self._totals = dict(totals)
        self._gpus = list(gpus)
        self._group = group

    @abstractmethod
    def _reclaim(self) -> None:
        """Return the leases that are idle."""

    @abstractmethod
    def _with_own_tasks(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The node's list of tasks, with what this process knows better: what it has queued itself."""

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        require_one_node(bundles, strategy)
        group = self.link.new_id()
        try:
            self.link.demand(Reserve(group, list(bundles), strategy, name, detached))
        except KeyboardInterrupt:  # nobody would have it
            self.link.tell(Release(group))
            raise
        return group

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        found: tuple[int, list[Bundle]] = self.link.demand(FindGroup(name))
        return found

    def release(self, group: int) -> None:
        if not self.link.closed:
            self.link.demand(Release(group))

    def current_group(self) -> tuple[PlacementGroupId, list[Bundle]] | None:
        return self._group

    def require_node(self) -> None:
        self.link.demand(Available())

    def cluster_resources(self) -> Bundle:
        return dict(self._totals)

    def available_resources(self) -> Bundle:
        self._reclaim()  # what only waits for a further task is free
        amounts: Bundle = self.link.demand(Available())
        return amounts

    def state(self, kind: str) -> list[dict[str, Any]]:
        if kind == "nodes":
            self._reclaim()  # what only waits for a further task is free
        rows: list[dict[str, Any]] = self.link.demand(State(kind))
        return self._with_own_tasks(rows) if kind == "tasks" else rows

    def gpu_ids(self) -> list[int | str]:
        return gpu_ids(self._gpus)
