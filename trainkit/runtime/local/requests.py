"""What the node's queue holds: requests for processes and for groups of bundles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.resources import Bundle
from trainkit.runtime.local.channel import Descriptor
from trainkit.runtime.local.messages import Lease, StartActor
from trainkit.runtime.placement import Allocation, Ledger, Waiting
from trainkit.runtime.supervise import Exit as ExitRecord

DRIVER = 1
"""The driver's number in the session."""

NOBODY = 0
"""In place of an owner's number: it belongs to no process, and ends with none."""


@dataclass(slots=True)
class Request:
    """An entry of the queue: a process to start or lend, or a group to reserve.

    Attributes:
        ready: False of an actor while an argument of its constructor is still to come; others go first.
    """

    waiting: Waiting
    client: int
    since: float
    what: str
    start: StartActor | Lease | None = None
    first: Descriptor | None = None
    answer: Callable[[Any], None] | None = None
    inquiries: list[Callable[[ExitRecord], None]] | None = None
    explained: bool = False
    ready: bool = True

    @property
    def owner(self) -> int:
        """Whose end it shares: the client's, or nobody's."""
        start = self.start
        registration = start.registration if isinstance(start, StartActor) else None
        return NOBODY if registration is not None and registration.detached else self.client


@dataclass(slots=True)
class Group:
    """A reserved list of bundles, each a ledger of its own.

    Attributes:
        owner: number of the process that asked for it; NOBODY's if it is detached.
        held: None while it waits.
    """

    bundles: Sequence[Bundle]
    owner: int
    held: list[Allocation] | None
    ledgers: list[Ledger]
    waiting: list[Callable[[Any], None]]
    strategy: str = "PACK"
    name: str = ""

    @property
    def what(self) -> str:
        """What it is called in texts."""
        named = f" {self.name!r}" if self.name else ""
        count = len(self.bundles)
        return f"a group{named} of {count} bundle{'s' * (count != 1)}"
