"""Messages between clients, the node, templates and workers. Calls are not among them."""

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
    """Sends a text or number of a user's class, an Enum's say, as a plain one: the node has no such class."""

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
    """Return the message in the body of a frame from another of trainkit's own processes."""
    return pickle.loads(body.payload)


class WorkerEnvironment(NamedTuple):
    """Environment that a worker inherits from the process that requested it, at that moment.

    Attributes:
        inherited: its `os.environ`, `sys.path` and `sys.argv` as JSON: it is passed on and compared for each
            worker, but most templates read only one.
        preload: what that process has imported; see `wanted` in runtime/session.py.
    """

    inherited: bytes
    cwd: str
    preload: frozenset[str]


class ActorConduct(NamedTuple):
    """Rules by which an actor runs its calls.

    Attributes:
        is_async: on an event loop, as its class has `async def` methods.
        is_registered: others may find it by its name, so it asks the node before it ends for want of handles.
        max_task_retries: how often a call is made again, for processes that are given a handle of it.
        is_restarted: it is made anew when its process dies.
    """

    concurrency: Concurrency = Concurrency()
    is_async: bool = False
    is_registered: bool = False
    max_task_retries: int = 0
    is_restarted: bool = False

    @property
    def in_order(self) -> bool:
        """True if the calls of each caller begin in the order made."""
        return self.concurrency.in_order and not self.is_async


# client to node


class ConstructorCall(NamedTuple):
    """Constructor call that makes an actor again: the body of its first frame.

    Its buffers are those of the frame that it comes in, and its handles the last ones there.

    Attributes:
        max_restarts: how often at most; -1 without end.
        payload, stored: see `Packed`.
        actors: of each handle, the actor that it leads to; None of others.
    """

    max_restarts: int
    payload: bytes
    stored: bool
    actors: Sequence[int | None]


class StartActor(NamedTuple):
    """Request for an actor's process. Its first connection is the first handle beside.

    Not answered without a registration. With one, answered with None if it is registered and asked
    for, or with the `Found` actor of that name.

    Attributes:
        constructor_call: None for one that is never restarted.
        registration: its name, and whether it outlives its owner.
        interface: for processes that find it by its name.
        ready: False while an argument of its constructor is still to come: it takes its turn, and what it
            asks for, after `ArgumentsThere`.
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
    """Notice that the arguments of an actor's constructor have come."""

    worker_id: int


class Reconnect(NamedTuple):
    """Request for a connection to the next process of an actor, whose end is the handle beside.

    Answered with Reconnected, or with an `ExitRecord` when it has ended for good; with None if the
    handle is lost, as the node had no descriptor left for it.

    Attributes:
        life: how often the actor had been restarted when the connection was made.
    """

    worker_id: int
    life: int


class ReleaseActor(NamedTuple):
    """Notice that its owner needs an actor no more; others may."""

    worker_id: int


class RequestLease(NamedTuple):
    """Request for the loan of a process for tasks, connected to the handle beside.

    Answered when there is one, with whether others wait for it already: then it is to be returned as
    soon as it is idle.
    """

    worker_id: int
    name: str
    placement: Placement
    environment: WorkerEnvironment


class ReturnLease(NamedTuple):
    """Notice that the process of a lease is needed no more.

    Attributes:
        retire: it has run a function as often as it may, so it is to end.
    """

    worker_id: int
    retire: bool = False


class Kill(NamedTuple):
    """Order to end a worker, answered when it is dead.

    Attributes:
        restart: it may be restarted.
    """

    worker_id: int
    reason: str
    restart: bool = False


class Cancel(NamedTuple):
    """Order to stop a call of a worker, to which the node hands this on; not answered.

    Attributes:
        recursive: also what that call has started.
    """

    worker_id: int
    call_id: int
    recursive: bool


class Abandoned(NamedTuple):
    """Notice that no process holds this actor any more; answered with True if it is to end.

    The answer is False if a process has found it by its name meanwhile, whose connection comes before.

    Attributes:
        introduced: how many `Connect` have arrived.
    """

    introduced: int


class Departing(NamedTuple):
    """Notice that a worker ends in order, of its own will, and is not to be restarted.

    Attributes:
        stays: until the results are there that it owes others. An actor is over all the same. It is answered.
        reason: why an actor ends.
    """

    stays: bool
    reason: str


class Imports(NamedTuple):
    """Notice that a worker imports a package that takes long, and that its template has not."""

    package: str


class QueryExit(NamedTuple):
    """Question for the end of a worker whose connection closed, answered with an `ExitRecord` once it has.

    If it lives, the connection was lost on the way to it: that is an ObjectLostError.
    """

    worker_id: int


class FindActor(NamedTuple):
    """Question for the actor of a name, answered with `Found` or `NotFound`.

    A handle beside is then a connection to it.

    Attributes:
        namespace: None for the session's own.
        detached: only one that outlives its program is meant.
    """

    name: str
    namespace: str | None
    detached: bool


