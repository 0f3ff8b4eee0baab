"""What the node's queue holds: requests for processes and for groups of bundles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.resources import Bundle
from trainkit.runtime.local.channel import Descriptor
from trainkit.runtime.local.children import NOBODY
from trainkit.runtime.local.messages import Lease, StartActor
from trainkit.runtime.placement import Allocation, Ledger, Waiting
from trainkit.runtime.supervise import Exit as ExitRecord


@dataclass(slots=True)
class Request:
    """An entry of the queue: a process to start or lend, or a group to reserve."""

    waiting: Waiting
    client: int
    since: float
    what: str
    start: StartActor | Lease | None = None
    first: Descriptor | None = None
    answer: Callable[[Any], None] | None = None
    inquiries: list[Callable[[ExitRecord], None]] | None = None
    explained: bool = False

    @property
    def owner(self) -> int:
        """Whose end it shares: the client's, or nobody's."""
        start = self.start
        registration = start.registration if isinstance(start, StartActor) else None
        return NOBODY if registration is not None and registration.detached else self.client


@dataclass(slots=True)
class Group:
    """A reserved list of bundles, each a ledger of its own."""

    bundles: Sequence[Bundle]
    owner: int
    held: list[Allocation] | None
    ledgers: list[Ledger]
    waiting: list[Callable[[Any], None]]
