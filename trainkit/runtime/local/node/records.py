"""Records of the node: requests, placement groups, workers, how workers ended, and events about them.

Nothing in here starts, ends or calls a process, so all of it can be tested without one.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trainkit.clock import SYSTEM
from trainkit.errors import WorkerDiedError
from trainkit.resources import Bundle
from trainkit.runtime.local.wire.channel import Connection, Descriptor
from trainkit.runtime.local.wire.messages import RequestLease, StartActor, WorkerSpec
from trainkit.runtime.placement import Allocation, Demand, Ledger
from trainkit.runtime.restart_policy import ExitRecord, describe
from trainkit.runtime.specs import Registration, SessionSpec

DRIVER = 1
"""Number of the driver in the session."""

NOBODY = 0
"""Owner of what belongs to no process and ends with none."""

_MOST_EXITS = 10_000
_MOST_ACTORS = 1_000

Answer = Callable[[Any], None]
"""Sends the answer to a request of a client."""

Notify = Callable[[int, Any], None]
"""`Clients.notify`: sends a message to the process of a number, if it is still there."""

Kill = Callable[[int, str, Callable[[ExitRecord], None]], None]
"""`Supervisor.kill`: ends the worker of an id for a reason, and calls a function when it is dead."""

Row = dict[str, Any]


# the session


@dataclass(slots=True)
class SessionRecord:
    """The session and its driver.

    Attributes:
        folder: of the session, and mark of its processes.
        account_fd: of the budget of shared memory.
        gpus: names of the GPUs in CUDA_VISIBLE_DEVICES, by index.
        template: connection of the template that imports nothing.
        template_pid: pid of that template.
        driver_pid: pid of the program that started the session.
        program: its name and folder, as JSON.
        new_template: starts one more template that imports nothing; returns its connection and pid.
        driver_gone: that program has ended.
    """

    spec: SessionSpec
    folder: Path
    account_fd: int
    gpus: Sequence[str]
    template: socket.socket
    template_pid: int
    driver_pid: int
    program: str
    new_template: Callable[[], tuple[socket.socket, int]]
    driver_gone: bool = False

    @property
    def node_id(self) -> str:
        """Id of this machine in the session; the same in all its processes."""
        name = self.folder.name
        return name.rpartition("-")[2]


# requests


@dataclass(eq=False, kw_only=True)
class Request(Demand):
    """Entry of the queue: a worker to start or lend, or a placement group to reserve.

    Attributes:
        ready: False for an actor while an argument of its constructor is still to come; others go first.
    """

    client: int
    start: StartActor | RequestLease | None = None
    first: Descriptor | None = None
    answer: Answer | None = None
    inquiries: list[Callable[[ExitRecord], None]] = field(default_factory=list)
    explained: bool = False
    ready: bool = True

    @property
    def owner(self) -> int:
        """Number of the process that the request ends with: the client, or nobody."""
        start = self.start
        registration = start.registration if isinstance(start, StartActor) else None
        return NOBODY if registration is not None and registration.detached else self.client


class OutputEnd(Protocol):
    """Reading end of a worker's stdout or stderr.

    Attributes:
        tail: the last lines.
    """

    fd: int
    tail: deque[str]

    def drain(self) -> None:
        """Take all that is there, when nothing more of interest can come."""

    def close(self) -> None:
        """Close the reading end."""


# workers


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker process, from the request for it to its end.

    Attributes:
        owner: number of the process that asked for it; NOBODY if it outlives that.
        spec: what its process was started with; an idle one that is used again has another `worker_id`.
        allocation: what it holds and doesn't lend; None while it is idle in the pool.
        held_s: when that was granted.
        ledger_group: the group and bundle that `allocation` was taken from; None for the machine.
        lent: what it holds but lends, while it waits for others.
        lent_out: as much of its lent CPUs the machine has, instead of its group.
        wanted_back: its lessee knows that others wait for what it holds.
        passed_on: a process of its own has what it lent, though nothing was free.
        ending: why trainkit is ending it; "" if it isn't.
        departs: it ends in order, or is about to.
        interrupted: it is to be sent SIGINT as soon as its pid is known.
        may_restart: it is restarted if it can be, though trainkit is ending it.
        restarts: how often this actor has been restarted; one without a pid yet then is about to be.
        inquiries: functions to call with how it ended.
        is_actor: else it is leased for tasks.
        shown_as: the name that its output is shown under; "" for its own.
        introduced: how many connections have been sent to it.
    """

    worker_id: int
    serial: int
    name: str
    owner: int
    spec: WorkerSpec
    allocation: Allocation | None
    ledger_group: tuple[int, int] | None
    control: Connection
    stdout: OutputEnd
    stderr: OutputEnd
    held_s: float = 0.0
    pid: int | None = None
    lent: Allocation | None = None
    lent_out: int = 0
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
    shown_as: str = ""
    introduced: int = 0

    @property
    def lends_cpus(self) -> bool:
        """True if it holds CPUs that it will lend when it waits."""
        held = self.allocation
        return held is not None and bool(held.amounts.get("CPU"))

    @property
    def kind(self) -> str:
        """Name that it has in common with others that run the same code."""
        return self.spec.class_name or self.name

    @property
    def is_reusable(self) -> bool:
        """True if another task may have its process."""
        # One that had a GPU still has its context there, and the next holder may be another.
        had_gpus = self.allocation is not None and self.allocation.gpus
        return not self.ending and self.ledger_group is None and not had_gpus

    def exit_as_ordered(self) -> ExitRecord:
        """Return how it ended, if it was to be ended before it had a process."""
        return ExitRecord(requested=True, reason=self.ending, may_restart=self.may_restart)


