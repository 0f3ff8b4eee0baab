"""Messages, other than calls, between clients, the node, workers, and template processes.

A template process has imported packages already, and workers are forked from it.
"""

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
    """Return the message in the body of a frame. The frame must come from a process of trainkit."""
    return pickle.loads(body.payload)


class WorkerEnvironment(NamedTuple):
    """Environment that a worker inherits from the process that requested it, as it was at the request.

    Attributes:
        inherited: `os.environ`, `sys.path` and `sys.argv` of the requesting process, as JSON. A text is quick
            to pass on and to compare, and a template process parses the text only if it has changed.
        preload: packages to import before the worker is forked; see `wanted` in runtime/session.py.
    """

    inherited: bytes
    cwd: str
    preload: frozenset[str]


class ActorConduct(NamedTuple):
    """Rules by which an actor runs its calls.

    Attributes:
        is_async: True if calls run on an event loop, as the class has `async def` methods.
        is_registered: True if the actor has a name. An actor with a name that has no handles left asks the
            node before it ends, because a process may just have found it by name.
        max_task_retries: default number of retries of a call; this number is sent with the actor's handles.
        is_restarted: True if the actor is restarted when its process dies.
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


# The following messages go from a client to the node.


class ConstructorCall(NamedTuple):
    """Constructor call that is repeated at each restart of an actor.

    The constructor call is also the body of the actor's first frame.

    The call's buffers are the buffers of the frame that contains this message, and its handles are the last
    handles of that frame.

    Attributes:
        max_restarts: maximum number of restarts; -1 for no limit.
        payload, stored: content of the packed call, see `Packed`.
        actors: for each handle of the call, the id of its actor; None for handles of other objects.
    """

    max_restarts: int
    payload: bytes
    stored: bool
    actors: Sequence[int | None]


class StartActor(NamedTuple):
    """Request to start a process for an actor. The frame's first handle is the actor's first connection.

    Without a registration (a name), the request has no answer. With a registration, the answer is None for a
    new actor, or the `Found` actor that already has the name.

    Attributes:
        constructor_call: constructor call that is repeated at restarts; None for an actor that is never
            restarted.
        registration: the actor's name, and whether the actor outlives its owner.
        interface: methods of the actor, for processes that find the actor by name.
        ready: False while the constructor waits for an argument. Such an actor gets resources only after
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
    """Request to connect the frame's handle to the next process of a restarted actor.

    The answer is `Reconnected`, or an `ExitRecord` if the actor has ended for good, or None if the handle was
    lost because the node had no descriptor left.

    Attributes:
        life: number of the actor's restarts when the closed connection was made.
    """

    worker_id: int
    life: int


class ReleaseActor(NamedTuple):
    """Notice that an actor's owner has released the actor.

    Other processes may still have handles of the actor.
    """

    worker_id: int


class RequestLease(NamedTuple):
    """Request to lease a worker for tasks. The worker is connected to the frame's handle.

    The answer is sent when the lease is granted. The answer is True if other requests wait for the lease
    already, so that the lease must be returned as soon as it is idle.
    """

    worker_id: int
    name: str
    placement: Placement
    environment: WorkerEnvironment


class ReturnLease(NamedTuple):
    """Notice that a lease is returned.

    Attributes:
        retire: True if the worker must end, as it has reached a function's `max_calls` or its pool has
            retired.
    """

    worker_id: int
    retire: bool = False


class Kill(NamedTuple):
    """Request to kill a worker, answered when the worker is dead.

    Attributes:
        restart: True if the actor may be restarted.
    """

    worker_id: int
    reason: str
    restart: bool = False


class Cancel(NamedTuple):
    """Notice to stop a call. The node forwards the notice to the worker that runs the call.

    Attributes:
        recursive: True to also cancel the calls that this call has started.
    """

    worker_id: int
    call_id: int
    recursive: bool


class Abandoned(NamedTuple):
    """Request of an actor to which no handles are left, answered with True if the actor must end.

    The answer is False if a process has found the actor by name since the last handle was closed. The
    connection of the process that found the actor arrives before the answer.

    Attributes:
        introduced: number of `Connect` messages that have arrived at the actor.
    """

    introduced: int


class Departing(NamedTuple):
    """Message that a worker ends cleanly by itself and must not be restarted.

    Attributes:
        stays: True if the process stays until it has sent the results that other processes wait for. The
            actor of a process that stays counts as ended at once, and the process gets an answer to this
            message.
        reason: reason for the end of an actor.
    """

    stays: bool
    reason: str


class Imports(NamedTuple):
    """Notice that a worker imports a slow package that its template process has not imported."""

    package: str


class QueryExit(NamedTuple):
    """Request for the `ExitRecord` of a worker whose connection closed, answered once the worker has ended.

    If the worker is alive, the connection was lost before it reached the worker, and the answer is an
    ObjectLostError.
    """

    worker_id: int


class FindActor(NamedTuple):
    """Request for the actor with a name, answered with `Found` or `NotFound`.

    Any handle in the frame is one end of a new connection, which the actor receives.

    Attributes:
        namespace: namespace in which the name is looked up; None for the session's namespace.
        detached: True to find only a detached actor.
    """

    name: str
    namespace: str | None
    detached: bool


