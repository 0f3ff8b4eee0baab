"""Messages between clients, the node, templates and workers, except calls."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainkit.resources import Bundle
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import PROTOCOL, Handle, Packed
from trainkit.runtime.specs import Concurrency, Interface, Placement, PlacementGroupId, Registration


class _MessagePickler(pickle.Pickler):
    """Pickler that sends instances of user-defined str, int and float subclasses as plain values.

    The node cannot import the user's classes, such as an Enum.
    """

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, str):
            return str, (str.__str__(item),)
        if isinstance(item, int):
            return int, (int.__int__(item),)
        return (float, (float.__float__(item),)) if isinstance(item, float) else NotImplemented


def packed(message: Any, handles: Sequence[Handle] = (), buffers: Sequence[Any] = ()) -> Packed:
    """Return `message` as the body of a frame."""
    file = io.BytesIO()
    _MessagePickler(file, PROTOCOL).dump(message)
    return Packed(file.getvalue(), buffers, handles)


def unpacked(body: Packed) -> Any:
    """Return the message in the body of a frame, which comes from one of trainkit's processes."""
    return pickle.loads(body.payload)


class WorkerEnvironment(NamedTuple):
    """Environment that a worker inherits from the process that requested it, at the time of the request.

    Attributes:
        inherited: that process's `os.environ`, `sys.path` and `sys.argv` as JSON, as the text is passed on
            and compared for each worker, but most templates parse only one text.
        preload: imports of that process; see `wanted` in runtime/session.py.
    """

    inherited: bytes
    cwd: str
    preload: frozenset[str]


class ActorConduct(NamedTuple):
    """Rules by which an actor runs its calls.

    Attributes:
        is_async: calls run on an event loop, as the class has `async def` methods.
        is_registered: processes may find the actor by name, so it asks the node before it ends for lack of
            handles.
        max_task_retries: number of retries of a call, for processes that receive a handle of the actor.
        is_restarted: the actor is restarted when its process dies.
    """

    concurrency: Concurrency = Concurrency()
    is_async: bool = False
    is_registered: bool = False
    max_task_retries: int = 0
    is_restarted: bool = False

    @property
    def in_order(self) -> bool:
        """True if the calls of each caller begin in the order in which they were made."""
        return self.concurrency.in_order and not self.is_async


# client to node


class ConstructorCall(NamedTuple):
    """Constructor call with which an actor is restarted: the body of the actor's first frame.

    Its buffers are the buffers of the frame that carries it, and its handles are the last handles there.

    Attributes:
        max_restarts: maximum number of restarts; -1 for no limit.
        payload, stored: see `Packed`.
        actors: for each handle, the id of the actor that it belongs to; None for other handles.
    """

    max_restarts: int
    payload: bytes
    stored: bool
    actors: Sequence[int | None]


class StartActor(NamedTuple):
    """Request for an actor's process. The frame's first handle is the actor's first connection.

    Without a registration, the request has no answer. With a registration, the answer is None if the actor is
    registered and its process requested, or the `Found` actor that has the name already.

    Attributes:
        constructor_call: None for an actor that is never restarted.
        registration: the actor's name, and whether the actor outlives its owner.
        interface: for processes that find the actor by name.
        ready: False while the constructor waits for an argument: the actor gets resources only after
            `ArgumentsThere`.
    """

    worker_id: int
    name: str
    placement: Placement
    environment: WorkerEnvironment
    conduct: ActorConduct = ActorConduct()
    constructor_call: ConstructorCall | None = None
    registration: Registration | None = None
    class_name: str = ""
    interface: Interface | None = None
    ready: bool = True


class ArgumentsThere(NamedTuple):
    """Notice that the arguments of an actor's constructor have arrived."""

    worker_id: int


class Reconnect(NamedTuple):
    """Request to connect the frame's handle to the next process of an actor.

    The answer is `Reconnected`, or an `ExitRecord` if the actor has ended for good.

    Attributes:
        life: number of the actor's restarts when the closed connection was made.
    """

    worker_id: int
    life: int