class WorkerTable:
    """The living workers of the session, and how those before them ended."""

    def __init__(self) -> None:
        self._by_id: dict[int, WorkerRecord] = {}
        self._by_serial: dict[int, WorkerRecord] = {}
        self._last_serial = DRIVER
        self.exits = ExitRecords()
        self._ended_actors: deque[Row] = deque(maxlen=_MOST_ACTORS)

    def next_serial(self) -> int:
        """Return a number for the next process."""
        self._last_serial += 1
        return self._last_serial

    def add(self, worker: WorkerRecord) -> None:
        """Enter a worker."""
        self._by_id[worker.worker_id] = worker
        self._by_serial[worker.serial] = worker

    def keep(self, worker: WorkerRecord) -> None:
        """List a worker by its id, also if it has no process at present."""
        self._by_id[worker.worker_id] = worker

    def remove(self, worker_id: int) -> None:
        """Remove the worker of that id, if there is one."""
        self._by_id.pop(worker_id, None)

    def remove_process(self, serial: int) -> None:
        """Remove the number of a process that has ended."""
        self._by_serial.pop(serial, None)

    def rename(self, worker: WorkerRecord, worker_id: int) -> None:
        """Give a worker another id, such as that of its next lease."""
        self._by_id.pop(worker.worker_id, None)
        worker.worker_id = worker_id
        self._by_id[worker_id] = worker

    def show_as(self, serial: int, name: str) -> None:
        """Show the output of the process with that number under `name`."""
        worker = self._by_serial.get(serial)
        if worker is not None:
            worker.shown_as = name

    def get(self, worker_id: int) -> WorkerRecord | None:
        """Return the living worker of that id."""
        return self._by_id.get(worker_id)

    def by_serial(self, serial: int) -> WorkerRecord | None:
        """Return the worker whose process has that number, until its end is dealt with."""
        return self._by_serial.get(serial)

    def all(self) -> list[WorkerRecord]:
        """Return all living workers."""
        return list(self._by_id.values())

    def settled(self, worker_id: int) -> WorkerRecord | None:
        """Return the living worker of that id, once what it has sent to the node so far is dealt with."""
        worker = self._by_id.get(worker_id)
        if worker is not None:
            worker.control.try_read()
        return self._by_id.get(worker_id)

    def add_ended(self, row: Row, exit_: ExitRecord) -> None:
        """List an actor that has ended, by its last row."""
        cause = describe(exit_, row["class_name"]).partition("\n")[0]
        self._ended_actors.append({**row, "state": "DEAD", "death_cause": cause})

    def ended_rows(self) -> list[Row]:
        """Return the rows of the last actors that ended, in the order of their ends."""
        return [dict(row) for row in self._ended_actors]

    def heir(self, worker: WorkerRecord) -> int:
        """Return the owner of what a worker leaves: the driver; NOBODY if a detached actor began it all."""
        seen = {worker.serial}
        owner = worker.owner
        while owner not in (DRIVER, NOBODY):
            above = self._by_serial.get(owner)
            if above is None or owner in seen:
                return DRIVER
            seen.add(owner)
            owner = above.owner
        return owner

    def belonging_to(self, owner: int) -> set[int]:
        """Return the numbers of the workers that `owner` asked for, that those asked for, and so on."""
        workers = self.all()
        found = {worker.serial for worker in workers if worker.owner == owner}
        while True:
            more = {worker.serial for worker in workers if worker.owner in found} - found
            if not more:
                return found
            found |= more


