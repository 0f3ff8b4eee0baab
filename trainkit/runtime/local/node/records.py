"""Records of the node's requests, placement groups, workers, exits of workers, and events.

The module does not start, end or call processes, so it can be tested without processes.
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
"""Number of the driver among the session's processes."""

NOBODY = 0
"""Owner number of detached actors and groups, which no process owns."""

_MOST_EXITS = 10_000
_MOST_ACTORS = 1_000

Answer = Callable[[Any], None]
"""Function that sends the answer to a client's request."""

Notify = Callable[[int, Any], None]
"""Type of `Clients.notify`, which sends a message to the process with this number if it is still running."""

Kill = Callable[[int, str, Callable[[ExitRecord], None]], None]
"""Type of `Supervisor.kill`, which kills a worker for a reason and calls a function after its death."""

Row = dict[str, Any]


@dataclass(slots=True)
class SessionRecord:
    """Record of the session and its driver.

    Attributes:
        folder: the session's folder. The folder's path in the environment of a process shows that the
            process belongs to the session.
        account_fd: descriptor of the memory file with the session's budget of shared memory.
        gpus: names of the GPUs in the form of CUDA_VISIBLE_DEVICES, by index.
        template: socket to the plain template, which forks workers and has no packages imported.
        template_pid: pid of the plain template.
        driver_pid: pid of the program that started the session.
        program: name and folder of that program, as JSON.
        new_template: function that starts a new plain template and returns its socket and pid.
        driver_gone: True once the driver has ended.
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
        """Id of this machine, which is the same in all processes of the session."""
        name = self.folder.name
        return name.rpartition("-")[2]


@dataclass(eq=False, kw_only=True)
class Request(Demand):
    """Entry of the request queue: a request for a worker or a placement group.

    Attributes:
        ready: False while an argument of an actor's constructor is missing, so that other
            requests are served first.
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
        """Number of the process whose end cancels the request; `NOBODY` for a detached actor."""
        start = self.start
        registration = start.registration if isinstance(start, StartActor) else None
        return NOBODY if registration is not None and registration.detached else self.client


class OutputEnd(Protocol):
    """Reading end of a worker's stdout or stderr.

    Attributes:
        tail: last lines of the output.
    """

    fd: int
    tail: deque[str]

    def drain(self) -> None:
        """Read all available output, after the worker has ended."""

    def close(self) -> None:
        """Close the reading end."""


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """Record of one worker process, from the request for the worker to the worker's end.

    Attributes:
        owner: number of the process that requested the worker; NOBODY if the worker outlives that process.
        spec: settings with which the worker's process was started; `spec.worker_id` is outdated
            once the worker is reused.
        allocation: resources reserved for the worker, except lent CPUs; None while the worker is idle.
        held_s: time by the monotonic clock at which `allocation` was granted.
        ledger_group: group id and bundle index that `allocation` was taken from; None for the machine.
        lent: CPUs that the worker lends while it waits for other processes; None while it does not wait.
        lent_out: amount of lent CPUs that moved from the worker's placement group to the machine, in
            ten-thousandths of a CPU.
        wanted_back: True if the process that leased the worker was asked to return the lease.
        passed_on: True if the lent CPUs went to a worker that this worker requested while no CPU was free.
        ending: reason for which trainkit is ending the worker; "" if trainkit isn't ending the worker.
        departs: True if the worker has announced that it ends cleanly.
        interrupted: True if the worker must receive SIGINT as soon as its pid is known.
        may_restart: True if the actor may be restarted although trainkit is killing its process.
        restarts: number of the actor's restarts. An actor with `restarts` above 0 and without
            a pid is being restarted.
        inquiries: functions to call with the worker's `ExitRecord` when the worker has ended.
        is_actor: True for an actor, False for a worker leased for tasks.
        shown_as: name under which the worker's output is shown; "" for the worker's own name.
        introduced: number of callers' connections that the node has sent to the worker.
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
        """True if CPUs are reserved for the worker, which lends them when it waits."""
        held = self.allocation
        return held is not None and bool(held.amounts.get("CPU"))

    @property
    def kind(self) -> str:
        """Name that all workers that run the same code share."""
        return self.spec.class_name or self.name

    @property
    def is_reusable(self) -> bool:
        """True if the process may be leased again for other tasks."""
        # A process that used a GPU keeps memory on this GPU (its CUDA context), although the GPU may be
        # granted to other processes.
        had_gpus = self.allocation is not None and self.allocation.gpus
        return not self.ending and self.ledger_group is None and not had_gpus

    def exit_as_ordered(self) -> ExitRecord:
        """Return the exit record of a worker that was killed before its process started."""
        return ExitRecord(requested=True, reason=self.ending, may_restart=self.may_restart)


class WorkerTable:
    """Table of the session's living workers, with the exit records of earlier workers."""

    def __init__(self) -> None:
        self._by_id: dict[int, WorkerRecord] = {}
        self._by_serial: dict[int, WorkerRecord] = {}
        self._last_serial = DRIVER
        self.exits = ExitRecords()
        self._ended_actors: deque[Row] = deque(maxlen=_MOST_ACTORS)

    def next_serial(self) -> int:
        """Return a new process number."""
        self._last_serial += 1
        return self._last_serial

    def add(self, worker: WorkerRecord) -> None:
        """Add a worker by its id and its process number."""
        self._by_id[worker.worker_id] = worker
        self._by_serial[worker.serial] = worker

    def keep(self, worker: WorkerRecord) -> None:
        """List a worker by its id although it has no process at present."""
        self._by_id[worker.worker_id] = worker

    def remove(self, worker_id: int) -> None:
        """Remove the worker with id `worker_id`, if such a worker exists."""
        self._by_id.pop(worker_id, None)

    def remove_process(self, serial: int) -> None:
        """Remove a process that has ended, by its number."""
        self._by_serial.pop(serial, None)

    def rename(self, worker: WorkerRecord, worker_id: int) -> None:
        """Give a worker a new id, for example the id of its next lease."""
        self._by_id.pop(worker.worker_id, None)
        worker.worker_id = worker_id
        self._by_id[worker_id] = worker

    def show_as(self, serial: int, name: str) -> None:
        """Show the output of process `serial` under `name`."""
        worker = self._by_serial.get(serial)
        if worker is not None:
            worker.shown_as = name

    def get(self, worker_id: int) -> WorkerRecord | None:
        """Return the living worker with id `worker_id`, or None."""
        return self._by_id.get(worker_id)

    def by_serial(self, serial: int) -> WorkerRecord | None:
        """Return the worker with process number `serial`; None if it is unknown or its end was handled."""
        return self._by_serial.get(serial)

    def all(self) -> list[WorkerRecord]:
        """Return all living workers."""
        return list(self._by_id.values())

    def settled(self, worker_id: int) -> WorkerRecord | None:
        """Handle the arrived messages of a worker, then return the worker if it is still living."""
        worker = self._by_id.get(worker_id)
        if worker is not None:
            worker.control.try_read()
        return self._by_id.get(worker_id)

    def add_ended(self, row: Row, exit_: ExitRecord) -> None:
        """Add an ended actor to the state listing."""
        cause = describe(exit_, row["class_name"]).partition("\n")[0]
        self._ended_actors.append({**row, "state": "DEAD", "death_cause": cause})

    def ended_rows(self) -> list[Row]:
        """Return the rows of the most recently ended actors, in the order in which they ended."""
        return [dict(row) for row in self._ended_actors]

    def heir(self, worker: WorkerRecord) -> int:
        """Return the number of the process that inherits a worker's actors: NOBODY if the worker is a
        detached actor or was requested by one, directly or indirectly; else DRIVER.
        """
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
        """Return the numbers of all workers that `owner` requested, directly or through other workers."""
        workers = self.all()
        found = {worker.serial for worker in workers if worker.owner == owner}
        while True:
            more = {worker.serial for worker in workers if worker.owner in found} - found
            if not more:
                return found
            found |= more


