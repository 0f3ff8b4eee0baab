"""Records of the node: requests, placement groups, workers, and how workers ended."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainkit.errors import ObjectLostError
from trainkit.resources import Bundle
from trainkit.runtime.local.node.loop import try_send
from trainkit.runtime.local.wire.channel import Connection, Descriptor
from trainkit.runtime.local.wire.frames import NOTICE
from trainkit.runtime.local.wire.messages import Connect, RequestLease, StartActor, WorkerEnvironment, packed
from trainkit.runtime.placement import Allocation, Demand, Ledger
from trainkit.runtime.restart_policy import ExitRecord, describe
from trainkit.runtime.specs import Placement, Registration

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

    waiting: Demand
    client: int
    since: float
    what: str
    start: StartActor | RequestLease | None = None
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
class PlacementGroupRecord:
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


_TAIL_LINES = 50
_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16


class OutputPipe:
    """The node's end of a worker's stdout or stderr: cut into lines, the last ones kept.

    Args:
        fd: the reading end, owned from here on.
        on_lines: is given each batch of whole lines, as a terminal would show them in the end.
        on_bytes: is given all that comes, as it comes.
    """

    def __init__(
        self, fd: int, on_lines: Callable[[list[str]], None], on_bytes: Callable[[bytes], None]
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._on_lines = on_lines
        self._on_bytes = on_bytes
        self._partial = b""
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def read(self) -> bool:
        """Take what is there; False once the other end is closed."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._on_bytes(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data or len(self._partial) > _LONGEST_LINE_BYTES:
            if self._partial:
                lines.append(self._partial)
            self._partial = b""
        if lines:
            texts = [_shown(line) for line in lines]
            self.tail.extend(texts)
            self._on_lines(texts)
        return bool(data)

    def drain(self) -> None:
        """Take all that is there, when nothing more of interest can come."""
        while True:
            try:
                more = self.read()
                if not more or not _readable(self.fd):
                    break
            except OSError:
                break
        if self._partial:
            text = _shown(self._partial)
            self._partial = b""
            self.tail.append(text)
            self._on_lines([text])

    def close(self) -> None:
        """Close the reading end."""
        os.close(self.fd)


def _shown(line: bytes) -> str:
    """What a terminal shows of a line in which a progress bar was drawn again and again."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


@dataclass(slots=True)
class WorkerRecord:
    """One worker process, from the request for it to its end.

    Attributes:
        owner: number of the process that asked for it; NOBODY if it outlives that.
        allocation: what it holds and doesn't lend; None while it is idle in the pool.
        ledger_group: the group and bundle that `allocation` was taken from; None for the machine.
        lent: what it holds but lends, while it waits for others.
        wanted_back: its lessee knows that others wait for what it holds.
        passed_on: a process of its own has that, though there was nothing free.
        ending: why trainkit is ending it; "" if it isn't.
        departs: it ends in order, or is about to.
        interrupted: it is to be sent SIGINT as soon as its pid is known.
        may_restart: though trainkit is ending it, it is made anew if it can be.
        restarts: how often this actor has been made anew; one without a pid yet then is about to be.
        inquiries: who wants to know how it ended.
        is_actor: else it is leased for tasks.
        class_name: of an actor.
        registration: of an actor that more than its handles reach.
        shown_as: the name that its output is shown under; "" for its own.
        introduced: how many connections have been sent to it, see `introduce`.
    """

    worker_id: int
    serial: int
    name: str
    owner: int
    placement: Placement
    surroundings: WorkerEnvironment
    allocation: Allocation | None
    ledger_group: tuple[int, int] | None
    control: Connection
    stdout: OutputPipe
    stderr: OutputPipe
    pid: int | None = None
    lent: Allocation | None = None
    passed_on: bool = False
    wanted_back: bool = False
    ending: str = ""
    departs: bool = False
    interrupted: bool = False
    may_restart: bool = False
    restarts: int = 0
    oom_kills_before: int = 0
    inquiries: list[Callable[[ExitRecord], None]] = field(default_factory=list)
    is_actor: bool = False
    class_name: str = ""
    registration: Registration | None = None
    shown_as: str = ""
    introduced: int = 0

    @property
    def lends_cpus(self) -> bool:
        """True if it holds CPUs that it will lend when it waits."""
        return self.allocation is not None and bool(self.allocation.amounts.get("CPU"))


def introduce(worker: WorkerRecord, conn: Descriptor) -> None:
    """Send a worker a connection to one more that wants to call it."""
    worker.introduced += 1
    try_send(worker.control, NOTICE, 0, packed(Connect(), [conn]))


def lost_connection(worker: WorkerRecord) -> ObjectLostError:
    """The error for a connection that closed though the worker at its other end lives."""
    return ObjectLostError(
        f"{worker.name} (pid {worker.pid}) lives, but this connection to it was lost: its process had no "
        "file descriptor left. Release handles, references and large objects there, or raise the limit "
        "(ulimit -n); then get a new handle of it."
    )


_MOST_GRAVES = 10_000
_MOST_ACTORS = 1_000

Row = dict[str, Any]


class ExitRecords(dict[int, ExitRecord]):
    """How each worker ended, by its id; those buried first are forgotten first."""

    def __init__(self) -> None:
        super().__init__()
        self._forgotten = 0

    def __setitem__(self, worker_id: int, exit_: ExitRecord) -> None:
        self.pop(worker_id, None)
        super().__setitem__(worker_id, exit_)
        while len(self) > _MOST_GRAVES:
            del self[next(iter(self))]
            self._forgotten += 1

    def unknown(self) -> ExitRecord:
        """How one ended that is not among the graves, nor among the living."""
        if not self._forgotten:
            return ExitRecord(requested=True, reason="it belongs to a session that has ended")
        return ExitRecord(
            requested=True,
            reason=f"its record is gone: {_MOST_GRAVES:,} more have ended since, or of another session",
        )


class EndedActors:
    """What is listed of the last actors that ended."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=_MOST_ACTORS)

    def add(self, row: Row, exit_: ExitRecord) -> None:
        """Remember an actor by what was last listed of it."""
        cause = describe(exit_, row["class_name"]).partition("\n")[0]
        self._rows.append({**row, "state": "DEAD", "death_cause": cause})

    def rows(self) -> list[Row]:
        """Those who died first come first."""
        return [dict(row) for row in self._rows]


def actor_row(worker: WorkerRecord) -> Row:
    """What is listed of an actor that has a process, or is about to have one."""
    state = "ALIVE" if worker.pid is not None else "RESTARTING" if worker.restarts else "PENDING"
    return {
        **_row(worker.worker_id, worker.class_name or worker.name, worker.registration),
        "state": state,
        "pid": worker.pid,
        "resources": dict(worker.placement.resources),
        "restarts": worker.restarts,
    }


def pending_row(asked: StartActor) -> Row:
    """What is listed of an actor that waits for its turn."""
    return {
        **_row(asked.worker_id, asked.class_name or asked.name, asked.registration),
        "state": "PENDING",
        "pid": None,
        "resources": dict(asked.placement.resources),
        "restarts": 0,
    }


def _row(worker_id: int, class_name: str, registration: Registration | None) -> Row:
    return {
        "actor_id": f"{worker_id:016x}",
        "class_name": class_name,
        "name": (registration.name if registration else None) or "",
        "namespace": (registration.namespace if registration else None) or "",
        "detached": registration is not None and registration.detached,
        "death_cause": None,
    }