class ExitRecords(dict[int, ExitRecord]):
    """How each worker ended, by its id. The oldest records are forgotten first."""

    def __init__(self) -> None:
        super().__init__()
        self._forgotten = 0

    def __setitem__(self, worker_id: int, exit_: ExitRecord) -> None:
        self.pop(worker_id, None)
        super().__setitem__(worker_id, exit_)
        while len(self) > _MOST_EXITS:
            del self[next(iter(self))]
            self._forgotten += 1

    def unknown(self) -> ExitRecord:
        """Return the record of a worker that is neither listed here nor alive."""
        if not self._forgotten:
            return ExitRecord(requested=True, reason="it belongs to a session that has ended")
        return ExitRecord(
            requested=True,
            reason=f"its record is gone: {_MOST_EXITS:,} more have ended since, or of another session",
        )


def actor_row(worker: WorkerRecord) -> Row:
    """Return the row of an actor that has a process, or is about to have one."""
    state = "ALIVE" if worker.pid is not None else "RESTARTING" if worker.restarts else "PENDING"
    return {
        **_row(worker.worker_id, worker.kind, worker.spec.registration),
        "state": state,
        "pid": worker.pid,
        "resources": dict(worker.spec.placement.resources),
        "restarts": worker.restarts,
    }


def pending_row(asked: StartActor) -> Row:
    """Return the row of an actor that waits for its turn."""
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
        "name": registration.name if registration else None,
        "namespace": (registration.namespace if registration else None) or "",
        "detached": registration is not None and registration.detached,
        "death_cause": None,
    }


# placement groups


@dataclass(slots=True)
class PlacementGroupRecord:
    """Reserved list of bundles, each with a ledger of its own.

    Attributes:
        owner: number of the process that asked for it; NOBODY if it is detached.
        held: None while it waits.
        held_s: when it was granted.
    """

    bundles: Sequence[Bundle]
    owner: int
    held: list[Allocation] | None
    ledgers: list[Ledger]
    waiting: list[Answer]
    strategy: str = "PACK"
    name: str = ""
    held_s: float = 0.0

    @property
    def what(self) -> str:
        """Its name in messages."""
        named = f" {self.name!r}" if self.name else ""
        count = len(self.bundles)
        return f"a group{named} of {count} bundle{'s' * (count != 1)}"


# events


class WorkerStarted(NamedTuple):
    """A template is asked to fork a worker."""

    worker: WorkerRecord


class WorkerExited(NamedTuple):
    """The process of a worker has ended, or could not be started.

    Attributes:
        heir: number of the process that has what the worker leaves.
        in_order: it ended of its own will, as no process needed it any more.
    """

    worker: WorkerRecord
    exit_: ExitRecord
    heir: int
    in_order: bool


class WorkerEnded(NamedTuple):
    """A worker's id is over: its process has ended and is not restarted, or there never was one.

    Attributes:
        worker: None if it never had a process.
    """

    worker_id: int
    exit_: ExitRecord
    worker: WorkerRecord | None = None


class RequestGranted(NamedTuple):
    """A request for a worker was granted.

    Attributes:
        allocation: what it was given.
        where: the group and bundle that this was taken from; None for the machine.
        bundles: all of that group.
        idle: a worker of the same make, to be used again; None if one is to be started.
    """

    request: Request
    allocation: Allocation
    where: tuple[int, int] | None = None
    bundles: Sequence[Bundle] = ()
    idle: WorkerRecord | None = None


class StartFailed(NamedTuple):
    """The worker of a granted request could not be started."""

    granted: RequestGranted
    reason: str


class RequestRefused(NamedTuple):
    """A request was taken out of the queue, and will never be granted."""

    request: Request
    exit_: ExitRecord


class RequestsWaiting(NamedTuple):
    """Requests are left in the queue, after all was granted that could be."""


class DetachedActorsEnded(NamedTuple):
    """The last detached actor has ended."""


