"""What goes between a client, the node, its templates and its workers; calls are not among it.

Each is a frozen dataclass, or a named tuple, which takes a tenth of the time to define at the start of every
process; a receiver matches on the class and refuses what it does not know.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainkit.resources import Bundle
from trainkit.runtime.serialize import PROTOCOL, Handle, Packed
from trainkit.runtime.specs import Interface, Placement, PlacementGroupId, Registration


def packed(message: Any, handles: Sequence[Handle] = ()) -> Packed:
    """`message` as the body of a frame."""
    return Packed(pickle.dumps(message, PROTOCOL), (), handles)


def unpacked(body: Packed) -> Any:
    """The message in the body of a frame from another of trainkit's own processes."""
    return pickle.loads(body.payload)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a worker sees of the process that asked for it, as it was at that moment.

    Attributes:
        preload: what that process has imported; see `preload.wanted`.
    """

    environ: Mapping[str, str]
    cwd: str
    sys_path: Sequence[str]
    preload: frozenset[str]


# client to node


@dataclass(frozen=True, slots=True)
class StartActor:
    """Start a process for an actor; its first connection is the handle beside.

    Not answered without a registration. With one, answered with None if it is registered and asked
    for, or with the `Found` actor of that name, which the handle then became a connection to.

    Attributes:
        registration: its name, and whether it outlives who asks for it.
        interface: for those who find it by its name.
    """

    worker_id: int
    name: str
    placement: Placement
    surroundings: Surroundings
    registration: Registration | None = None
    interface: Interface | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Lend me a process for tasks, connected to the handle beside; answered when there is one."""

    worker_id: int
    name: str
    placement: Placement
    surroundings: Surroundings


@dataclass(frozen=True, slots=True)
class ReturnLease:
    """I need the process of this lease no more."""

    worker_id: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker; answered when it is dead."""

    worker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Inquest:
    """How did a worker end? Answered with a `supervise.Exit`, once it has."""

    worker_id: int


class FindActor(NamedTuple):
    """Who is called so? Answered with `Found`, to whom the handle beside is then a connection, or `NotFound`.

    Attributes:
        namespace: None for the session's own.
        detached: only one that outlives its program is meant.
    """

    name: str
    namespace: str | None
    detached: bool


class Found(NamedTuple):
    """A registered actor, as `FindActor` is answered.

    Attributes:
        label: what stands for it in errors and logs.
    """

    worker_id: int
    label: str
    interface: Interface


class NotFound(NamedTuple):
    """There is no such actor; these names there are in that namespace."""

    namespace: str
    names: Sequence[str]


class State(NamedTuple):
    """What is there? Answered with a list of plain dicts; `kind` is one of `statebook.KINDS`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve bundles, all or none. Not answered: see AwaitGroup."""

    group_id: int
    bundles: Sequence[Bundle]


@dataclass(frozen=True, slots=True)
class AwaitGroup:
    """Answered once the group is held."""

    group_id: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give a group's bundles back and end what runs in it; answered when done."""

    group_id: int


@dataclass(frozen=True, slots=True)
class Available:
    """What is free? Answered with amounts by name."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """This worker waits for others (or goes on), so its CPUs may be lent meanwhile."""

    waiting: bool


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End everything; the connection closes when it is done.

    Asked by the driver while there are detached actors: end everything else. Answered then, once it is done.
    """


# node to client


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Somebody waits for resources: return the leases that are idle, the others when they are."""


@dataclass(frozen=True, slots=True)
class Output:
    """Lines that a worker printed."""

    name: str
    pid: int
    is_error: bool
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Waits:
    """A request of yours has been waiting for a while."""

    text: str


# node to template


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a fresh process needs to become a worker.

    Attributes:
        serial: this process's number in the session; its references carry it.
        is_actor: ends when its last connection is gone; else when the node says so.
        group_bundles: those of the placement group that it was started in.
        gpus: share of each GPU index it was given, 0 to 1.
    """

    worker_id: int
    serial: int
    name: str
    is_actor: bool
    cpus: float
    gpus: Mapping[int, float]
    visible_gpus: Sequence[str]
    totals: Bundle
    group: PlacementGroupId | None
    group_bundles: Sequence[Bundle]
    env: Mapping[str, str]
    cwd: str
    surroundings: Surroundings


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Fork a worker; handles: its control connection, its first connection, stdout, stderr."""

    spec: WorkerSpec


class Redirect(NamedTuple):
    """Write your output to the handle beside from now on: the program that started you has ended."""


@dataclass(frozen=True, slots=True)
class ForkTemplate:
    """Fork a template that imports `preload` on top; handle: its connection to the node."""

    preload: frozenset[str]


# template to node


@dataclass(frozen=True, slots=True)
class Forked:
    """A worker was started; a template's number is 0."""

    serial: int
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """A worker could not be started."""

    serial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A process that this template forked has ended, with the status as `waitpid` gives it."""

    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class Ready:
    """This template has done its imports."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """This template cannot fork: what it imported left threads behind, or failed."""

    reason: str


# node to worker


@dataclass(frozen=True, slots=True)
class Connect:
    """Serve a further connection, the handle beside."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End as soon as what was sent is done."""
