"""Collectives among actors, by the names of `ray.util.collective`."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import trainkit
from tests.conftest import session_fixture
from trainkit.errors import ConfigError
from trainkit.util import collective

session = session_fixture(num_cpus=3)


@trainkit.remote(num_cpus=1)
class Member:
    def join(self, size: int, rank: int, name: str = "default") -> int:
        collective.init_collective_group(size, rank, backend="gloo", group_name=name)
        return collective.get_rank(name)

    def leave(self, name: str = "default") -> bool:
        collective.destroy_collective_group(name)
        return collective.is_group_initialized(name)

    def run(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Return the arguments as an operation leaves them."""
        arguments = tuple(a.copy() if isinstance(a, numpy.ndarray) else a for a in arguments)
        arguments = tuple([t.copy() for t in a] if isinstance(a, list) else a for a in arguments)
        getattr(collective, operation)(*arguments, **options)
        return arguments[0] if arguments else None

    def allreduced(self) -> list[float]:
        import torch

        tensor = torch.full((2,), float(collective.get_rank() + 1))
        collective.allreduce(tensor, op=collective.ReduceOp.PRODUCT)
        return tensor.tolist()

    def size(self) -> int:
        return collective.get_collective_group_size()


def array(*values: float) -> numpy.ndarray:
    return numpy.array(values)


@pytest.fixture(scope="module")
def members() -> list[Any]:
    made = [Member.remote() for _ in range(3)]
    assert trainkit.get([m.join.remote(3, rank) for rank, m in enumerate(made)]) == [0, 1, 2]
    return made


def every(members: list[Any], operation: str, arguments: list[tuple[Any, ...]], **options: Any) -> list[Any]:
    calls = [m.run.remote(operation, *given, **options) for m, given in zip(members, arguments, strict=True)]
    return [numpy.array(result).tolist() for result in trainkit.get(calls)]


@pytest.mark.slow
def test_tensors_are_reduced_and_sent_to_all(members: list[Any]) -> None:
    own = [(array(rank, 1.0),) for rank in range(3)]
    assert every(members, "allreduce", own) == [[3.0, 3.0]] * 3
    assert every(members, "allreduce", own, op=collective.ReduceOp.MAX) == [[2.0, 1.0]] * 3
    assert every(members, "broadcast", own, src_rank=2) == [[2.0, 1.0]] * 3
    assert every(members, "reduce", own, dst_rank=1) == [[0.0, 1.0], [3.0, 3.0], [2.0, 1.0]]
    assert trainkit.get([m.allreduced.remote() for m in members]) == [[6.0, 6.0]] * 3


def test_tensors_are_gathered_and_scattered(members: list[Any]) -> None:
    empty = [array(0.0)] * 3
    gathered = every(members, "allgather", [(empty, array(float(rank))) for rank in range(3)])
    assert gathered == [[[0.0], [1.0], [2.0]]] * 3
    parts = [array(1.0), array(2.0), array(3.0)]
    assert every(members, "reducescatter", [(array(0.0), parts)] * 3) == [[3.0], [6.0], [9.0]]


def test_one_member_sends_to_another(members: list[Any]) -> None:
    sent = members[0].run.remote("send", array(5.0), 2)
    assert trainkit.get(members[2].run.remote("recv", array(0.0), 0)).tolist() == [5.0]
    trainkit.get(sent)
    trainkit.get([m.run.remote("barrier") for m in members])


def test_the_program_makes_groups_and_members_leave_them(members: list[Any]) -> None:
    for _ in range(2):
        collective.create_collective_group(members[:2], 2, [1, 0], backend="gloo", group_name="two")
        first, second = [
            m.run.remote("broadcast", array(value), src_rank=0, group_name="two")
            for m, value in zip(members[:2], (1.0, 2.0), strict=True)
        ]
        assert trainkit.get([first, second]) == [array(2.0), array(2.0)]
        assert trainkit.get([m.leave.remote("two") for m in members[:2]]) == [False, False]
    assert trainkit.get(members[0].size.remote()) == 3


def test_what_is_wrong_is_said(members: list[Any]) -> None:
    with pytest.raises(ConfigError, match="whose workers use NCCL"):
        collective.init_collective_group(2, 0, backend="nccl")
    with pytest.raises(ConfigError, match="rank=2 must be from 0"):
        collective.init_collective_group(2, 2)
    with pytest.raises(ConfigError, match="not in the group 'none'"):
        collective.barrier("none")
    with pytest.raises(ConfigError, match="already"):
        trainkit.get(members[0].join.remote(3, 0))
    with pytest.raises(ConfigError, match="is this process itself"):
        trainkit.get(members[0].run.remote("send", array(1.0), 0))
    with pytest.raises(ConfigError, match="can't be changed in place"):
        trainkit.get(members[0].run.remote("allreduce", 3))
    with pytest.raises(ConfigError, match="give each actor a rank"):
        collective.create_collective_group(members[:2], 2, [0, 0])
    assert collective.get_rank() == collective.get_collective_group_size() == -1
