"""What type checkers must follow without a word; also run as a program, so that types and behaviour agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_type

import trainkit
from trainkit import ObjectRef, ObjectRefGenerator
from trainkit.actor import ActorHandle, ActorProxy
from trainkit.exceptions import RayTaskError
from trainkit.util import ActorPool, placement_group
from trainkit.util.placement_group import PlacementGroup, remove_placement_group
from trainkit.util.scheduling_strategies import PlacementGroupSchedulingStrategy

T = TypeVar("T")


# Functions: bare, with options, as a call.


@trainkit.remote
def scale(value: int, factor: float = 1.0, *, digits: int = 2) -> float:
    return round(value * factor, digits)


@trainkit.remote(num_cpus=0.5, max_retries=0)
def describe(numbers: list[int], name: str | None = None) -> str:
    return f"{name or 'numbers'}: {numbers}"


@trainkit.remote(num_returns=2)
def halves(text: str) -> tuple[str, str]:
    middle = len(text) // 2
    return text[:middle], text[middle:]


@trainkit.remote
def count_to(end: int) -> Iterator[int]:
    yield from range(end)


@trainkit.remote
def anything(value: Any) -> Any:
    return value


def plain(value: int, text: str) -> bytes:
    return (text * value).encode()


class Counter:
    """Methods that are marked are checked."""

    def __init__(self, start: int, name: str = "counter") -> None:
        self.total = start
        self.name = name

    @trainkit.method
    def add(self, amount: int = 1, *, times: int = 1) -> int:
        for _ in range(times):
            self.total += amount
        return self.total

    @trainkit.method
    def add_twice(self, amount: int) -> int:
        assert_type(self.add(amount), int)
        return self.add(amount)

    @trainkit.method(num_returns=2)
    def pair(self) -> tuple[str, int]:
        return self.name, self.total

    @trainkit.method(max_task_retries=0)
    def label(self, prefix: str) -> str:
        return f"{prefix}{self.name}"

    @trainkit.method
    def snapshot(self) -> dict[str, int]:
        return {self.name: self.total}

    @trainkit.method
    def raw(self) -> Any:
        return self.total

    def unmarked(self, amount: int) -> int:
        return amount


class Slow:
    """Coroutines, and methods whose values come one by one."""

    @trainkit.method
    async def double(self, value: int) -> int:
        return value * 2

    @trainkit.method
    def upto(self, end: int) -> Iterator[str]:
        for value in range(end):
            yield str(value)

    @trainkit.method(concurrency_group="stream")
    async def upto_async(self, end: int) -> AsyncIterator[float]:
        for value in range(end):
            yield value / 2


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    @trainkit.method
    def unpack(self) -> T:
        return self.value


@dataclass
class Point:
    x: int
    y: int = 0

    @trainkit.method
    def shifted(self, by: int) -> Point:
        return Point(self.x + by, self.y)


class Point3(Point):
    @trainkit.method
    def shifted(self, by: int) -> Point:
        return super().shifted(by + 1)


RemoteCounter = trainkit.remote(Counter)
RemoteSlow = trainkit.remote(concurrency_groups={"stream": 1})(Slow)
remote_plain = trainkit.remote(plain)
remote_len = trainkit.remote(num_cpus=0)(len)


def functions() -> None:
    assert_type(scale.remote(2), ObjectRef[float])
    assert_type(scale.options(num_cpus=2).remote(2, digits=1), ObjectRef[float])
    assert_type(trainkit.get(scale.remote(2, 1.5)), float)
    assert trainkit.get(scale.remote(2, 1.5)) == 3.0
    assert trainkit.get(scale.remote(value=3)) == 3.0

    two: ObjectRef[int] = trainkit.put(2)
    half = trainkit.put(0.5)
    assert_type(half, ObjectRef[float])
    assert trainkit.get(scale.remote(two)) == 2.0
    assert trainkit.get(scale.remote(two, half)) == 1.0
    assert trainkit.get(scale.remote(2, half, digits=1)) == 1.0
    assert trainkit.get(scale.remote(two, factor=0.5)) == 1.0

    words = trainkit.put("a name")
    assert_type(describe.remote([1], words), ObjectRef[str])
    assert trainkit.get(describe.remote(trainkit.put([1]), words)) == "a name: [1]"
    assert trainkit.get(describe.remote([])) == "numbers: []"

    assert_type(remote_plain.remote(two, "ab"), ObjectRef[bytes])
    assert trainkit.get(remote_plain.remote(two, "ab")) == b"abab"
    assert_type(trainkit.get(remote_len.remote("abc")), int)
    assert trainkit.get(remote_len.remote("abc")) == 3
    assert trainkit.get(anything.remote({"a": 1})) == {"a": 1}

    first, second = halves.remote("abcd")
    assert trainkit.get([first, second]) == ["ab", "cd"]


def several() -> None:
    refs = [scale.remote(value) for value in range(3)]
    assert_type(trainkit.get(refs), list[float])
    assert_type(trainkit.get(tuple(refs)), list[float])
    assert trainkit.get(tuple(refs), timeout=60) == [0.0, 1.0, 2.0]
    done, rest = trainkit.wait(refs, num_returns=3, timeout=60)
    assert_type(done, list[ObjectRef[float]])
    assert done == refs
    assert rest == []
    # A reference to a narrower type does where one to a wider type is asked for.
    wide: ObjectRef[float | None] = refs[1]
    assert trainkit.get(wide) == 1.0


def use(counter: ActorProxy[Counter], other: ActorHandle[Counter]) -> int:
    assert_type(counter.add.remote(1), ObjectRef[int])
    assert_type(other.add.remote(1), ObjectRef[int])
    return trainkit.get(counter.snapshot.remote())["counter"]


def actors() -> None:
    counter = RemoteCounter.remote(10)
    assert_type(counter.add.remote(5), ObjectRef[int])
    assert trainkit.get(counter.add.remote(5, times=2)) == 25
    assert trainkit.get(counter.add.options(max_task_retries=0).remote(trainkit.put(5))) == 30
    assert trainkit.get(counter.add_twice.remote(5)) == 40
    assert_type(counter.label.remote("the "), ObjectRef[str])
    assert trainkit.get(counter.label.remote("the ")) == "the counter"
    name, total = counter.pair.remote()
    assert trainkit.get([name, total]) == ["counter", 40]
    assert_type(trainkit.get(counter.snapshot.remote()), dict[str, int])
    assert trainkit.get(counter.raw.remote()) == 40
    assert use(counter, counter) == 42

    named = RemoteCounter.options(label="tally").remote(trainkit.put(1), name="tally")
    assert trainkit.get(named.snapshot.remote()) == {"tally": 1}
    untyped: Any = named
    assert trainkit.get(untyped.unmarked.remote(3)) == 3
    trainkit.kill(counter)


def one_by_one() -> None:
    """Streams and coroutines."""
    assert_type(count_to.remote(3), ObjectRefGenerator[int])
    assert [trainkit.get(ref) for ref in count_to.remote(3)] == [0, 1, 2]
    slow = RemoteSlow.remote()
    assert_type(slow.upto.remote(2), ObjectRefGenerator[str])
    assert [trainkit.get(ref) for ref in slow.upto.remote(2)] == ["0", "1"]
    assert_type(slow.upto_async.remote(2), ObjectRefGenerator[float])
    assert [trainkit.get(ref) for ref in slow.upto_async.remote(3)] == [0.0, 0.5, 1.0]
    assert_type(slow.double.remote(2), ObjectRef[int])
    assert_type(trainkit.get(slow.double.remote(2)), int)
    assert trainkit.get(slow.double.remote(2)) == 4


async def awaited() -> None:
    slow = RemoteSlow.remote()
    assert_type(await slow.double.remote(2), int)
    assert_type(await scale.remote(2), float)
    async for ref in slow.upto.remote(2):
        assert_type(ref, ObjectRef[str])


def apply(function: Callable[[T], T], value: T) -> T:
    return function(value)


def generic() -> None:
    remote_apply = trainkit.remote(apply)
    assert trainkit.get(remote_apply.remote(abs, -1)) == 1


def kinds_of_classes() -> None:
    box = trainkit.remote(Box[int]).remote(3)
    assert_type(trainkit.get(box.unpack.remote()), int)
    assert trainkit.get(box.unpack.remote()) == 3
    point = trainkit.remote(num_cpus=0)(Point3).remote(1, y=2)
    base: ActorProxy[Point] = point
    assert_type(trainkit.get(base.shifted.remote(1)), Point)
    assert trainkit.get(point.shifted.remote(1)) == Point(3, 2)


def helpers() -> None:
    pool = ActorPool([RemoteCounter.remote(start) for start in (1, 2)])
    results = pool.map(lambda counter, amount: counter.add.remote(amount), [10, 20])
    assert_type(results, Iterator[int])
    assert list(results) == [11, 22]
    group = placement_group([{"CPU": 1}])
    assert_type(group, PlacementGroup)
    inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    assert trainkit.get(scale.options(scheduling_strategy=inside).remote(1)) == 1.0
    remove_placement_group(group)
    try:
        trainkit.get(remote_len.options(name="wrong").remote(anything_at_all()))
    except RayTaskError as error:
        assert_type(error.remote_traceback, str)
        assert isinstance(error, TypeError)


def anything_at_all() -> Any:
    return 3


if __name__ == "__main__":
    trainkit.init(engine="inline", num_cpus=2)
    functions()
    several()
    actors()
    generic()
    kinds_of_classes()
    helpers()
    one_by_one()
    asyncio.run(awaited())
    trainkit.shutdown()