class Found(NamedTuple):
    """Answer to `FindActor`: a registered actor.

    Attributes:
        label: what stands for it in errors and logs.
        life: how often it has been restarted; None of one that never is.
        max_task_retries: how often calls are made again that its death interrupted.
        in_order: it runs the calls of each caller in the order made.
    """

    worker_id: int
    label: str
    interface: Interface
    life: int | None = None
    max_task_retries: int = 0
    in_order: bool = True


class NotFound(NamedTuple):
    """Answer to `FindActor`: there is no such actor; these names there are in that namespace."""

    namespace: str
    names: Sequence[str]


class Reserve(NamedTuple):
    """Request for a placement group; answered when it is noted. `AwaitGroup` is answered when it is held.

    Attributes:
        name: "" for none; no other living group may have it.
        detached: it does not end with the process that asks.
    """

    group_id: int
    bundles: Sequence[Bundle]
    strategy: str
    name: str
    detached: bool


class FindGroup(NamedTuple):
    """Question for the group of a name, answered with its id and its bundles."""

    name: str


class AwaitGroup(NamedTuple):
    """Question that is answered once a group is held."""

    group_id: int


class Release(NamedTuple):
    """Order to give a group's bundles back and end what runs in it; answered when done."""

    group_id: int


class Available(NamedTuple):
    """Question for the free resources, answered with amounts by name."""


class State(NamedTuple):
    """Question for the state listing of a kind, answered with a list of mappings.

    Of the kind "calls", the node asks the driver first; the answer is empty if that does not say in a moment.
    """

    kind: str


class CallsCounted(NamedTuple):
    """Notice of how many calls the driver has made of each actor that it knows, and has no answer to.

    Attributes:
        calls: by the id of the actor.
    """

    calls: Mapping[int, int]


class Reclaimed(NamedTuple):
    """Notice that idle leases were returned, for the count of that number."""

    number: int


class Blocked(NamedTuple):
    """Notice that a worker waits for others (or goes on), so that its CPUs may be lent meanwhile."""

    waiting: bool


class Shutdown(NamedTuple):
    """Order to end everything; the connection closes when it is done.

    Asked by the driver while there are detached actors: end everything else. Answered then, once it is done.
    """


# node to client


class Reconnected(NamedTuple):
    """Answer to `Reconnect`: the actor has been, or is being, restarted.

    Attributes:
        life: how often by now.
        exit_: how its last process ended.
    """

    life: int
    exit_: ExitRecord


class Reclaim(NamedTuple):
    """Order to return the leases that are idle now, and the others when they are, as a request waits.

    Attributes:
        number: of the count of what is free that waits for `Reclaimed`; 0 for none.
    """

    number: int = 0


class CountCalls(NamedTuple):
    """Order to the driver to tell `CallsCounted`."""


class ShownAs(NamedTuple):
    """Order to show what a worker prints under this name from now on."""

    name: str


MARK = b"\x1dtrainkit:"
MARK_END = b"\x1e"
MARKED = re.compile(MARK + b"([^\x1e]*)" + MARK_END)
"""Mark in a worker's output, with the name of the function that prints what follows."""


def output_mark(name: str) -> bytes:
    """Return the mark that a worker writes before what the function `name` prints."""
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
    """Order to serve a further connection, the handle beside."""


class EndWorker(NamedTuple):
    """Order to end as soon as what was sent is done."""


# node to template


class WorkerSpec(NamedTuple):
    """Specification of a worker: all that a fresh process needs to become it.

    Attributes:
        serial: this process's number in the session; its references carry it.
        is_actor: ends when its last connection is gone; else when the node says so.
        group_bundles: those of the placement group that it was started in.
        gpus: share of each GPU index it was given, 0 to 1.
        placement: what was asked for.
        namespace: the session's.
        restarts: how often the actor has been restarted before.
        class_name: of an actor.
        registration: of an actor that others find by a name.
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
    """Order to fork a worker.

    Handles: its control connection, its first connection, stdout, stderr, the object store's account.
    """

    spec: WorkerSpec


class Redirect(NamedTuple):
    """Order to write all output to the handle beside from now on, as the driver has ended."""


class ForkTemplate(NamedTuple):
    """Order to fork a template that imports `preload` on top; handle: its connection to the node."""

    preload: frozenset[str]


# template to node


class Forked(NamedTuple):
    """Notice of a worker that a template has just forked."""

    serial: int
    pid: int


class ForkFailed(NamedTuple):
    """Notice that a worker could not be forked; `refused` if the machine has no room for it at present."""

    serial: int
    reason: str
    refused: bool = False


class Exited(NamedTuple):
    """Notice that a process that the template forked has ended, with the status as `waitpid` gives it."""

    pid: int
    status: int
    serial: int


class Ready(NamedTuple):
    """Notice that a template has done its imports."""


class Unusable(NamedTuple):
    """Notice that a template cannot fork: its imports left threads behind, or failed."""

    reason: str
