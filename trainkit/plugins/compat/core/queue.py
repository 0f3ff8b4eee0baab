"""First-in, first-out queue that all processes of a session can use, under the names of `ray.util.queue`."""

from __future__ import annotations

import asyncio
import math
import queue
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime.api import get, kill, remote

__all__ = ["Empty", "Full", "Queue"]


class Empty(queue.Empty):
    """The queue was empty until the timeout passed."""


class Full(queue.Full):
    """The queue was full until the timeout passed."""


class Queue:
    """Queue in an actor. The queue can be passed to tasks and actors as an argument.

    If several callers wait, they are served in the order of their calls. The actor ends when no process has a
    handle of the queue any more, or when `shutdown` is called.

    Args:
        maxsize: maximum number of items; `put` waits while the queue has this number of items. 0 means no
            limit.
        actor_options: options of the queue's actor, such as {"num_cpus": 1}; see `Options`.
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise ConfigError(f"maxsize must be an integer (unlimited if 0 or less), not {maxsize!r}")
        self.maxsize = maxsize
        made: Any = remote(QueueActor)
        self._actor = self.actor = made.options(**{"label": "Queue", **(actor_options or {})}).remote(maxsize)

    def __len__(self) -> int:
        return self.qsize()

    def qsize(self) -> int:
        """Return the number of items in the queue now."""
        size: int = get(self._actor.qsize.remote())
        return size

    def size(self) -> int:
        """Return the number of items in the queue now."""
        return self.qsize()

    def empty(self) -> bool:
        """Return True if the queue is empty now."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Return True if `put` would have to wait now."""
        return 0 < self.maxsize <= self.qsize()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add `item` at the end of the queue.

        Args:
            item: any value that can be sent to an actor. An object reference is replaced by its value.
            block: True: wait while the queue is full.
            timeout: longest wait in seconds; None means no limit.

        Raises:
            Full: the queue is full, or stayed full for `timeout` seconds.
        """
        if not get(self._actor.put.remote(item, _patience(block, timeout))):
            raise Full(f"the queue is full: its maxsize is {self.maxsize}")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the first item.

        Args:
            block: True: wait while the queue is empty.
            timeout: longest wait in seconds; None means no limit.

        Raises:
            Empty: the queue is empty, or stayed empty for `timeout` seconds.
        """
        return _only(get(self._actor.get.remote(_patience(block, timeout))))

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Do the same as `put`, without blocking the event loop."""
        if not await self._actor.put.remote(item, _patience(block, timeout)):
            raise Full(f"the queue is full: its maxsize is {self.maxsize}")

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Do the same as `get`, without blocking the event loop."""
        return _only(await self._actor.get.remote(_patience(block, timeout)))

    def put_nowait(self, item: Any) -> None:
        """Add `item`, or raise Full immediately."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Remove and return the first item, or raise Empty immediately."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all `items` in one call, or raise Full and add none of them."""
        batch = list(items)
        if not get(self._actor.put_batch.remote(batch)):
            raise Full(f"{len(batch)} items don't fit into the queue, whose maxsize is {self.maxsize}")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Remove and return the first `num_items` items, or raise Empty and remove none of them."""
        if isinstance(num_items, bool) or not isinstance(num_items, int) or num_items < 0:
            raise ConfigError(f"get_nowait_batch() needs a number of items of at least 0, not {num_items!r}")
        taken: list[Any] | None = get(self._actor.get_batch.remote(num_items))
        if taken is None:
            raise Empty(f"the queue has fewer than {num_items} items")
        return taken

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue's actor. The items of the queue are lost, and waiting calls fail with ActorDiedError.

        Args:
            force: argument of Ray without effect, because the actor has no work to finish.
            grace_period_s: argument of Ray without effect, for the same reason as `force`.
        """
        kill(self._actor)
        self.actor = None


class QueueActor:
    """Actor of a queue. All methods run on one event loop, so that changes of several methods never mix.

    Calls of `get` wait only while the queue is empty, and calls of `put` wait only while the queue is full.
    If several calls of `get` wait, the first one receives the next item.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        self._takers: deque[asyncio.Future[Any]] = deque()
        self._givers: deque[tuple[asyncio.Future[None], Any]] = deque()

    async def qsize(self) -> int:
        return len(self._items)

    async def put(self, item: Any, timeout: float | None) -> bool:
        """Add an item; return False if the queue stays full for `timeout` seconds (None: no limit)."""
        if self._room() > 0:
            self._add([item])
            return True
        if timeout == 0:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._givers.append((turn, item))
        try:
            await asyncio.wait((turn,), timeout=timeout)
            return turn.done()
        finally:
            if not turn.done():
                self._givers.remove((turn, item))

    async def get(self, timeout: float | None) -> tuple[Any, ...]:
        """Return a tuple of the first item; an empty tuple if no item arrives within `timeout` seconds."""
        if self._items:
            return tuple(self._take(1))
        if timeout == 0:
            return ()
        turn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._takers.append(turn)
        try:
            await asyncio.wait((turn,), timeout=timeout)
            return (turn.result(),) if turn.done() else ()
        except asyncio.CancelledError:
            # If the caller was cancelled after an item had arrived for it, the item must not be lost.
            if turn.done():
                self._give_back(turn.result())
            raise
        finally:
            if not turn.done():
                self._takers.remove(turn)

    async def put_batch(self, items: list[Any]) -> bool:
        fits = len(items) <= self._room() + len(self._takers)
        if fits:
            self._add(items)
        return fits

    async def get_batch(self, count: int) -> list[Any] | None:
        return self._take(count) if count <= len(self._items) else None

    def _room(self) -> float:
        return math.inf if self._maxsize <= 0 else self._maxsize - len(self._items)

    def _add(self, items: list[Any]) -> None:
        for item in items:
            if self._takers:
                self._takers.popleft().set_result(item)
            else:
                self._items.append(item)

    def _give_back(self, item: Any) -> None:
        if self._takers:
            self._takers.popleft().set_result(item)
        else:
            self._items.appendleft(item)

    def _take(self, count: int) -> list[Any]:
        taken = [self._items.popleft() for _ in range(count)]
        while self._givers and self._room() > 0:
            turn, item = self._givers.popleft()
            self._items.append(item)
            turn.set_result(None)
        return taken


def _patience(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be a number of seconds of at least 0, not {timeout!r}")
    return timeout


def _only(found: tuple[Any, ...]) -> Any:
    if not found:
        raise Empty("the queue is empty")
    return found[0]