class ReleaseActor(NamedTuple):
    """Notice that the owner of an actor has released it; other processes may still hold it."""

    worker_id: int


class RequestLease(NamedTuple):
    """Request to lease a worker for tasks, which is connected to the frame's handle.

    The answer is sent when the lease is granted. It is True if other requests wait for the lease already, so
    that the lease must be returned as soon as it is idle.
    """

    worker_id: int
    name: str
    placement: Placement
    environment: WorkerEnvironment


class ReturnLease(NamedTuple):
    """Notice that a lease is returned.

    Attributes:
        retire: the worker must end, as it has reached a function's `max_calls` or its pool has retired.
    """

    worker_id: int
    retire: bool = False


class Kill(NamedTuple):
    """Request to kill a worker, answered when the worker is dead.

    Attributes:
        restart: the actor may be restarted.
    """

    worker_id: int
    reason: str
    restart: bool = False


class Cancel(NamedTuple):
    """Notice to stop a call of a worker, which the node forwards to that worker.

    Attributes:
        recursive: also cancel the calls that this call has started.
    """

    worker_id: int
    call_id: int
    recursive: bool


class Abandoned(NamedTuple):
    """Request of an actor without holders, answered with True if the actor must end.

    The answer is False if a process has found the actor by name meanwhile; that process's connection arrives
    before the answer.

    Attributes:
        introduced: number of `Connect` messages that have arrived at the actor.
    """

    introduced: int


class Departing(NamedTuple):
    """Message that a worker ends cleanly by itself and must not be restarted.

    Attributes:
        stays: the process stays until the results that it owes others are sent; an actor counts as ended at
            once. With `stays` the message is answered.
        reason: reason for the end of an actor.
    """

    stays: bool
    reason: str


class Imports(NamedTuple):
    """Notice that a worker imports a slow package that its template has not imported."""

    package: str


class QueryExit(NamedTuple):
    """Request for the `ExitRecord` of a worker whose connection closed, answered once the worker has ended.

    If the worker is alive, the connection was lost on its way there, and the answer is an ObjectLostError.
    """

    worker_id: int


class FindActor(NamedTuple):
    """Request for the actor with a name, answered with `Found` or `NotFound`.

    A handle in the frame is connected to the actor.

    Attributes:
        namespace: namespace of the name; None for the session's own.
        detached: find only a detached actor.
    """

    name: str
    namespace: str | None
    detached: bool


class Found(NamedTuple):
    """Answer to `FindActor`: a registered actor.

    Attributes:
        label: name of the actor in errors and logs.
        life: number of the actor's restarts; None for an actor that is never restarted.
        max_task_retries: number of retries of calls that the actor's death interrupted.
        in_order: the actor runs the calls of each caller in the order in which they were made.
    """

    worker_id: int
    label: str
    interface: Interface
    life: int | None = None
    max_task_retries: int = 0
    in_order: bool = True


class NotFound(NamedTuple):
    """Answer to `FindActor` if the actor is missing, with the names that exist in the namespace."""

    namespace: str
    names: Sequence[str]


class Reserve(NamedTuple):
    """Request for a placement group, answered when it is queued. `AwaitGroup` waits until it is reserved.

    Attributes:
        name: name that no other living group has; "" for no name.
        detached: the group does not end with the process that requests it.
    """

    group_id: int
    bundles: Sequence[Bundle]
    strategy: str
    name: str
    detached: bool


class FindGroup(NamedTuple):
    """Request for the group with a name, answered with its id and its bundles."""

    name: str


class AwaitGroup(NamedTuple):
    """Request that is answered once a group is reserved."""

    group_id: int


class Release(NamedTuple):
    """Request to free a group's bundles and kill the workers in it, answered when both are done."""

    group_id: int


class Available(NamedTuple):
    """Request for the free resources, answered with amounts by name."""


class State(NamedTuple):
    """Request for the state listing of a kind, answered with a list of mappings.

    For the kind "calls", the node asks the driver; the answer is empty if the driver does not reply soon.
    """

    kind: str


