"""The queue: what its actor does on an event loop, and what its users see on each engine."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import trainkit
from tests.conftest import session_fixture
from tests.runtime.pooled import is_full, put_all, take
from tests.suites.parts import BUILT_IN, promising
from trainkit.errors import ActorDiedError, ConfigError
from trainkit.util.queue import Empty, Full, Queue, QueueActor


async def until_waiting() -> None:
    """Let the tasks that were just started come to where they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


class TestItsActor:
    """Without an engine: the order of those who wait, and those who leave the line."""

    def test_takers_are_served_in_the_order_of_coming(self):
        async def script() -> None:
            actor = QueueActor(0)
            takers = [asyncio.create_task(actor.get(None)) for _ in range(3)]
            await until_waiting()
            assert await actor.put_batch(["a", "b", "c", "d"])
            assert await asyncio.gather(*takers) == [("a",), ("b",), ("c",)]
            assert await actor.get(0) == ("d",)

        asyncio.run(script())

    def test_givers_are_served_in_the_order_of_coming(self):
        async def script() -> None:
            actor = QueueActor(1)
            assert await actor.put(0, None)
            givers = [asyncio.create_task(actor.put(item, None)) for item in (1, 2)]
            await until_waiting()
            assert not await actor.put(3, 0)
            assert [await actor.get(None) for _ in range(3)] == [(0,), (1,), (2,)]
            assert await asyncio.gather(*givers) == [True, True]

        asyncio.run(script())

    def test_who_gives_up_leaves_the_line(self):
        async def script() -> None:
            actor = QueueActor(1)
            assert await actor.get(0.001) == ()
            assert await actor.put("kept", None)
            assert not await actor.put("late", 0.001)
            assert await actor.get(None) == ("kept",)
            assert await actor.qsize() == 0

        asyncio.run(script())

    def test_a_cancelled_taker_loses_no_item(self):
        async def script() -> None:
            actor = QueueActor(0)
            taker = asyncio.create_task(actor.get(None))
            await until_waiting()
            await actor.put("item", None)  # handed to the taker, which has not run since
            taker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taker
            assert await actor.get(0) == ("item",)

        asyncio.run(script())


engine = session_fixture(autouse=False, engines=BUILT_IN, num_cpus=4)


late = pytest.mark.parametrize("engine", promising("background"), indirect=True)
"""Of a test in which a call is not done at once."""


def test_put_and_get(engine: str):
    queue = Queue(maxsize=2)
    assert queue.empty()
    queue.put({"a": 1})
    queue.put_nowait("second")
    assert queue.full()
    assert (len(queue), queue.qsize(), queue.size()) == (2, 2, 2)
    with pytest.raises(Full, match="maxsize is 2"):
        queue.put_nowait("third")
    with pytest.raises(Full):
        queue.put("third", timeout=0.01)
    assert queue.get() == {"a": 1}
    assert queue.get_nowait() == "second"
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    queue.put_nowait_batch([1, 2])
    with pytest.raises(Full, match="2 items don't fit"):
        queue.put_nowait_batch([3, 4])
    with pytest.raises(Empty, match="has fewer than 3"):
        queue.get_nowait_batch(3)
    assert queue.get_nowait_batch(2) == [1, 2]


def test_a_wrong_argument(engine: str):
    with pytest.raises(ConfigError, match="maxsize must be"):
        Queue(maxsize="3")  # type: ignore[arg-type]
    queue = Queue()
    with pytest.raises(ValueError, match="timeout must be"):
        queue.get(timeout=-1)
    with pytest.raises(ConfigError, match="get_nowait_batch"):
        queue.get_nowait_batch(-1)
    assert not queue.full()


def test_shutdown_ends_it(engine: str):
    queue = Queue(actor_options={"label": "jobs"})
    queue.put(1)
    queue.shutdown()
    assert queue.actor is None
    with pytest.raises(ActorDiedError):
        queue.get()


@late
def test_tasks_share_it(engine: str):
    queue = Queue(maxsize=2)
    put, got = trainkit.remote(put_all), trainkit.remote(take)
    givers = [put.remote(queue, [1, 2, 3]), put.remote(queue, [4, 5, 6])]
    takers = [got.remote(queue, 3), got.remote(queue, 3)]
    assert trainkit.get(givers, timeout=60) == [3, 3]
    first, second = trainkit.get(takers, timeout=60)
    assert sorted(first + second) == [1, 2, 3, 4, 5, 6]
    queue.put_nowait_batch([7, 8])
    assert trainkit.get(trainkit.remote(is_full).remote(queue), timeout=60)


@late
def test_on_an_event_loop(engine: str):
    async def script() -> list[int]:
        queue = Queue(maxsize=1)
        first, second = asyncio.create_task(queue.get_async()), asyncio.create_task(queue.get_async())
        await queue.put_async(1)
        await queue.put_async(2)
        found = [await first, await second]
        with pytest.raises(Empty):
            await queue.get_async(block=False)
        await queue.put_async(3)
        with pytest.raises(Full):
            await queue.put_async(4, timeout=0.01)
        return found

    assert sorted(asyncio.run(script())) == [1, 2]
