"""Tasks of a process, each assigned to a pool of leased workers."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Hashable, Mapping
from typing import Any

from trainkit.errors import InfeasibleError
from trainkit.resources import QUANTUM, Bundle
from trainkit.runtime.local.client.actors import ClientParts
from trainkit.runtime.local.client.futures import Results
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.refs import LocalRef, fail
from trainkit.runtime.local.client.task_pool import TaskPool
from trainkit.runtime.local.client.waiting import pending
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.serialize import lasting
from trainkit.runtime.specs import Placement, TaskSpec

_logger = logging.getLogger(__name__)

_PLACEMENTS_KNOWN = 256


class TaskPools:
    """Tasks of this process, with one pool for each placement.

    Args:
        parts: objects that all client classes of this process share, such as its connection to the node.
        results: factory of the references that a call returns.
        totals: total amounts of the session's resources, by name.
    """

    def __init__(self, parts: ClientParts, results: Results, totals: Bundle) -> None:
        self._parts = parts
        self._node, self._background = parts.node, parts.background
        self._waiter, self._codec = parts.waiter, parts.codec
        self._results = results
        self._totals = totals
        self._pools: dict[Hashable, TaskPool] = {}
        self._pool_of: dict[int, tuple[Placement, TaskPool]] = {}
        self._lock = threading.RLock()  # the lock is reentrant, as garbage collection may make a call

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
        arguments, body = None, None
        # A small call is sent without a name, so only calls named after their function are sent as small
        # calls.
        if spec.num_returns == 1 and spec.name == getattr(spec.function, "__qualname__", spec.name):
            arguments = lasting(spec.args, spec.kwargs)
        if arguments is None:
            # The arguments are packed now, as the caller may modify them later.
            body = self._codec.of_call(
                definition, spec.name, spec.num_returns, spec.args, spec.kwargs
            ).owned()
        retries = spec.max_retries, spec.retry_exceptions
        task = Task(spec.name, pool, definition, arguments, body, refs, *retries, spec.max_calls)
        for ref in refs:
            ref.body = task
        if body is not None and (waits_for := pending(spec.args, spec.kwargs)):
            # A task that waited for its arguments in a worker could block the tasks that produce the
            # arguments.
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
        asked, placement = placement, self._parts.placed(placement, name)
        key = (
            tuple(sorted(placement.resources.items())),
            placement.group,
            tuple(sorted(placement.env.items())),
            placement.cwd,
        )
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = TaskPool(placement, self._most(placement), self._parts)
                # The background thread must read the node's requests to return leases.
                self._background.watch(self._node, "leases")
            if len(self._pool_of) > _PLACEMENTS_KNOWN:
                self._pool_of.clear()
            self._pool_of[id(asked)] = asked, pool
            return pool

    def _most(self, placement: Placement) -> int:
        """Return how many tasks with this placement could run at once if all resources were free."""
        fits = [
            self._totals.get(name, 0) * QUANTUM // round(amount * QUANTUM)
            for name, amount in placement.resources.items()
        ]
        return int(min(fits)) if fits else 4 * max(1, int(self._totals.get("CPU", 1)))

    def end_processes(self, placement: Placement) -> None:
        """End the workers that are kept for tasks with this placement; see `Engine.end_processes`."""
        # `is_over` takes a pool's lock, so it is called before `_lock` is taken. A thread with both locks
        # always takes the pool's lock first.
        over = [pool for pool in self.pools() if pool.is_over]
        with self._lock:
            _, pool = self._pool_of.pop(id(placement), (None, None))
            if pool is None:
                return
            self._pool_of = {key: known for key, known in self._pool_of.items() if known[1] is not pool}
            self._pools = {key: known for key, known in self._pools.items() if known not in [pool, *over]}
            self._pools[pool] = pool  # this key is never looked up, so the pool gets no further tasks
        pool.retire()

    def pools(self) -> list[TaskPool]:
        """Return the existing pools."""
        return list(self._pools.values())

    def asks(self) -> bool:
        """Return True if a requested lease is not granted yet."""
        return any(pool.asks for pool in self.pools())

    def reclaim(self) -> None:
        """Give the idle leases back to the node, and busy leases when they become idle."""
        for pool in self.pools():
            pool.reclaim()

    def listed(self, pids: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """Return the tasks of this process as rows of `list_tasks`.

        Args:
            pids: process id of each leased worker, by the worker id that the node lists.
        """
        return [row for pool in self.pools() for row in pool.listed(pids)]

    def unfinished(self) -> list[LocalRef]:
        """Return a reference of each task that is not finished."""
        return [task.refs[-1] for pool in self.pools() for task in pool.unfinished()]

    def read_out(self) -> None:
        """Read the answers that no thread has read."""
        for pool in self.pools():
            pool.read_out()

    def close(self) -> None:
        """Drop all leases and fail the queued tasks, at the end of the session."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