class ExitRecords(dict[int, ExitRecord]):
    """Exit records of workers by id. The oldest records are dropped first."""

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
        """Return the exit record to report for a worker that is neither recorded nor alive."""
        if not self._forgotten:
            return ExitRecord(requested=True, reason="it belongs to a session that has ended")
        return ExitRecord(
            requested=True,
            reason=f"its record was dropped after {_MOST_EXITS:,} later ends, or it is of another session",
        )


def actor_row(worker: WorkerRecord) -> Row:
    """Return the row of the state listing (`list_actors`) for an actor with a running or starting process."""
    state = "ALIVE" if worker.pid is not None else "RESTARTING" if worker.restarts else "PENDING"
    return {
        **_row(worker.worker_id, worker.kind, worker.spec.registration),
        "state": state,
        "pid": worker.pid,
        "resources": dict(worker.spec.placement.resources),
        "restarts": worker.restarts,
    }


def pending_row(asked: StartActor) -> Row:
    """Return the row of the state listing (`list_actors`) for an actor that waits in the queue."""
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


@dataclass(slots=True)
class PlacementGroupRecord:
    """Placement group with a list of bundles.

    Once the group is reserved, each bundle has a ledger of its free resources.

    Attributes:
        owner: number of the process that requested the group; NOBODY if the group is detached.
        held: resources reserved for each bundle; None while the group waits for resources.
        held_s: time by the monotonic clock at which the group was reserved.
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
        """Name of the group in messages."""
        named = f" {self.name!r}" if self.name else ""
        count = len(self.bundles)
        return f"a group{named} of {count} bundle{'s' * (count != 1)}"


class WorkerStarted(NamedTuple):
    """Event published just before the request to fork a worker is sent."""

    worker: WorkerRecord


class WorkerExited(NamedTuple):
    """Event published when the process of a worker has ended, or could not be started.

    Attributes:
        heir: number of the process that inherits the worker's actors, groups and requests.
        in_order: True if the process ended cleanly by itself, because it was no longer needed.
    """

    worker: WorkerRecord
    exit_: ExitRecord
    heir: int
    in_order: bool


class WorkerEnded(NamedTuple):
    """Event published when a worker has ended for good, as its process is not restarted or never started.

    Attributes:
        worker: the worker; None if it never had a process.
    """

    worker_id: int
    exit_: ExitRecord
    worker: WorkerRecord | None = None


class RequestGranted(NamedTuple):
    """Event published when a request for a worker was granted.

    Attributes:
        allocation: resources granted to the worker.
        where: group id and bundle index that `allocation` was taken from; None for the machine.
        bundles: all bundles of the group in `where`; empty for the machine.
        idle: idle worker to reuse; None if a worker has to be started.
    """

    request: Request
    allocation: Allocation
    where: tuple[int, int] | None = None
    bundles: Sequence[Bundle] = ()
    idle: WorkerRecord | None = None


class StartFailed(NamedTuple):
    """Event published when the worker of a granted request could not be started."""

    granted: RequestGranted
    reason: str


class RequestRefused(NamedTuple):
    """Event published when a request was removed from the queue and will never be granted."""

    request: Request
    exit_: ExitRecord


class RequestsWaiting(NamedTuple):
    """Event published when requests remain in the queue although all possible requests were granted."""


class DetachedActorsEnded(NamedTuple):
    """Event published when the last detached actor has ended."""


Publish = Callable[[Any], None]
"""Type of `Events.publish`."""


class Events:
    """Event bus of the node, which calls the subscribers of each kind of event."""

    def __init__(self) -> None:
        self._subscribers: Mapping[type, Sequence[Callable[[Any], object]]] = {}

    def connect(self, subscribers: Mapping[type, Sequence[Callable[[Any], object]]]) -> None:
        """Set the subscribers of each kind of event, in the order in which they are called."""
        self._subscribers = subscribers

    def publish(self, event: Any) -> None:
        """Call the subscribers of an event at once."""
        for subscriber in self._subscribers[type(event)]:
            subscriber(event)


class RequestQueue:
    """Queue of waiting requests, in the order in which they were made.

    Args:
        publish: function that delivers an event.
        now: monotonic clock.
    """

    def __init__(self, publish: Publish, now: Callable[[], float] = SYSTEM.monotonic) -> None:
        self._publish = publish
        self._now = now
        self._requests: list[Request] = []
        self.changed = False
        """True if a request was added or resources became free since the queue was last served."""

    def __iter__(self) -> Any:
        return iter(self._requests)

    def __contains__(self, key: object) -> bool:
        return any(request.key == key for request in self._requests)

    def all(self) -> list[Request]:
        """Return all requests."""
        return list(self._requests)

    def line(self) -> list[Request]:
        """Return the requests that wait only for resources, not for arguments of a constructor."""
        return [request for request in self._requests if request.ready]

    def look_again(self) -> None:
        """Mark the queue as changed, because requests that wait for some time may then be granted."""
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
        """Mark an actor's request as ready after the arguments of its constructor have arrived."""
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
        """Call `answer` if the request for this worker is refused.

        Return False if the queue has no such request.
        """
        for request in self._requests:
            if request.key == worker_id and request.start is not None:
                request.inquiries.append(answer)
                return True
        return False

    def withdraw(self, worker_id: int) -> None:
        """Refuse the waiting request for a worker that was killed before it was started."""
        for request in self._requests:
            if request.key == worker_id and request.start is not None:
                self._requests.remove(request)
                self.refuse(request, "it was killed before it was started", requested=True)
                return

    def dismiss(self, group_id: int) -> None:
        """Refuse the requests for a removed group, and drop the request for the group itself."""
        for request in self.all():
            if request.key == group_id:
                self._requests.remove(request)
            elif request.group == group_id:
                self._requests.remove(request)
                self.refuse(request, "its placement group was removed", requested=True)

    def inherit(self, client: int, heir: int) -> None:
        """Transfer the actor requests of `client`, a process that has ended cleanly, to process `heir`."""
        for request in self.all():
            if request.client == client and isinstance(request.start, StartActor):
                request.client = heir
                if not request.ready:  # the process that would report the arrival of the arguments has ended
                    self._make_ready(request)

    def give_up(self, owner: int, reason: str) -> None:
        """Refuse the waiting requests of a process that has ended."""
        for request in [request for request in self._requests if request.owner == owner]:
            self._requests.remove(request)
            self.refuse(request, reason, requested=True)
        for request in [
            request for request in self._requests if request.client == owner and not request.ready
        ]:
            # The request belongs to a detached actor, whose constructor gets errors in place of missing
            # arguments.
            self._make_ready(request)

    def refuse(self, request: Request, reason: str, requested: bool = False) -> None:
        """Report to the client that a request, which has left the queue, will never be granted."""
        exit_ = ExitRecord(reason=reason, requested=requested)
        self._publish(RequestRefused(request, exit_))
        # this closes the actor's first connection, so that callers ask the node for the reason
        request.first = None
        answer, request.answer = request.answer, None
        if answer is not None:
            answer(WorkerDiedError(f"{request.what} could not be started: {reason}"))
        for inquiry in request.inquiries:
            inquiry(exit_)
