"""The local engine of one process."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.errors import ObjectLostError
from trainkit.resources import QUANTUM, Bundle, require_feasible
from trainkit.runtime import session
from trainkit.runtime.local.client import actor_lookup, launch, reconnecting
from trainkit.runtime.local.client.actors import ActorEndpoint, HeldCall, actor_peers
from trainkit.runtime.local.client.background import END, BackgroundThread
from trainkit.runtime.local.client.calls import CallCodec
from trainkit.runtime.local.client.context import ProcessContext
from trainkit.runtime.local.client.futures import CallControl
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.node_client import Ids, NodeClient, show_notice
from trainkit.runtime.local.client.refs import (
    CallConnection,
    LocalRef,
    OwedResult,
    UnreadFailures,
    is_own,
    set_engine,
)
from trainkit.runtime.local.client.streams import StreamRef
from trainkit.runtime.local.client.tasks import TaskPool
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.segments import SegmentPool
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.devices import gpu_ids, gpu_name, visible_gpus
from trainkit.runtime.local.wire.batching import lasting
from trainkit.runtime.local.wire.channel import ended, explain
from trainkit.runtime.local.wire.frames import INIT, VALUE
from trainkit.runtime.local.wire.messages import (
    ActorConduct,
    ArgumentsThere,
    Available,
    CancelOwed,
    FindGroup,
    Kill,
    NotFound,
    Reclaim,
    Reclaimed,
    Release,
    Reserve,
    StartActor,
    State,
    WorkerEnvironment,
)
from trainkit.runtime.placement import require_labels
from trainkit.runtime.scheduling import captured, require_one_node
from trainkit.runtime.serialize import Packed, pack
from trainkit.runtime.signals import InterruptGuard, wake_fd
from trainkit.runtime.specs import (
    DYNAMIC,
    STREAMING,
    ActorSpec,
    Interface,
    MethodSpec,
    ObjectRef,
    Placement,
    PlacementGroupId,
    SessionSpec,
    TaskSpec,
)
from trainkit.settings import SESSION_MARK


class NodeVerbs:
    """Part of `client.LocalEngine`; see `trainkit.runtime.engine.Engine`.

    Args:
        link: the connection to the node.
        totals: all resources of the session.
        gpus: names of the GPUs that this process may use.
        group: the placement group it was started in, with its bundles.
    """

    def __init__(
        self,
        link: NodeClient,
        totals: Bundle,
        gpus: Sequence[str],
        group: tuple[PlacementGroupId, list[Bundle]] | None,
    ) -> None:
        self.link = link
        self._totals = dict(totals)
        self._gpus = list(gpus)
        self._group = group

    @abstractmethod
    def _reclaim(self) -> None:
        """Return the leases that are idle."""

    @abstractmethod
    def _with_own_tasks(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The node's list of tasks, with what this process knows better: what it has queued itself."""

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        require_one_node(bundles, strategy)
        group = self.link.new_id()
        try:
            self.link.demand(Reserve(group, list(bundles), strategy, name, detached))
        except KeyboardInterrupt:  # nobody would have it
            self.link.tell(Release(group))
            raise
        return group

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        found: tuple[int, list[Bundle]] = self.link.demand(FindGroup(name))
        return found

    def release(self, group: int) -> None:
        if not self.link.closed:
            self.link.demand(Release(group))

    def current_group(self) -> tuple[PlacementGroupId, list[Bundle]] | None:
        return self._group

    def require_node(self) -> None:
        self.link.demand(Available())

    def cluster_resources(self) -> Bundle:
        return dict(self._totals)

    def available_resources(self) -> Bundle:
        self._reclaim()  # what only waits for a further task is free
        amounts: Bundle = self.link.demand(Available())
        return amounts

    def state(self, kind: str) -> list[dict[str, Any]]:
        if kind == "nodes":
            self._reclaim()  # what only waits for a further task is free
        rows: list[dict[str, Any]] = self.link.demand(State(kind))
        return self._with_own_tasks(rows) if kind == "tasks" else rows

    def gpu_ids(self) -> list[int | str]:
        return gpu_ids(self._gpus)


