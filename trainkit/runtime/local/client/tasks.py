"""Tasks of a process: from a call of a remote function to a pool of leased workers."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from trainkit.errors import InfeasibleError
from trainkit.resources import QUANTUM, Bundle
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.calls import CallCodec
from trainkit.runtime.local.client.futures import Results
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.node_client import NodeClient
from trainkit.runtime.local.client.refs import LocalRef, fail
from trainkit.runtime.local.client.task_pool import TaskPool
from trainkit.runtime.local.client.waiting import Waiter, pending
from trainkit.runtime.local.wire.batching import lasting
from trainkit.runtime.local.wire.messages import WorkerEnvironment
from trainkit.runtime.specs import ObjectRef, Placement, TaskSpec

_logger = logging.getLogger(__name__)

_PLACEMENTS_KNOWN = 256


class TaskPools:
    """The tasks of this process: a pool for each placement.

    Args:
        node: grants leases.
        background: submits tasks whose arguments have arrived.
        waiter: waits for those arguments.
        codec: packs calls.
        results: makes references to results.
        totals: all resources of the session.
        placed: checks a placement; returns it in this process's own group if that captures what starts here.
        environment: returns what a worker started now inherits.
    """

    def __init__(
        self,
        node: NodeClient,
        background: BackgroundThread,
        waiter: Waiter,
        codec: CallCodec,
        results: Results,
        *,
        totals: Bundle,
        placed: Callable[[Placement, str], Placement],
        environment: Callable[[], WorkerEnvironment],
    ) -> None:
        self._node = node
        self._background = background
        self._waiter = waiter
        self._codec = codec
        self._results = results
        self._totals = totals
        self._placed = placed
        self._environment = environment
        self._pools: dict[Hashable, TaskPool] = {}
        self._pool_of: dict[int, tuple[Placement, TaskPool]] = {}
        self._lock = threading.RLock()  # a collection under it may make a call

    def submit(self, spec: TaskSpec) -> list[ObjectRef[Any]]:
        """Start a task; see `Engine.submit`."""
        refs = self._results.new(spec.num_returns, None)
        try:
            pool = self._pool(spec.placement, spec.name)
        except InfeasibleError as error:
            _logger.warning("%s", error)
            fail(refs, InfeasibleError, str(error))
            return self._results.handed_out(refs, spec.num_returns)
        definition = self._codec.definition(spec.function, spec.name)
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
            body = self._codec.of_call(definition, spec.name, spec.num_returns, spec.args, spec.kwargs)
            task.body = body.owned()
            waits_for = pending(spec.args, spec.kwargs)
        if waits_for:  # a leased process that waited for other tasks would keep them from running
            pool.expect(task)
            submit = functools.partial(pool.submit, task, watch=True)
            self._waiter.when_all(waits_for, lambda: self._background.run(submit))
        else:
            pool.submit(task)
        return self._results.handed_out(refs, spec.num_returns)

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
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = TaskPool(
                    placement,
                    self._most(placement),
                    self._node,
                    self._background,
                    self._waiter,
                    self._codec,
                    self._environment,
                )
                self._background.watch(self._node, "leases")  # for the node's wish to have them back
            if len(self._pool_of) > _PLACEMENTS_KNOWN:
                self._pool_of.clear()
            self._pool_of[id(asked)] = asked, pool
            return pool

    def _most(self, placement: Placement) -> int:
        """Return how many tasks with this placement could run at once if everything were free."""
        fits = [
            self._totals.get(name, 0) * QUANTUM // round(amount * QUANTUM)
            for name, amount in placement.resources.items()
        ]
        return int(min(fits)) if fits else 4 * max(1, int(self._totals.get("CPU", 1)))

    def end_processes(self, placement: Placement) -> None:
        """End the processes that are kept for tasks with this placement; see `Engine.end_processes`."""
        # Before the lock is taken: who has a pool's own lock may ask for this one, never the other way round.
        over = [pool for pool in self.pools() if pool.is_over]
        with self._lock:
            _, pool = self._pool_of.pop(id(placement), (None, None))
            if pool is None:
                return
            self._pool_of = {key: known for key, known in self._pool_of.items() if known[1] is not pool}
            self._pools = {key: known for key, known in self._pools.items() if known not in [pool, *over]}
            self._pools[pool] = pool  # where no further task finds it
        pool.retire()

    def pools(self) -> list[TaskPool]:
        """Return the pools that there are now."""
        return list(self._pools.values())

    def asks(self) -> bool:
        """Return whether a lease is asked for that is not there yet."""
        return any(pool.asks for pool in self.pools())

    def reclaim(self) -> None:
        """Return the leases that are idle."""
        with self._lock:
            pools = self.pools()
        for pool in pools:
            pool.reclaim()

    def listed(self, pids: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """Return the tasks of this process as `list_tasks` shows them.

        Args:
            pids: of the leased processes, by their ids as the node lists them.
        """
        with self._lock:
            pools = self.pools()
        return [row for pool in pools for row in pool.listed(pids)]

    def unfinished(self) -> list[LocalRef]:
        """Return a reference of each task that is not finished."""
        return [task.refs[-1] for pool in self.pools() for task in pool.unfinished()]

    def read_out(self) -> None:
        """Read the answers that nobody has."""
        for pool in self.pools():
            pool.read_out()

    def close(self) -> None:
        """Drop all leases and fail what is queued: the session is over."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
