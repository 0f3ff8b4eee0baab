"""Protocol that an engine implements, and the promises that each engine keeps.

The table below shows the promises that each engine keeps. The conformance suite of engines reads PROMISES.

| promise | local | inline | ray |
| --- | --- | --- | --- |
| isolation: a call runs in a different process than its caller | yes | no | yes |
| parallel: calls to different actors overlap | yes | no | yes |
| survives: a worker's death raises an error in its callers, which stay alive | yes | no | yes |
| copies: a call receives a copy of the caller's object | yes | yes | yes |
| placement: resources are counted, and a request waits for them | yes | only refused when infeasible | yes |
| background: a call runs while its caller continues | yes | no | yes |
| concurrent: calls of one actor overlap, in threads or as `async def` | yes | no | yes |
| restarts: an actor is restarted when its process dies | yes | only by `kill(no_restart=False)` | yes |
| detached: a detached actor outlives the program | yes | no, it outlives only its handles | yes |
| listings: running tasks and large objects are listed | yes | yes | only with Ray's dashboard |
| near: all processes are on this machine and share its files and loopback | yes | yes | no |
| verdicts: `completed()` of a failed stream fails too | yes | yes | no, it only reports the end |
| unharmed: cancelling an actor's call does not affect running or later calls | yes | yes | no, see below |

Without the promise "background", a call has finished before its reference exists, so the call can't time out
or be cancelled. A streaming call runs while its results are read.

Without the promise "concurrent", an `async def` method that waits for the effect of another call raises an
error.

Without the promise "unharmed", a running method that is cancelled continues, but its result is lost. After a
call was cancelled before it began, the actor's next call may fail after half a minute.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from trainkit.errors import ConfigError
from trainkit.registry import added, loaded
from trainkit.resources import Bundle
from trainkit.runtime import specs
from trainkit.runtime.refs import ObjectRef

Row = dict[str, Any]

_ALL = frozenset(
    {
        "background",
        "concurrent",
        "copies",
        "detached",
        "isolation",
        "listings",
        "near",
        "parallel",
        "placement",
        "restarts",
        "survives",
        "unharmed",
        "verdicts",
    }
)
PROMISES: Mapping[str, frozenset[str]] = {
    "local": _ALL,
    "inline": frozenset({"copies", "listings", "near", "unharmed", "verdicts"}),
    "ray": _ALL - {"listings", "near", "unharmed", "verdicts"},
}


class Engine(Protocol):
    """Implementation of the functions of the runtime.

    An `actor` argument is a value that `start_actor` of the same engine returned. Engines do not understand
    each other's references and actors. All methods may be called from any thread of the process that made the
    engine.
    """

    name: str
    promises: frozenset[str]

    @classmethod
    def start(cls, spec: specs.SessionSpec) -> Engine:
        """Start a session. `trainkit.init` calls this method in the driver."""

    @property
    def is_worker(self) -> bool:
        """Return True in a worker, False in the process that started the session."""

    @property
    def alive(self) -> bool:
        """Return True if the engine can still run calls, False if a new engine must be started for further
        calls.
        """

    def require_usable(self) -> None:
        """Raise ObjectLostError if this process was forked from the process of the engine."""

    def require_node(self) -> None:
        """Raise NodeDiedError if the process that supervises the session is gone.

        The method checks the node directly. So it detects the node's death even if this process has only
        noticed a worker's death so far.
        """

    def submit(self, spec: specs.TaskSpec) -> list[ObjectRef[Any]]:
        """Start a task and return `spec.num_returns` references at once, or one ObjectRefGenerator.

        If no process can ever run the task, its references fail with InfeasibleError, and a warning is
        logged. On Ray, a task that no process can ever run is refused at once.
        """

    def start_actor(self, spec: specs.ActorSpec) -> Any:
        """Request an actor and return at once.

        If the constructor raises an error, every call to the actor raises this error.

        Raises:
            ConfigError: the actor's name is taken.
        """

    def find_actor(self, name: str, namespace: str | None) -> tuple[Any, specs.Interface]:
        """Return the actor named `name`, and the interface (name and methods) for its handles.

        Raises:
            ConfigError: no actor named `name` exists.
        """

    def call(
        self,
        actor: Any,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: specs.MethodSpec,
    ) -> list[ObjectRef[Any]]:
        """Send one method call. Calls from one process to one actor run in the order sent.

        Returns:
            `spec.num_returns` references, or one ObjectRefGenerator.
        """

    def kill(self, actor: Any, no_restart: bool) -> None:
        """End the actor's process and all its descendants at once. Do nothing if the actor is dead."""

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        """Cancel the call of `ref`, a reference or an ObjectRefGenerator; see `trainkit.cancel`."""

    def end_processes(self, placement: specs.Placement) -> None:
        """End the idle processes kept for tasks with this placement, and the busy
        processes after their tasks.

        Later tasks with this placement run in new processes. The method does nothing if the engine keeps no
        processes, or manages them itself.
        """

    def exit_actor(self) -> NoReturn:
        """End the calling actor as if it were killed, without a restart.

        Raises:
            ConfigError: the caller is not an actor.
        """

    def where_am_i(self) -> specs.WhereAmI:
        """Return the ids and names of this process, its actor and its running call."""

    def is_cancelled(self) -> bool:
        """Return True if the call that runs this code was cancelled but is still running."""

    def current_actor(self) -> tuple[Any, specs.Interface] | None:
        """Return the calling actor and the interface for its handles; None outside an actor."""

    def address_info(self) -> dict[str, Any]:
        """Return data about the session by Ray's names; see `trainkit.runtime.context.SessionContext`."""

    def put(self, value: Any) -> ObjectRef[Any]:
        """Store `value` for other processes."""

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        """Return the values of `refs`, in the order of `refs`.

        Raise the first failure of a call, or GetTimeoutError.
        """

    def wait(
        self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        """Split `refs` into at most `num_returns` done references and the other
        references, both in their order.
        """

    def lending(self) -> AbstractContextManager[None]:
        """Return a context manager for code that waits for the effect of further calls.

        The further calls may use the CPUs of the waiting code. On Ray, further calls may use these CPUs only
        while the code waits for references.
        """

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        """Request that all of `bundles` be reserved together, and return the group's id at once.

        Args:
            bundles: list of bundles, each with amounts by resource name.
            strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
            name: name for `find_group`; "" for no name.
            detached: True to keep the group when this program ends.

        Raises:
            InfeasibleError: the existing nodes can't meet the strategy.
            ConfigError: the name is taken.
        """

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        """Return the id of the placement group named `name`, and its bundles.

        Raise ConfigError if the group does not exist.
        """

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        """Return True once the group's bundles are reserved, False if `timeout_s` passes first."""

    def group_ref(self, group: int) -> ObjectRef[Any]:
        """Return a reference that is done, with value None, once the group is reserved."""

    def release(self, group: int) -> None:
        """Free a group's resources and end all tasks and actors in the group."""

    def current_group(self) -> tuple[specs.PlacementGroupId, list[Bundle]] | None:
        """Return the group in which this process was started, with its bundles; None outside a group."""

    def cluster_resources(self) -> Bundle:
        """Return all existing resources."""

    def available_resources(self) -> Bundle:
        """Return the free resources."""

    def state(self, kind: str) -> list[Row]:
        """Return the rows of a listing as plain data.

        The kinds are "nodes", "actors", "tasks", "workers", "logs", "objects", "placement_groups" and
        "requests".
        """

    def gpu_ids(self) -> list[int | str]:
        """Return the ids of the GPUs assigned to this process. In the driver, return the ids of all GPUs."""

    def scratch_dir(self) -> Path:
        """Return a private folder that is removed with the session, however the session ends."""

    def close(self) -> None:
        """End all processes that this engine started. Repeated calls are allowed."""


# All engines build the rows of the state listing with the functions below, so that all engines have the same
# columns.

LOOPBACK = "127.0.0.1"


def default_engine() -> str:
    """Return the name of the first engine whose plugin chooses it, such as in a Slurm job; else "local"."""
    names = added("trainkit.default_engines")
    return next((name for name in names if loaded("trainkit.default_engines", name)()), "local")


def listing(kinds: Mapping[str, Callable[[], list[Row]]], kind: str) -> list[Row]:
    """Return the rows of the listing `kind` by calling its function in `kinds`.

    Raise ConfigError if the kind does not exist.
    """
    if kind not in kinds:
        raise ConfigError(f"state({kind!r}) is not supported: use one of {', '.join(kinds)}")
    return kinds[kind]()


def node_row(
    node_id: str,
    labels: Mapping[str, str],
    totals: Bundle,
    available: Bundle,
    object_store: dict[str, int] | None = None,
) -> Row:
    """Return the listing row of this machine as a node, with the pid of this process."""
    return {
        "node_id": node_id,
        "alive": True,
        "hostname": socket.gethostname(),
        "address": LOOPBACK,
        "pid": os.getpid(),
        "labels": {**labels, "ray.io/node-id": node_id},
        "resources": dict(totals),
        "available": dict(available),
        "object_store": object_store,
    }


def worker_row(
    worker_id: str, name: str, worker_type: str, pid: int | None, node_id: str, ip: str = LOOPBACK
) -> Row:
    """Return the listing row of a living process of the session."""
    return {
        "worker_id": worker_id,
        "name": name,
        "worker_type": worker_type,
        "pid": pid,
        "is_alive": True,
        "node_id": node_id,
        "ip": ip,
    }


def task_row(
    name: str,
    resources: Bundle,
    *,
    is_running: bool,
    worker_id: str | None,
    pid: int | None,
    owner_pid: int | None,
    task_id: str | None = None,
) -> Row:
    """Return the listing row of a waiting or running task.

    A value of None means unknown or not yet assigned.
    """
    return {
        "task_id": task_id,
        "worker_id": worker_id,
        "name": name,
        "state": "RUNNING" if is_running else "PENDING",
        "pid": pid,
        "resources": dict(resources),
        "owner_pid": owner_pid,
    }


def group_row(group_id: str, name: str, strategy: str, is_created: bool, bundles: Sequence[Bundle]) -> Row:
    """Return the listing row of a placement group that is reserved or waits."""
    return {
        "placement_group_id": group_id,
        "name": name,
        "strategy": strategy,
        "state": "CREATED" if is_created else "PENDING",
        "bundles": [dict(bundle) for bundle in bundles],
    }
