"""The protocol that an engine implements, and the promises that each engine keeps.

Which promise holds on which engine (the conformance suite reads PROMISES):

| promise | local | inline | ray |
| --- | --- | --- | --- |
| isolation: a call runs in another process than its caller | yes | no | yes |
| parallel: calls to different actors overlap | yes | no | yes |
| survives: a worker's death is an error in its callers, not their end | yes | no | yes |
| copies: what a call gets is not the caller's own object | yes | yes | yes |
| placement: resources are counted, and a request waits for them | yes | only refused when infeasible | yes |
| background: a call runs on while its caller does something else | yes | no | yes |
| concurrent: calls of one actor overlap, in threads or as `async def` | yes | no | yes |
| restarts: an actor is made anew when its process dies | yes | only by `kill(no_restart=False)` | yes |
| detached: such an actor outlives the program | yes | only its handles; it ends with the process | yes |
| listings: running tasks and large objects are listed | yes | yes | only with Ray's dashboard |
| near: all processes are on this machine, with its files and its loopback | yes | yes | no |
| verdicts: `completed()` of a stream that failed fails too | yes | yes | no, it tells that it ended |
| unharmed: cancelling an actor's call harms none that runs and none after it | yes | yes | no, see below |

Without "background" a call has finished when its reference exists, so it is never late and can't be
cancelled; a streaming one runs as its results are read. Without "concurrent" an `async def` method that
waits for what another call would do is refused. Without "unharmed" a method that runs when it is cancelled
runs on, but its result is lost; and where one was cancelled that had not begun, the actor's next call may
fail after half a minute.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from trainkit.errors import ConfigError
from trainkit.resources import Bundle
from trainkit.runtime import specs

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
    """Carries out the verbs. An `actor` argument is what `start_actor` of the same engine returned.

    References and actors of one engine are not understood by another. All methods may be called from
    any thread of the process that made the engine.
    """

    name: str
    promises: frozenset[str]

    @classmethod
    def start(cls, spec: specs.SessionSpec) -> Engine:
        """Start a session; called in the driver, by `trainkit.init`."""

    @property
    def is_worker(self) -> bool:
        """Return True if the session started this process, and not the reverse."""

    @property
    def alive(self) -> bool:
        """Return True if the engine can still carry out calls; otherwise a new one may be started."""

    def require_usable(self) -> None:
        """Raise ObjectLostError in a process that was forked from the engine's own."""

    def require_node(self) -> None:
        """Raise NodeDiedError if the process that supervises the session is gone.

        It is asked, so the answer holds also where a worker's death is known before that of the node.
        """

    def submit(self, spec: specs.TaskSpec) -> list[specs.ObjectRef[Any]]:
        """Start a task; returns `spec.num_returns` references at once, or one ObjectRefGenerator.

        If there can never be a process for it, they fail with InfeasibleError, and a warning says so; Ray
        refuses it at once.
        """

    def start_actor(self, spec: specs.ActorSpec) -> Any:
        """Ask for an actor; returns at once. Errors of its constructor reach every call to it.

        Raises:
            ConfigError: its name is taken.
        """

    def find_actor(self, name: str, namespace: str | None) -> tuple[Any, specs.Interface]:
        """The actor of that name, with what its handles need to know.

        Raises:
            ConfigError: there is none.
        """

    def call(
        self,
        actor: Any,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: specs.MethodSpec,
    ) -> list[specs.ObjectRef[Any]]:
        """Send one method call; calls of one process to one actor run in the order sent.

        Returns:
            `spec.num_returns` references, or one ObjectRefGenerator.
        """

    def kill(self, actor: Any, no_restart: bool) -> None:
        """End the actor's process and all its descendants at once; a dead actor is no error."""

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        """Stop the call that owes `ref` (a reference or an ObjectRefGenerator); see `trainkit.cancel`."""

    def end_processes(self, placement: specs.Placement) -> None:
        """Let the processes go that are kept for tasks of this placement, once they have done what they have.

        Further tasks of it are run by new ones. Nothing where the engine keeps none, or sees to it itself.
        """

    def exit_actor(self) -> NoReturn:
        """End the actor that this is called in, as if it were killed, without being made anew.

        Raises:
            ConfigError: this is no actor.
        """

    def where_am_i(self) -> specs.WhereAmI:
        """This process's place in the session."""

    def is_cancelled(self) -> bool:
        """Return True if the call that this is called in was cancelled, and goes on all the same."""

    def current_actor(self) -> tuple[Any, specs.Interface] | None:
        """The actor that this is called in, with what its handles need to know; None outside one."""

    def address_info(self) -> dict[str, Any]:
        """Facts about the session by Ray's names; see `trainkit.runtime.context.SessionContext`."""

    def put(self, value: Any) -> specs.ObjectRef[Any]:
        """Keep `value` for other processes to read."""

    def get(self, refs: Sequence[specs.ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        """Values in the order of `refs`; raises the first failure, or GetTimeoutError."""

    def wait(
        self, refs: Sequence[specs.ObjectRef[Any]], num_returns: int, timeout_s: float | None
    ) -> tuple[list[specs.ObjectRef[Any]], list[specs.ObjectRef[Any]]]:
        """Split `refs` into at most `num_returns` that are done and the rest, both in their order."""

    def lending(self) -> AbstractContextManager[None]:
        """Return a context in which a call waits for something that further calls bring about.

        They may run on its CPUs meanwhile; not on Ray, which lends only while a call waits for references.
        """

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        """Ask for a group of bundles, all or none; returns its id at once.

        Args:
            bundles: amounts by resource name.
            strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
            name: by which others find it; "" for none.
            detached: it outlives this program.

        Raises:
            InfeasibleError: the strategy can't be followed with the nodes there are.
            ConfigError: the name is taken.
        """

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        """The group of that name and its bundles; raises ConfigError if there is none."""

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        """True once the group's bundles are reserved; False if `timeout_s` passed before."""

    def group_ref(self, group: int) -> specs.ObjectRef[Any]:
        """A reference that is done, with value None, once the group is reserved."""

    def release(self, group: int) -> None:
        """Give a group's resources back and end what runs in it."""

    def current_group(self) -> tuple[specs.PlacementGroupId, list[Bundle]] | None:
        """The group that this process was started in, with its bundles; None if in none."""

    def cluster_resources(self) -> Bundle:
        """All that exists."""

    def available_resources(self) -> Bundle:
        """Return the resources that are free now."""

    def state(self, kind: str) -> list[Row]:
        """Return the rows of a listing as plain data.

        There are "nodes", "actors", "tasks", "workers", "logs", "objects", "placement_groups" and "requests".
        """

    def gpu_ids(self) -> list[int | str]:
        """Return names of the GPUs that this process was given; in the driver, of all that exist."""

    def scratch_dir(self) -> Path:
        """A private folder that goes with the session, however it ends."""

    def close(self) -> None:
        """End everything that this engine started; may be called twice."""


# rows of the state listing, with the columns that every engine gives

LOOPBACK = "127.0.0.1"


def listing(kinds: Mapping[str, Callable[[], list[Row]]], kind: str) -> list[Row]:
    """Return the rows of a kind, made by its function; raises ConfigError if there is no such kind."""
    if kind not in kinds:
        raise ConfigError(f"state({kind!r}); there are {', '.join(kinds)}")
    return kinds[kind]()


def node_row(
    node_id: str,
    labels: Mapping[str, str],
    totals: Bundle,
    available: Bundle,
    object_store: dict[str, int] | None = None,
) -> Row:
    """Return the row of this machine as a node that this process supervises."""
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
    """Return the row of a living process of the session."""
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
    """Return the row of a task that waits or runs; None stands for what is not known, or not there yet."""
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
    """Return the row of a placement group that is reserved, or waits to be."""
    return {
        "placement_group_id": group_id,
        "name": name,
        "strategy": strategy,
        "state": "CREATED" if is_created else "PENDING",
        "bundles": [dict(bundle) for bundle in bundles],
    }
