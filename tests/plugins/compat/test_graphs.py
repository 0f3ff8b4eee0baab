"""Graphs of calls: bound, executed for an input, and compiled, on each engine of this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import trainkit
from tests.conftest import session_fixture
from trainkit.dag import InputNode, MultiOutputNode
from trainkit.errors import ActorDiedError, ArgumentTypeError, ConfigError, TaskError

engine = session_fixture(autouse=False, engines=["local", "inline"], num_cpus=2)


@trainkit.remote
def added(one: int, other: int = 1) -> int:
    return one + other


class Summing:
    def __init__(self, start: int = 0) -> None:
        self.sum = start

    def add(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("less than nothing")
        self.sum += amount
        return self.sum


def test_a_call_takes_the_results_of_others_and_is_made_once(engine: str) -> None:
    first = added.bind(1, other=2)
    second = added.bind(first, other=3)
    assert trainkit.get(added.bind(second, other=first).execute()) == 9
    keeper: Any = trainkit.remote(Summing).remote()
    once = keeper.add.bind(1)
    assert trainkit.get(MultiOutputNode([added.bind(once), added.bind(once)]).execute()) == [2, 2]


def test_a_chain_may_be_long_and_nodes_stand_in_containers(engine: str) -> None:
    total: Any = trainkit.remote(lambda parts: sum(trainkit.get([*parts["a"], parts["b"]])))
    node: Any = 0
    for _ in range(60):
        node = added.bind(node)
    assert trainkit.get(total.bind({"a": [node, node], "b": added.bind(0)}).execute()) == 121


def test_the_input_is_one_value_its_parts_or_several(engine: str) -> None:
    with InputNode() as whole:
        twice = MultiOutputNode([added.bind(whole), added.bind(whole, other=5)])
        parts = added.bind(whole["x"], whole["y"])
        named = added.bind(whole[0], whole.step)
        part = added.bind(whole.imag)
    assert [trainkit.get(twice.execute(number)) for number in (1, 2)] == [[2, 6], [3, 7]]
    assert trainkit.get(parts.execute({"x": 2, "y": 3})) == 5
    assert trainkit.get(named.execute(2, step=4)) == 6
    assert trainkit.get(part.execute(3 + 4j)) == 5
    with pytest.raises(ConfigError, match=r"input 'step', but .* 2 positional values and \[\] by name"):
        named.execute(1, 2)


def test_an_input_without_a_part_is_refused_before_a_call_is_made(engine: str) -> None:
    summing = trainkit.remote(Summing).remote()
    with InputNode() as inp:
        first = summing.add.bind(inp[0])
        graph = MultiOutputNode([first, summing.add.bind(inp.more)])
    for refused in (graph, graph.experimental_compile()):
        with pytest.raises(ConfigError, match="needs the input 'more'"):
            refused.execute(5, 6)
    assert trainkit.get(graph.execute(1, more=2)) == [1, 3]


def test_an_actor_that_is_bound_is_made_for_each_execution_and_gets_all_calls_before(engine: str) -> None:
    bound: Any = trainkit.remote(Summing).bind(10)
    bound.add.bind(2)
    last = bound.add.bind(3)
    assert [trainkit.get(last.execute()) for _ in range(2)] == [15, 15]


def test_a_compiled_graph_keeps_its_actors_and_their_order(engine: str) -> None:
    first, second = (trainkit.remote(Summing).remote() for _ in range(2))
    with InputNode() as given:
        graph = MultiOutputNode([first.add.bind(given), second.add.bind(first.add.bind(given))])
    compiled = graph.experimental_compile()
    results = [compiled.execute(number) for number in range(1, 4)]
    assert [trainkit.get(refs) for refs in results] == [[1, 2], [4, 8], [9, 20]]
    with pytest.raises(TaskError, match="less than nothing"):
        trainkit.get(compiled.execute(-1))
    assert trainkit.get(compiled.execute(0)) == [12, 32]
    compiled.teardown()
    with pytest.raises(ConfigError, match="torn down"):
        compiled.execute(1)
    assert trainkit.get(first.add.remote(0)) == 12


def test_a_compiled_graph_of_an_event_loop_is_awaited(engine: str) -> None:
    actor: Any = trainkit.remote(Summing).remote()
    with InputNode() as given:
        compiled = actor.add.bind(given).experimental_compile(enable_asyncio=True)

    async def sums() -> list[int]:
        return [await (await compiled.execute_async(number)) for number in (1, 2)]

    assert asyncio.run(sums()) == [1, 3]
    with pytest.raises(ConfigError, match="execute_async"):
        compiled.execute(1)
    compiled.teardown(kill_actors=True)
    with pytest.raises(ActorDiedError):
        trainkit.get(actor.add.remote(1))


def test_an_actor_that_dies_fails_what_needs_it_and_no_other(engine: str) -> None:
    actors: Any = [trainkit.remote(Summing).remote() for _ in range(2)]
    with InputNode() as given:
        compiled = MultiOutputNode([actor.add.bind(given) for actor in actors]).experimental_compile()
    trainkit.kill(actors[0])
    lost, kept = compiled.execute(1)
    with pytest.raises(ActorDiedError):
        trainkit.get(lost)
    assert trainkit.get(kept) == 1


def test_what_is_no_graph_is_refused() -> None:
    with InputNode() as given:
        made = trainkit.remote(Summing).bind().add.bind(given)
    with pytest.raises(ConfigError, match=r"create them by \.remote"):
        made.experimental_compile()
    with pytest.raises(ConfigError, match="InputNode"):
        added.bind(1).experimental_compile()
    with pytest.raises(TypeError, match="'_size'"):
        added.bind(given).experimental_compile(_size=1)
    with pytest.raises(ArgumentTypeError, match="bind"):
        MultiOutputNode([1])  # type: ignore[list-item]
