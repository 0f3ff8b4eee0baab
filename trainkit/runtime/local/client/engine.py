"""Local engine of one process, which is the driver or a worker that makes calls itself.

The engine also reports failed calls whose results the process never reads.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainkit.clock import SYSTEM
from trainkit.errors import (
    ActorDiedError,
    ArgumentTypeError,
    GetTimeoutError,
    ObjectLostError,
    TaskCancelledError,
    TrainkitError,
)
from trainkit.resources import Bundle, require_feasible
from trainkit.runtime import session, signals
from trainkit.runtime.context import address_info
from trainkit.runtime.engine import PROMISES
from trainkit.runtime.failures import ActorExit, unpack_failure
from trainkit.runtime.labels import require_labels
from trainkit.runtime.local.client import launch
from trainkit.runtime.local.client.actor_client import ActorClient, ActorLookup
from trainkit.runtime.local.client.actors import ClientParts, actor_peers
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.calls import CallCodec
from trainkit.runtime.local.client.futures import CallControl, Futures, Results
from trainkit.runtime.local.client.node_client import Ids, NodeClient, show_notice
from trainkit.runtime.local.client.promises import OwedResults
from trainkit.runtime.local.client.tasks import TaskPools
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.segments import SegmentPool, opened
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.context import ProcessContext
from trainkit.runtime.local.system.devices import gpu_ids, gpu_name, visible_gpus
from trainkit.runtime.local.wire import messages
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.scheduling import captured, require_one_node
from trainkit.runtime.serialize import Packed
from trainkit.runtime.signals import InterruptGuard, wake_fd
from trainkit.runtime.specs import Interface, Placement, PlacementGroupId, SessionSpec, WhereAmI
from trainkit.settings import IGNORE_UNHANDLED_ERRORS, SESSION_MARK, tells_unhandled_errors

logger = logging.getLogger("trainkit")

_DRIVER_SERIAL = 1
_FAREWELL_S = 5.0
_WINDOW_S = 5.0
_MOST = 3
"""Maximum number of failures shown within a window of 5 s. Further failures are only counted."""
_MOST_KEPT = 1_000


class LocalEngine:
    """Engine of one process in a session that runs on one machine.

    The engine creates the client objects and connects them with each other.

    Args:
        control: the socket to the node.
        totals: total amounts of the session's resources, by name.
        account: budget of the shared memory that the session's objects use.
        serial: this process's number in the session.
        cpus: number of CPUs reserved for this process. Other processes may use these CPUs while this process
            waits.
        gpus: names of the GPUs that this process may use, in the form of CUDA_VISIBLE_DEVICES.
        group: id and bundles of the placement group that this process was started in; None outside a group.
        node: the node process, in the driver; None in a worker.
        own_variables: environment variables set only for this process, which its workers do not inherit.
        asked_preload: modules that the user wants imported before workers are forked.
        context: namespace, actor and resources of this process, for `where_am_i`.

    Attributes:
        own_handle: function that returns the endpoint and the interface of this process's own actor; None
            outside actors.
        is_cancelled: implementation of `Engine.is_cancelled`, which a worker replaces with its own check.
    """

    name = "local"
    promises = PROMISES["local"]

    def __init__(
        self,
        control: socket.socket,
        totals: Bundle,
        account: StoreBudget,
        *,
        serial: int = _DRIVER_SERIAL,
        cpus: float = 0,
        gpus: Sequence[str] = (),
        group: tuple[PlacementGroupId, list[Bundle]] | None = None,
        node: launch.NodeProcess | None = None,
        own_variables: Mapping[str, str] | None = None,
        asked_preload: frozenset[str] = frozenset(),
        context: ProcessContext | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.context = context or ProcessContext()
        self.mark = os.environ[SESSION_MARK] if node is None else node.mark
        self.own_handle: Callable[[], tuple[Any, Interface]] | None = None
        self.is_cancelled: Callable[[], bool] = lambda: False
        self._serial = serial
        self._totals = dict(totals)
        self._gpus = list(gpus)
        self._group = group
        self._node_process = node
        if node is not None:
            signals.node = node.child.pid
        self._asked_preload = asked_preload
        self._own_variables = dict(own_variables or {})
        self._inherited: tuple[Any, bytes] = None, b""
        """`os.environ`, `sys.path` and `sys.argv` for new workers, as last read and as JSON."""
        self._is_closed = False
        wake_fd()  # the wake-up descriptor is opened now, as all descriptors may be in use later
        self.background = BackgroundThread()
        self.unread = UnreadFailures(self.background.run)
        ids = Ids(serial)
        self._call_of = ids.call_of
        self.node = NodeClient(
            control, ids, lambda ref: self.waiter.get([ref], None)[0], self.background.run, node
        )
        self.node.home = self.mark
        self.node.on_notice = self.notified
        self.waiter = Waiter(self.node, self.background, is_worker=node is None, lends=cpus > 0)
        self._segments = SegmentPool(account)
        self.codec = CallCodec(self._segments, ids)
        self.parts = ClientParts(
            self.mark,
            self.node,
            self.background,
            self.waiter,
            self.codec,
            self._placed,
            self._environment,
        )
        self.owed = OwedResults(self.waiter, self.background)
        self.futures = Futures(self.background, self.waiter)
        self.control = CallControl(self.node, self.background, ids)
        self.results = Results(ids, self.waiter, self.futures, self.control)
        self._tasks = TaskPools(self.parts, self.results, self._totals)
        self.waiter.asks_for_processes = self._tasks.asks
        lookup = ActorLookup(self.parts, self.context.namespace)
        self._actors = ActorClient(self.parts, lookup, self.results)
        # These methods of `Engine` are bound to their implementation directly, which saves a Python call.
        self.put = self.codec.put
        self.get, self.wait, self.lending = self.waiter.get, self.waiter.wait, self.waiter.lending
        self.submit, self.end_processes = self._tasks.submit, self._tasks.end_processes
        self.start_actor, self.find_actor = self._actors.start, lookup.find
        self.call, self.kill = self._actors.call, self._actors.kill
        self.cancel = self.control.cancel
        self.future, self.awaited = self.futures.future, self.futures.awaited
        self.death_of = self.node.death_of
        if node is not None:  # in a worker, the main loop reads the node's connection
            self.background.watch(self.node, "notices")

    @classmethod
    def start(cls, spec: SessionSpec) -> LocalEngine:
        """Start a node and return the engine of its driver, which is this process."""
        node = launch.start_node(spec)
        visible = visible_gpus()
        gpus = [gpu_name(index, visible) for index in range(int(spec.totals.get("GPU", 0)))]
        return cls(
            node.control,
            spec.totals,
            node.account,
            gpus=gpus,
            node=node,
            asked_preload=spec.preload,
            context=ProcessContext(namespace=spec.namespace),
        )

    def require_usable(self) -> None:
        if self._is_closed:
            raise ObjectLostError("an actor or a reference was used after the session was shut down")
        if self.pid != os.getpid():
            raise ObjectLostError(
                "this process was forked from a process of a session, and can't use the session: start "
                "processes through trainkit, or pass plain values to them"
            )

    @property
    def is_worker(self) -> bool:
        return self._node_process is None

    @property
    def alive(self) -> bool:
        return not self.node.closed

    def _environment(self) -> messages.WorkerEnvironment:
        """Return the environment that new workers inherit, without variables set only for this process."""
        # The raw bytes are compared, as decoding each variable would take longer than the rest of a request.
        seen: tuple[dict[Any, Any], list[str], list[str]] = (
            dict(getattr(os.environ, "_data", os.environ)),
            [entry for entry in sys.path if isinstance(entry, str)],
            [argument for argument in sys.argv if isinstance(argument, str)],
        )
        known = self._inherited
        if known[0] != seen:
            environ = {os.fsdecode(name): os.fsdecode(value) for name, value in seen[0].items()}
            given = {  # the session mark is left out, as every process has it already
                name: value
                for name, value in environ.items()
                if self._own_variables.get(name) != value and name != SESSION_MARK
            }
            # JSON turns the values into plain strings, so that template processes (from which workers are
            # forked) need no classes of the user.
            known = self._inherited = seen, json.dumps([given, *seen[1:]]).encode()
        preload = session.wanted() | self._asked_preload
        return messages.WorkerEnvironment(known[1], process.working_folder(), preload)

    def _placed(self, placement: Placement, name: str) -> Placement:
        """Return `placement`, moved into this process's placement group if the group captures child tasks."""
        require_feasible([placement.resources], self._totals, what=name)
        if placement.labels:
            require_labels(placement.labels, self.state("nodes")[0], name)
        return captured(placement, self._group)

    def notified(self, message: Any, body: Packed) -> None:
        """Act on a notice from the node."""
        if isinstance(message, messages.Reclaim):
            # The background thread runs this job, as the thread that reads the notice may hold a task pool's
            # lock.
            self.background.run(functools.partial(self._return_idle, message.number))
        elif isinstance(message, messages.CountCalls):
            self.background.run(self._count_calls)
        else:
            show_notice(message, body)

    def _return_idle(self, count: int) -> None:
        self._tasks.reclaim()
        if count:
            self.node.tell(messages.Reclaimed(count))

    def _count_calls(self) -> None:
        calls = {}
        for peer in actor_peers():
            if peer.worker_id is not None and peer.home in (None, self.mark):
                peer.try_read()  # first read the answers that have arrived and that no thread waits for
                calls[peer.worker_id] = peer.calls_in_flight(self._call_of)
        self.node.tell(messages.CallsCounted(calls))

    def owes(self) -> bool:
        """Return True if this process still owes results to others or waits for its own calls."""
        unfinished = [
            *self._tasks.unfinished(),
            *(ref for conn in actor_peers() for ref in conn.unfinished()),
        ]
        return self.owed.outstanding(unfinished)

    def exit_actor(self) -> NoReturn:
        if self.context.actor_id is None:
            raise ArgumentTypeError("exit_actor() was called outside an actor; a task ends by returning")
        raise ActorExit

    def where_am_i(self) -> WhereAmI:
        return self.context.seen_by(self._serial, self.mark)

    def current_actor(self) -> tuple[Any, Interface] | None:
        return None if self.own_handle is None else self.own_handle()

    def address_info(self) -> dict[str, Any]:
        return address_info(self.where_am_i().node_id, self.mark)

    def scratch_dir(self) -> Path:
        path = Path(self.mark)
        path.mkdir(mode=0o700, exist_ok=True)  # this process makes the folder if the node has not made it yet
        return path

    def group_ref(self, group: int) -> ObjectRef[Any]:
        return self.node.ask(messages.AwaitGroup(group))

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        try:
            self.get([self.group_ref(group)], timeout_s)
        except GetTimeoutError:
            return False
        return True

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        require_one_node(bundles, strategy)
        group = self.node.new_id()
        try:
            self.node.demand(messages.Reserve(group, list(bundles), strategy, name, detached))
        except (KeyboardInterrupt, SystemExit):  # otherwise the group would stay reserved without a handle
            self.node.tell(messages.Release(group))
            raise
        return group

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        found: tuple[int, list[Bundle]] = self.node.demand(messages.FindGroup(name))
        return found

    def release(self, group: int) -> None:
        self.node.demand_end(messages.Release(group))

    def current_group(self) -> tuple[PlacementGroupId, list[Bundle]] | None:
        return self._group

    def require_node(self) -> None:
        self.node.demand(messages.Available())

    def cluster_resources(self) -> Bundle:
        return dict(self._totals)

    def available_resources(self) -> Bundle:
        self._tasks.reclaim()  # idle leases are returned, so that their resources count as free
        amounts: Bundle = self.node.demand(messages.Available())
        return amounts

    def state(self, kind: str) -> list[dict[str, Any]]:
        if kind == "nodes":
            self._tasks.reclaim()  # idle leases are returned, so that their resources count as free
        rows: list[dict[str, Any]] = self.node.demand(messages.State(kind))
        if kind == "tasks":  # only this process knows the tasks in its own queue
            pids = {row["worker_id"]: row["pid"] for row in rows}
            rows = [*(row for row in rows if row["owner_pid"] != self.pid), *self._tasks.listed(pids)]
        return rows

    def gpu_ids(self) -> list[int | str]:
        return gpu_ids(self._gpus)

    def close(self) -> None:
        if self._node_process is None or self.node.closing or self.pid != os.getpid():
            return  # the engine of a worker ends with the worker's process, so it is not closed here
        self.node.closing = True
        try:
            self._read_out()
            if self._farewell():
                self._node_process.let_stay()
            else:
                self._node_process.join()
        finally:  # this also runs after Ctrl-C, so that the node notices that its driver has ended
            with InterruptGuard():
                self._let_go()

    def _farewell(self) -> bool:
        """Shut the session down and wait until its workers have ended.

        Return True if detached actors stay.
        """
        try:
            return bool(self.get([self.node.ask(messages.Shutdown())], _FAREWELL_S)[0])
        except TrainkitError:  # the node has ended, or `join` will kill it
            return False

    def _let_go(self) -> None:
        """Release this process's threads, connections and memory of the ended session."""
        self.node.try_read()  # the read shows the last output of the workers
        self.background.stop()
        self.owed.close()
        self.unread.finish()
        self.futures.fail(self.node.lost())
        self._tasks.close()
        for conn in actor_peers():
            conn.fail_held(self.node.lost)
        self._segments.close()
        self.node.close()
        self._is_closed = True

    def _read_out(self) -> None:
        """Read the answers that no thread has read, to show the failures among them."""
        for conn in actor_peers():
            conn.read_out()
        self._tasks.read_out()


