"""Which processes reuse_actors=True keeps and lets go: the pool by itself."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.executor.process_pool import IDLE_S, ProcessPool

ONE = PlacementGroupFactory([{"CPU": 1}])
TWO = PlacementGroupFactory([{"CPU": 2}])


def test_the_pool_gives_back_what_holds_just_the_same():
    pool = ProcessPool[str]({"CPU": 4})
    assert pool.admit("a", ONE) == pool.admit("b", TWO) == []
    pool.keep("a", "process a", ONE, now=0.0)
    assert pool.take(TWO) is None
    assert pool.take(PlacementGroupFactory([{"CPU": 1.0}])) == ("a", "process a")
    assert pool.take(ONE) is None


def test_the_pool_makes_room_the_longest_waiting_first():
    pool = ProcessPool[str]({"CPU": 3})
    for name in "abc":
        assert pool.admit(name, ONE) == []
        pool.keep(name, name, ONE, now=0.0)
    assert pool.admit("d", TWO) == ["a", "b"]
    assert pool.admit("e", TWO) == ["c"]  # d runs, and nothing else can go
    pool.forget("d")
    assert len(pool) == 0


def test_the_pool_lets_go_what_nobody_wants():
    pool = ProcessPool[str]({"CPU": 3})
    assert pool.deadline == math.inf
    for moment, name in enumerate("ab"):
        pool.admit(name, ONE)
        pool.keep(name, name, ONE, now=float(moment))
    assert pool.deadline == IDLE_S
    assert pool.overdue(IDLE_S) == ["a"]
    assert pool.deadline == 1.0 + IDLE_S
    assert pool.take_all() == ["b"]


@given(st.lists(st.tuples(st.sampled_from(["start", "end", "lose", "wait"]), st.integers(1, 3)), max_size=60))
def test_the_pool_never_holds_more_than_there_is(moves):
    requests = {cpus: PlacementGroupFactory([{"CPU": cpus}]) for cpus in (1, 2, 3)}
    pool, now, names = ProcessPool[str]({"CPU": 4}), 0.0, iter(range(1_000))
    running: list[tuple[str, int]] = []
    idle: set[str] = set()
    for move, cpus in moves:
        now += 0.1
        if move == "start" and sum(taken for _, taken in running) + cpus <= 4:  # as the controller sees to
            found = pool.take(requests[cpus])
            if found is None:
                name = str(next(names))
                idle -= set(pool.admit(name, requests[cpus]))
            else:
                name = found[0]
                idle.remove(name)
            running.append((name, cpus))
        elif move == "end" and running:
            name, cpus = running.pop()
            pool.keep(name, name, requests[cpus], now)
            idle.add(name)
        elif move == "lose" and running:
            pool.forget(running.pop()[0])
        elif move == "wait":
            now += IDLE_S
            idle -= set(pool.overdue(now))
            assert not idle
        assert len(pool) == len(idle)
    assert set(pool.take_all()) == idle
    assert pool.admit("all", PlacementGroupFactory([{"CPU": 4}])) == [] or running
