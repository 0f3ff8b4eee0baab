"""Iterators whose items are made in several processes, by the names of `ray.util.iter`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

import trainkit
from trainkit.errors import ConfigError
from trainkit.runtime.api import promises
from trainkit.util import iter as parallel
from trainkit.util.iter import ParallelIteratorWorker, from_actors, from_items, from_iterators, from_range


@pytest.fixture(scope="module", autouse=True, params=["local", "inline"])
def session(request: pytest.FixtureRequest) -> Iterator[None]:
    trainkit.init(num_cpus=2, engine=request.param)
    yield
    trainkit.shutdown()


def test_shards_are_read_in_turn() -> None:
    assert list(from_range(6, 2).gather_sync()) == [0, 3, 1, 4, 2, 5]
    assert list(from_items(["a", "b", "c"], 2).gather_sync()) == ["a", "b", "c"]
    assert list(from_iterators([[1], lambda: iter([2, 3, 4]), []]).gather_sync()) == [1, 2, 3, 4]
    assert sorted(from_range(100, 3).gather_async(batch_ms=1, num_async=2)) == list(range(100))
    assert list(from_range(5, 2).batch_across_shards()) == [[0, 2], [1, 3], [4]]
    assert parallel.__name__ == "trainkit.util.iter"


def test_items_are_made_in_the_shards() -> None:
    pids = set(from_range(4, 2).for_each(lambda _: os.getpid()).gather_sync())
    assert len(pids) == (2 if "isolation" in promises() else 1)


def test_stages_follow_each_other() -> None:
    numbers = from_range(8, 2)
    assert numbers.for_each(lambda x: 2 * x).filter(lambda x: x % 4 == 0).take(9) == [0, 8, 4, 12]
    assert list(numbers.batch(3).gather_sync()) == [[0, 1, 2], [4, 5, 6], [3], [7]]
    assert list(numbers.batch(3).flatten().get_shard(1)) == [4, 5, 6, 7]
    assert numbers.combine(lambda x: [x, -x]).take(4) == [0, 4, 0, -4]
    assert list(numbers.transform(lambda items: itertools.islice(items, 1)).gather_sync()) == [0, 4]
    assert list(numbers.for_each(str, max_concurrency=3).get_shard(0)) == ["0", "1", "2", "3"]
    shuffled = numbers.local_shuffle(3, seed=1)
    assert sorted(shuffled.gather_sync()) == list(range(8)) != list(shuffled.get_shard(0))
    assert list(shuffled.gather_sync()) == list(shuffled.gather_sync())
    local = numbers.gather_sync().for_each(str).filter(lambda text: text != "0").batch(2)
    assert next(local) == ["4", "1"] and next(local) == ["5", "2"]


def test_shards_are_dealt_anew_and_joined() -> None:
    dealt = from_range(8, 2).repartition(3)
    assert [list(dealt.get_shard(number)) for number in range(3)] == [[0, 4, 3, 7], [1, 5], [2, 6]]
    assert sorted(dealt.gather_sync()) == list(range(8)) == sorted(dealt.gather_sync())
    both = from_range(2, 1).union(from_items([5], 1).for_each(lambda x: -x))
    assert list(both.gather_sync()) == [0, -5, 1] and both.num_shards() == 2
    assert list(both.select_shards([1]).gather_sync()) == [-5]
    first, second = from_range(3, 1).gather_sync().duplicate(2)
    assert list(first) == list(second) == [0, 1, 2]
    assert list(from_range(4, 2).get_shard(0).union(from_range(4, 2).get_shard(1))) == [0, 2, 1, 3]


def test_an_endless_iterator_is_read_as_far_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    endless = from_items([1, 2], 2, repeat=True)
    assert endless.take(5) == [1, 2, 1, 2, 1]
    endless.show(2)
    assert capsys.readouterr().out == "1\n2\n"


def test_actors_of_the_users_are_shards_and_keep_no_pass_that_is_left() -> None:
    @trainkit.remote
    class Counted(ParallelIteratorWorker):
        def __init__(self, repeat=False) -> None:
            super().__init__(range(3), repeat)

        def passes(self) -> int:
            return len(self._iterations)

    actor = Counted.remote()
    assert list(from_actors([actor]).gather_sync()) == [0, 1, 2]
    assert trainkit.get(actor.passes.remote()) == 0
    endless = Counted.remote(repeat=True)
    shards = from_actors([endless])
    assert shards.take(4) == [0, 1, 2, 0]
    for _ in shards.gather_async():
        break
    half = shards.part("shared", 0, 2)
    assert [next(half), next(half)] == [0, 2]
    assert trainkit.get(endless.passes.remote()) == 1
    del half
    assert list(itertools.islice(shards.part("shared", 1, 2), 2)) == [1, 0]
    with pytest.raises(ZeroDivisionError):
        shards.for_each(lambda item: 1 // item).take(1)
    assert trainkit.get(endless.passes.remote()) == 0


def test_a_shard_is_read_by_a_task() -> None:
    @trainkit.remote
    def total(shard) -> int:
        return sum(shard)

    assert sum(trainkit.get([total.remote(shard) for shard in from_range(10, 2).shards()])) == 45


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError, match="0 shards"):
        from_range(3, 0)
    with pytest.raises(ConfigError, match="there are 2 shards"):
        from_range(3, 2).get_shard(2)
    with pytest.raises(TypeError, match="gather_sync"):
        list(from_range(3, 2))
    with pytest.raises(ValueError, match="invalid literal"):
        from_items(["x"], 1).for_each(int).take(1)