class UnreadFailures:
    """Report of the unhandled failures of this process's calls.

    Args:
        run_soon: function that calls a function soon, in a thread that may run user code.
    """

    def __init__(self, run_soon: Callable[[Callable[[], None]], None]) -> None:
        self._run_soon = run_soon
        self._lock = threading.RLock()  # reentrant, as garbage collection may record another failure
        self._dropped: list[Packed] = []
        self._since = SYSTEM.monotonic()
        self._shown: set[str] = set()
        self._not_shown = 0
        self._is_over = False
        self._pid = os.getpid()

    def dropped(self, failure: Packed) -> None:
        """Record a failure that was garbage-collected before the user read it.

        The failure is logged later by `show`, because `dropped` may be called in any `__del__`.
        """
        is_copy = self._pid != os.getpid()  # a forked child logs no failures, as its parent logs them
        if self._is_over or is_copy or sys.is_finalizing() or not tells_unhandled_errors():
            return
        with self._lock:
            is_first = not self._dropped
            if len(self._dropped) < _MOST_KEPT:
                self._dropped.append(failure)
        if is_first:  # `show` is requested once, and logs later failures together with the first failure
            self._run_soon(self.show)

    def show(self) -> None:
        """Log the recorded failures, or only count them after 3 failures within 5 s."""
        now = SYSTEM.monotonic()
        if now - self._since >= _WINDOW_S:
            self._show_count()
            self._since, self._shown = now, set()
        with self._lock:
            dropped, self._dropped = self._dropped, []
        for text in filter(None, map(_text_of, dropped)):
            if text in self._shown or len(self._shown) >= _MOST:
                self._not_shown += 1
            else:
                self._shown.add(text)
                logger.error("Unhandled error (suppress with %s=1): %s", IGNORE_UNHANDLED_ERRORS, text)

    def finish(self) -> None:
        """Log the remaining failures and ignore later failures."""
        self.show()
        self._show_count()
        self._is_over = True

    def _show_count(self) -> None:
        count, self._not_shown = self._not_shown, 0
        if count:
            logger.error(
                "Unhandled errors: at least %d more calls failed, and their results were not read", count
            )


def _text_of(failure: Packed) -> str | None:
    """Return the traceback of a failure; None if the call was cancelled or its actor has died."""
    try:
        error = unpack_failure(opened(failure))
    except Exception as problem:  # unpickling the user's exceptions may raise any error
        return f"a call raised an exception that can't be unpickled here: {problem}"
    if isinstance(error, ActorDiedError) or isinstance(error.cause, (ActorDiedError, TaskCancelledError)):
        return None
    return error.remote_traceback