class Found(NamedTuple):
    """Answer to `FindActor` that describes a registered actor.

    Attributes:
        label: name of the actor in errors and logs.
        life: number of the actor's restarts; None for an actor that is never restarted.
        max_task_retries: default number of retries of a call that the actor's death interrupts.
        in_order: True if the actor runs the calls of each caller in the order in which they were made.
    """

    worker_id: int
    label: str
    interface: Interface
    life: int | None = None
    max_task_retries: int = 0
    in_order: bool = True


class NotFound(NamedTuple):
    """Answer to `FindActor` if no such actor exists, with the actors' names in the namespace."""

    namespace: str
    names: Sequence[str]


class Reserve(NamedTuple):
    """Request for a placement group, answered when the group is queued.

    `AwaitGroup` waits until the group is reserved.

    Attributes:
        name: name that is unique among living groups; "" for no name.
        detached: True if the group outlives the process that requests it.
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
    """Request to wait until a group is reserved, answered when the group is reserved."""

    group_id: int


class Release(NamedTuple):
    """Request to kill a group's workers and free its bundles, answered when both are done."""

    group_id: int


class Available(NamedTuple):
    """Request for the free resources, answered with the amount of each resource."""


class State(NamedTuple):
    """Request for the state listing of a kind, such as `"actors"`.

    The answer to this request is a list of mappings.

    For the kind `"calls"`, the node asks the driver for the number of calls. The answer is empty if the
    driver does not reply to the node soon.
    """

    kind: str


class CallsCounted(NamedTuple):
    """Notice with the driver's number of unanswered calls for each actor that the driver knows.

    Attributes:
        calls: numbers of calls, by the id of the actor.
    """

    calls: Mapping[int, int]


class Reclaimed(NamedTuple):
    """Notice that idle leases were returned, in response to the `Reclaim` with the same number."""

    number: int


class Blocked(NamedTuple):
    """Notice that a worker waits, so that its CPUs may be lent, or that the worker resumes its work."""

    waiting: bool


class Shutdown(NamedTuple):
    """Request to end the session. The connection to the node closes when the session has ended.

    If the driver sends the request while detached actors or groups exist, these actors and groups stay. The
    request is then answered when all workers outside these actors and groups have ended.
    """


# The following messages go from the node to a client.


class Reconnected(NamedTuple):
    """Answer to `Reconnect` for an actor that has been restarted or is being restarted.

    Attributes:
        life: number of the actor's restarts so far.
        exit_: exit record of the actor's last process.
    """

    life: int
    exit_: ExitRecord


class Reclaim(NamedTuple):
    """Notice to return idle leases now, and busy leases when they become idle.

    The leases are needed for a request for resources or for a query of the free resources.

    Attributes:
        number: id of a query of the free resources that waits for `Reclaimed`; 0 if no query waits.
    """

    number: int = 0


class CountCalls(NamedTuple):
    """Notice to the driver to send `CallsCounted`."""


class ShownAs(NamedTuple):
    """Notice to show a worker's output under the name `name` from now on."""

    name: str


MARK = b"\x1dtrainkit:"
MARK_END = b"\x1e"
MARKED = re.compile(MARK + b"([^\x1e]*)" + MARK_END)
"""Pattern of a mark in a worker's output. A mark names the function that prints the output after the mark."""


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
    """Text shown to the user, for example the reason why a request waits."""

    text: str


# The following messages go from the node to a worker.


class Connect(NamedTuple):
    """Notice to serve a further connection, which is the frame's handle."""


class EndWorker(NamedTuple):
    """Notice to a worker to end as soon as all calls that were sent to it are done."""


# The following messages go from the node to a template process.


class WorkerSpec(NamedTuple):
    """Specification from which a newly forked process becomes a worker.

    Attributes:
        serial: number of the process in the session, which the ids of its references contain.
        is_actor: True for an actor, which ends when its last connection closes. Workers that are no actors
            end when they receive `EndWorker`.
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

    The frame's handles are the worker's control connection, first connection, stdout, stderr, and the memory
    file with the object store's budget.
    """

    spec: WorkerSpec


class Redirect(NamedTuple):
    """Notice to write all output to the frame's handle from now on, as the driver has ended."""


class ForkTemplate(NamedTuple):
    """Request to fork a template process that also imports the packages `preload`.

    The frame's handle is the new process's socket to the node.
    """

    preload: frozenset[str]


# The following messages go from a template process to the node.


class Forked(NamedTuple):
    """Notice that a template process has forked a worker."""

    serial: int
    pid: int


class ForkFailed(NamedTuple):
    """Notice that a fork failed.

    `refused` means that the machine has no resources for a new process at present.
    """

    serial: int
    reason: str
    refused: bool = False


class Exited(NamedTuple):
    """Notice that a process that was forked from the template process has ended, with its `waitpid`
    status.
    """

    pid: int
    status: int
    serial: int


class Ready(NamedTuple):
    """Notice that a template process has finished its imports."""


class Unusable(NamedTuple):
    """Notice that a template process cannot fork, as its imports started threads or failed."""

    reason: str