_DRIVER_SERIAL = 1
_PLACEMENTS_KNOWN = 256
_FEW_DEBTS = 64


class LocalEngine(Waiter, CallControl, NodeVerbs):
    """See `trainkit.runtime.engine.Engine`.

    Args:
        control: the socket to the node.
        totals: all resources of the session.
        account: of what its objects take.
        serial: this process's number in the session.
        cpus: CPUs that this process holds, which it lends while it waits for others.
        gpus: names of the GPUs it may use, as CUDA_VISIBLE_DEVICES has them.
        group: the placement group it was started in, with its bundles.
        node: the supervising process, in the driver.
        own_variables: environment variables that were set for this process alone.
        asked_preload: modules that the user wants workers to be forked with.
        place: this process's in the session.
    """

    name = "local"

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
        place: ProcessContext | None = None,
    ) -> None:
        CallControl.__init__(self)
        self.pid = os.getpid()
        self.place = place or ProcessContext()
        self._serial = serial
        self.mark = os.environ[SESSION_MARK] if node is None else node.mark
        wake_fd()  # now, as there may be no descriptor left when it is needed
        self.pump = BackgroundThread()
        self.unread = UnreadFailures(self.pump.run)
        self._ids = Ids(serial)
        Waiter.__init__(self, lends=cpus > 0)
        self._node = node
        self._asked_preload = asked_preload
        self._own_variables = dict(own_variables or {})
        self._segments = SegmentPool(account)
        self._pools: dict[Hashable, TaskPool] = {}
        self._pool_of: dict[int, tuple[Placement, TaskPool]] = {}
        self._pools_lock = threading.RLock()  # a collection under it may make a call
        self.debts: set[OwedResult] = set()
        self._most_debts = _FEW_DEBTS
        self._awaits_tasks = False
        self.on_settled: Callable[[], None] = lambda: None
        self._bodies = CallCodec(self._segments, self._ids)
        self.link = NodeClient(control, self._ids, self._answer, self.pump.run, node)
        self.link.home = self.mark
        self.link.on_notice = self.notified
        NodeVerbs.__init__(self, self.link, totals, gpus, group)
        set_engine(self)
        if node is not None:  # a worker's main loop reads this connection itself
            self.pump.watch(self.link, "notices")

    @classmethod
    def start(cls, spec: SessionSpec) -> LocalEngine:
        """Start a node, and the engine of the driver that it belongs to; see `trainkit.init`."""
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
            place=ProcessContext(namespace=spec.namespace),
        )

    def require_usable(self) -> None:
        if self.pid != os.getpid():
            raise ObjectLostError(
                "this process was forked from one that is part of a session, but is not itself; start "
                "processes through trainkit, or hand them plain values"
            )

    @property
    def is_worker(self) -> bool:
        return self._node is None

    @property
    def alive(self) -> bool:
        return not self.link.closed

    def store(self, value: Packed) -> Packed:
        """`value`, moved to shared memory if it is large."""
        return self._segments.write(value)

    def new_id(self) -> int:
        """A number that nobody else in the session uses."""
        return self._ids.next()

    def surroundings(self) -> WorkerEnvironment:
        """What a worker started now is to see of this process; not what was set for this one alone."""
        own = self._own_variables
        environ = {
            name: value
            for name, value in os.environ.items()
            if own.get(name) != value and name != SESSION_MARK  # which every process of the session has
        }
        return WorkerEnvironment(
            environ, process.working_folder(), list(sys.path), session.wanted() | self._asked_preload
        )

    def notified(self, message: Any, body: Packed) -> None:
        """Act on a notice from the node."""
        if isinstance(message, Reclaim):
            # In the pump's thread: the notice may have been read while a task pool was locked.
            self.pump.run(functools.partial(self._return_idle, message.number))
        elif isinstance(message, CancelOwed):
            self.pump.run(lambda: self.cancel_owed(message))
        else:
            show_notice(message, body)

    def _return_idle(self, count: int) -> None:
        self._reclaim()
        if count:
            self.link.tell(Reclaimed(count))

    def _reclaim(self) -> None:
        with self._pools_lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.reclaim()

    def _with_own_tasks(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pids = {row["worker_id"]: row["pid"] for row in rows}
        with self._pools_lock:
            pools = list(self._pools.values())
        others = [row for row in rows if row["owner_pid"] != self.pid]
        return others + [row for pool in pools for row in pool.listed(pids)]

    def _refs(self, count: int, peer: CallConnection | None) -> list[LocalRef]:
        if count == STREAMING:
            stream: LocalRef = StreamRef(self._ids.next(), self._ids.next)
            stream.attach(peer)
            return [stream]
        if count in (0, 1, DYNAMIC):
            return [LocalRef(self._ids.next(), peer)]
        return [LocalRef(number, peer) for number in self._ids.block(count)]

    def _answer(self, ref: LocalRef) -> Any:
        return self.get([ref], None)[0]

    def asks_for_processes(self) -> bool:
        """True if a lease is asked for that is not there yet."""
        return any(pool.asks for pool in list(self._pools.values()))

    # what others wait for

    def owe(self, debt: OwedResult) -> None:
        """Note a result that somebody waits for, and let go of those that nobody waits for any more."""
        self.debts.add(debt)
        if len(self.debts) > self._most_debts:  # seldom, as all of them are looked at
            for given_up in ended(list(self.debts)):
                given_up.try_read()
            self._most_debts = max(_FEW_DEBTS, 2 * len(self.debts))

    def settled(self, debt: OwedResult) -> None:
        """Note that a result was sent, or that nobody wants it any more."""
        self.debts.discard(debt)
        self.on_settled()

    def _tasks_ended(self) -> None:
        self._awaits_tasks = False
        self.on_settled()

    def owes(self) -> bool:
        """Return whether others wait for a result of this process, or calls of its own need it.

        `on_settled` is called when that may have changed.
        """
        unfinished = [task.refs[-1] for pool in list(self._pools.values()) for task in pool.unfinished()]
        unfinished += [ref for peer in actor_peers() for ref in peer.unfinished()]
        if unfinished and not self._awaits_tasks:
            self._awaits_tasks = True
            self.when_all(unfinished, self._tasks_ended)
        for debt in list(self.debts):
            self.pump.watch(debt, END)
        return bool(unfinished or self.debts)

    # verbs

    def submit(self, spec: TaskSpec) -> list[ObjectRef[Any]]:
        pool = self._pool(spec.placement, spec.name)
        definition = self._bodies.definition(spec.function, spec.name)
        refs = self._refs(spec.num_returns, None)
        # A small call doesn't carry its name, so it is that of the function.
        is_small = spec.num_returns == 1 and spec.name == getattr(spec.function, "__qualname__", spec.name)
        arguments = lasting(spec.args, spec.kwargs) if is_small else None
        task = Task(
            spec.name,
            pool,
            definition,
            arguments,
            None,
            refs,
            spec.max_retries,
            spec.retry_exceptions,
            spec.max_calls,
        )
        for ref in refs:
            ref.body = task
        waits_for: list[LocalRef] = []
        if arguments is None:
            # Packed now, as the caller may change what it gave; a pending reference packs as a promise.
            task.body = self.body_of(definition, spec.name, spec.num_returns, spec.args, spec.kwargs).owned()
            waits_for = _pending(spec.args, spec.kwargs)
        if waits_for:  # a leased process that waited for other tasks would keep them from running
            pool.expect(task)
            self.when_all(waits_for, lambda: self.pump.run(lambda: pool.submit(task, watch=True)))
        else:
            pool.submit(task)
        return self._started(refs, spec.num_returns)

    def body_of(
        self,
        definition: LocalRef,
        name: str,
        count: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Packed:
        """The body of a call of a function; see `CallCodec.of_call`."""
        return self._bodies.of_call(definition, name, count, args, kwargs)

    def _pool(self, placement: Placement, name: str) -> TaskPool:
        known = self._pool_of.get(id(placement))
        if known is not None and known[0] is placement:
            return known[1]
        asked, placement = placement, self._placed(placement, name)
        key = (
            tuple(sorted(placement.resources.items())),
            placement.group,
            tuple(sorted(placement.env.items())),
            placement.cwd,
        )
        with self._pools_lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = TaskPool(self, placement)
                self.pump.watch(self.link, "leases")  # for the node's wish to have them back
            if len(self._pool_of) > _PLACEMENTS_KNOWN:
                self._pool_of.clear()
            self._pool_of[id(asked)] = asked, pool
            return pool

    def end_processes(self, placement: Placement) -> None:
        # Before the lock is taken: who has a pool's own lock may ask for this one, never the other way round.
        over = [pool for pool in list(self._pools.values()) if pool.is_over]
        with self._pools_lock:
            _, pool = self._pool_of.pop(id(placement), (None, None))
            if pool is None:
                return
            self._pool_of = {key: known for key, known in self._pool_of.items() if known[1] is not pool}
            self._pools = {key: known for key, known in self._pools.items() if known not in [pool, *over]}
            self._pools[pool] = pool  # where no further task finds it
        pool.retire()

    def most_tasks(self, placement: Placement) -> int:
        """How many tasks with this placement could run at once if everything were free."""
        fits = [
            self._totals.get(name, 0) * QUANTUM // round(amount * QUANTUM)
            for name, amount in placement.resources.items()
        ]
        return int(min(fits)) if fits else 4 * max(1, int(self._totals.get("CPU", 1)))

    def _placed(self, placement: Placement, name: str) -> Placement:
        """`placement`, in this process's own group if that captures what is started here."""
        require_feasible([placement.resources], self._totals, what=name)
        if placement.labels:
            require_labels(placement.labels, self.state("nodes")[0], name)
        return captured(placement, self._group)

    def start_actor(self, spec: ActorSpec) -> ActorEndpoint:
        wanted = spec.registration
        try:
            if wanted is None or not wanted.get_if_exists:
                return self._start_actor(spec)
            with actor_lookup.making:  # so that a crowd of threads makes one, and one connection to it
                return actor_lookup.existing(self, wanted) or self._start_actor(spec)
        except OSError as error:
            explain(error)
            raise

    def _start_actor(self, spec: ActorSpec) -> ActorEndpoint:
        placement = self._placed(spec.placement, spec.name)
        definition = self._bodies.definition(spec.cls, spec.name)
        waits_for = _pending(spec.args, spec.kwargs)
        body = self._bodies.of_call(definition, spec.name, 1, spec.args, spec.kwargs)
        endpoint, first = reconnecting.endpoint_of(self, spec)
        peer = endpoint.peer
        peer.tells_failures = not is_own(spec.cls)
        memo, kept = reconnecting.memo_of(spec, body)
        request = StartActor(
            peer.worker_id or 0,
            spec.name,
            placement,
            self.surroundings(),
            conduct=ActorConduct(
                spec.concurrency,
                spec.interface.is_async,
                is_registered=spec.registration is not None,
                max_task_retries=spec.max_task_retries,
            ),
            memo=memo,
            registration=spec.registration,
            class_name=spec.cls.__name__,
            interface=None if spec.registration is None else spec.interface,
            ready=not waits_for,
        )
        try:
            if spec.registration is not None:
                existing = actor_lookup.register(self, request, peer, [first, *kept.handles], kept.buffers)
                if isinstance(existing, NotFound):  # the actor of that name has ended meanwhile
                    return self._start_actor(spec)
                if existing is not None:
                    return existing[0]
            # The class and the constructor's arguments go straight to the process, which is yet to start.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused: calls are told why
                peer.send(INIT, 0, body)
            if spec.registration is None:
                self.link.tell(request, [first, *kept.handles], kept.buffers)
        finally:  # also if Ctrl-C came in between: it would keep its name, and never start
            if waits_for:
                told = ArgumentsThere(request.worker_id)
                self.when_all(waits_for, lambda: self.pump.run(lambda: self.link.tell(told)))
        return endpoint

    def find_actor(self, name: str, namespace: str | None) -> tuple[ActorEndpoint, Interface]:
        return actor_lookup.find_actor(self, name, namespace)

    def call(
        self,
        actor: ActorEndpoint,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: MethodSpec,
    ) -> list[ObjectRef[Any]]:
        peer = actor.peer
        if peer.takes_small_calls and spec.is_plain:
            arguments = lasting(args, kwargs)
            if arguments is not None:
                ref = LocalRef(self._ids.next(), peer)
                peer.request_soon(ref, method, arguments)
                if self.started is not None:
                    self.started.add(ref)
                return [ref]
        waits_for = _pending(args, kwargs)
        body = self._bodies.of_call(
            None, method, spec.num_returns, args, kwargs, spec.concurrency_group, spec.name
        )
        if waits_for or peer.keeps_back:
            refs = self._refs(spec.num_returns, None)
            held = HeldCall(self, actor, peer, method, body.owned(), refs, spec, ready=not waits_for)
            peer.hold(held, waits_for)
        else:
            refs = self._refs(spec.num_returns, peer)
            peer.call(actor, body, refs, spec)
        return self._started(refs, spec.num_returns)

    def kill(self, actor: ActorEndpoint, no_restart: bool) -> None:
        worker_id, reason = actor.peer.worker_id, "it was killed by trainkit.kill()"
        if actor_lookup.is_abroad(self, actor):
            actor_lookup.kill_abroad(actor, reason, not no_restart)
        elif worker_id is not None and self.alive:
            self._answer(self.link.ask(Kill(worker_id, reason, not no_restart)))

    def put(self, value: Any) -> ObjectRef[Any]:
        ref = LocalRef(self.new_id(), None)
        ref.complete(VALUE, self._segments.write(pack(value)).owned())
        return ref

    def scratch_dir(self) -> Path:
        path = Path(self.mark)
        path.mkdir(mode=0o700, exist_ok=True)  # the node may be about to make it
        return path

    def ensure_serializable(self, value: Any, what: str) -> None:
        pack(value, what)

    def close(self) -> None:
        if self._node is None or self.link.closing or self.pid != os.getpid():
            return  # a worker's engine ends with its process
        self.link.closing = True
        try:
            self._read_out()
            if actor_lookup.farewell(self):
                self._node.let_stay()
            else:
                self._node.join()
        finally:  # also if Ctrl-C came, after which the node finds its driver gone
            with InterruptGuard() as guard:
                self._let_go()
            if guard.noted:
                guard.act()

    def _let_go(self) -> None:
        """Drop what this process has of the session, which has ended."""
        self.link.try_read()  # what workers printed last
        self.pump.stop()
        self.unread.finish()
        self._fail_futures()
        for pool in self._pools.values():
            pool.close()
        for peer in list(self.holding):
            peer.fail_held(self.link.gone)
        self._segments.close()
        self.link.close()
        self._pools.clear()
        set_engine(None)

    def _read_out(self) -> None:
        """Read the answers that nobody has: a failure may be among them."""
        for peer in actor_peers():
            peer.read_out()
        for pool in list(self._pools.values()):
            pool.read_out()


def _pending(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[LocalRef]:
    """References among the arguments of a call that are not done; those inside of values don't count."""
    given = (*args, *kwargs.values())
    return [value for value in given if isinstance(value, LocalRef) and not value.done()]