Publish = Callable[[Any], None]
"""`Events.publish`."""


class Events:
    """Events of the node, and the functions that are called with each kind of them."""

    def __init__(self) -> None:
        self._subscribers: Mapping[type, Sequence[Callable[[Any], object]]] = {}

    def connect(self, subscribers: Mapping[type, Sequence[Callable[[Any], object]]]) -> None:
        """Have events delivered, each to its subscribers in their order."""
        self._subscribers = subscribers

    def publish(self, event: Any) -> None:
        """Deliver an event at once."""
        for subscriber in self._subscribers[type(event)]:
            subscriber(event)


# the queue


class RequestQueue:
    """Requests that wait, in the order in which they were made.

    Args:
        publish: delivers an event.
        now: monotonic clock.
    """

    def __init__(self, publish: Publish, now: Callable[[], float] = SYSTEM.monotonic) -> None:
        self._publish = publish
        self._now = now
        self._requests: list[Request] = []
        self.changed = False
        """Something was added, or is free, since the queue was last served."""

    def __iter__(self) -> Any:
        return iter(self._requests)

    def __contains__(self, key: object) -> bool:
        return any(request.key == key for request in self._requests)

    def all(self) -> list[Request]:
        """Return all requests."""
        return list(self._requests)

    def line(self) -> list[Request]:
        """Return the requests that wait for resources alone."""
        return [request for request in self._requests if request.ready]

    def look_again(self) -> None:
        """Have the queue served, though nothing changed but the time."""
        self.changed = True

    def add(self, request: Request) -> None:
        """Add a request."""
        request.since = self._now()
        self._requests.append(request)
        self.changed = True

    def remove(self, keys: set[int]) -> None:
        """Remove requests that were granted."""
        self._requests = [request for request in self._requests if request.key not in keys]

    def arguments_there(self, worker_id: int) -> None:
        """Have an actor take its turn, now that the arguments of its constructor have come."""
        for request in self._requests:
            if request.key == worker_id and not request.ready:
                self._make_ready(request)
                return

    def _make_ready(self, request: Request) -> None:
        request.ready, request.since = True, self._now()
        self._requests.remove(request)
        self._requests.append(request)
        self.changed = True

    def inquire(self, worker_id: int, answer: Callable[[ExitRecord], None]) -> bool:
        """Call `answer` once the request for that worker is refused; False if there is none."""
        for request in self._requests:
            if request.key == worker_id and request.start is not None:
                request.inquiries.append(answer)
                return True
        return False

    def withdraw(self, worker_id: int) -> None:
        """Take back the request for a worker that was killed before it was started."""
        for request in self._requests:
            if request.key == worker_id and request.start is not None:
                self._requests.remove(request)
                self.refuse(request, "it was killed before it was started", requested=True)
                return

    def dismiss(self, group_id: int) -> None:
        """Take back what waits for a group that was removed, and the request for the group itself."""
        for request in self.all():
            if request.key == group_id:
                self._requests.remove(request)
            elif request.group == group_id:
                self._requests.remove(request)
                self.refuse(request, "its placement group was removed", requested=True)

    def inherit(self, client: int, heir: int) -> None:
        """Hand on the actors that a process asked for which has ended in order."""
        for request in self.all():
            if request.client == client and isinstance(request.start, StartActor):
                request.client = heir
                if not request.ready:  # nobody is left who would say that its arguments have come
                    self._make_ready(request)

    def give_up(self, owner: int, reason: str) -> None:
        """Refuse what a process asked for that has ended."""
        for request in [request for request in self._requests if request.owner == owner]:
            self._requests.remove(request)
            self.refuse(request, reason, requested=True)
        for request in [
            request for request in self._requests if request.client == owner and not request.ready
        ]:
            self._make_ready(request)  # a detached actor, whose constructor is told what became of them

    def refuse(self, request: Request, reason: str, requested: bool = False) -> None:
        """Say that a request will never be granted; it is not in the queue any more."""
        exit_ = ExitRecord(reason=reason, requested=requested)
        self._publish(RequestRefused(request, exit_))
        request.first = None  # closes the connection: the callers ask, and are told the reason
        answer, request.answer = request.answer, None
        if answer is not None:
            answer(WorkerDiedError(f"{request.what} could not be started: {reason}"))
        for inquiry in request.inquiries:
            inquiry(exit_)