class CallsCounted(NamedTuple):
    """Notice of the driver's number of unanswered calls of each actor that it knows.

    Attributes:
        calls: numbers of calls, by the id of the actor.
    """

    calls: Mapping[int, int]


class Reclaimed(NamedTuple):
    """Notice that idle leases were returned, as the `Reclaim` with the same number requested."""

    number: int


class Blocked(NamedTuple):
    """Notice that a worker begins to wait for others, so that its CPUs may be lent, or that it resumes."""

    waiting: bool


class Shutdown(NamedTuple):
    """Request to end everything; the connection closes when that is done.

    From the driver, while detached actors or groups exist: end everything else, and answer when that is done.
    """


# node to client


class Reconnected(NamedTuple):
    """Answer to `Reconnect`: the actor has been, or is being, restarted.

    Attributes:
        life: number of the actor's restarts by now.
        exit_: exit record of the actor's last process.
    """

    life: int
    exit_: ExitRecord


class Reclaim(NamedTuple):
    """Notice to return idle leases now, and busy leases when they become idle, as a request waits.

    Attributes:
        number: number of the count of free resources that waits for `Reclaimed`; 0 for no count.
    """

    number: int = 0


class CountCalls(NamedTuple):
    """Notice to the driver to send `CallsCounted`."""


class ShownAs(NamedTuple):
    """Notice to show a worker's output under this name from now on."""

    name: str


MARK = b"\x1dtrainkit:"
MARK_END = b"\x1e"
MARKED = re.compile(MARK + b"([^\x1e]*)" + MARK_END)
"""Mark in a worker's output, with the name of the function that prints the following output."""


def output_mark(name: str) -> bytes:
    """Return the mark that a worker writes before the output of the function `name`."""
    return MARK + name.encode(errors="backslashreplace").replace(MARK_END, b"") + MARK_END


class Output(NamedTuple):
    """Lines that a worker printed, with the name of the actor or function."""

    name: str
    pid: int
    is_error: bool
    lines: Sequence[str]


class Waits(NamedTuple):
    """Text for the user, such as why a request waits."""

    text: str


# node to worker


class Connect(NamedTuple):
    """Notice to serve a further connection, which is the frame's handle."""


class EndWorker(NamedTuple):
    """Notice to end as soon as all calls that were sent are done."""


# node to template


class WorkerSpec(NamedTuple):
    """Specification of a worker, from which a new process becomes this worker.

    Attributes:
        serial: number of the process in the session, which the ids of its references contain.
        is_actor: the worker ends when its last connection is gone; other workers end by `EndWorker`.
        group_bundles: bundles of the placement group that the worker was started in.
        gpus: share of each granted GPU, 0 to 1, by the GPU's index.
        placement: requested placement.
        namespace: the session's namespace.
        restarts: number of the actor's restarts so far.
        class_name: name of the actor's class.
        registration: name and lifetime of a named actor.
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
    environment: WorkerEnvironment
    placement: Placement
    namespace: str
    conduct: ActorConduct = ActorConduct()
    restarts: int = 0
    class_name: str = ""
    registration: Registration | None = None


class ForkWorker(NamedTuple):
    """Request to fork a worker.

    Handles: its control connection, its first connection, stdout, stderr, the object store's account.
    """

    spec: WorkerSpec


class Redirect(NamedTuple):
    """Notice to write all output to the frame's handle from now on, as the driver has ended."""


class ForkTemplate(NamedTuple):
    """Request to fork a template that also imports `preload`; the handle is its connection to the node."""

    preload: frozenset[str]


# template to node


class Forked(NamedTuple):
    """Notice that a template has forked a worker."""

    serial: int
    pid: int


class ForkFailed(NamedTuple):
    """Notice that a fork failed; `refused` if the machine has no resources for the process at present."""

    serial: int
    reason: str
    refused: bool = False


class Exited(NamedTuple):
    """Notice that a process that the template forked has ended, with its `waitpid` status."""

    pid: int
    status: int
    serial: int


class Ready(NamedTuple):
    """Notice that a template has finished its imports."""


class Unusable(NamedTuple):
    """Notice that a template cannot fork, as its imports started threads or failed."""

    reason: str
