"""Workers in a grid: who holds a model together, and who is dealt which samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.train.operators import Digits
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer
from trainkit.train.distributed.mesh import (
    DataParallelGroup,
    data_parallel_group,
    degree_mistakes,
    make_mesh,
)
from trainkit.train.distributed.process_group import ProcessGroup

pytestmark = pytest.mark.usefixtures("runtime")


# -- the rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [0, -2, 1.5, True, "2", 3])
def test_a_degree_is_a_whole_number_that_divides_the_workers(degree: Any) -> None:
    (mistake,) = degree_mistakes(degree, 4)
    whole = "4 workers can't form groups of 3: make num_workers a multiple of 3"
    assert mistake == (whole if degree == 3 else f"degree must be a positive integer, not {degree!r}")
    assert list(degree_mistakes(2, 4)) == list(degree_mistakes(4, 4)) == []


# -- samples -----------------------------------------------------------------------------------


class Told(ProcessGroup):
    """Four workers, whose answers are given."""

    world_size = 4

    def __init__(self, rank: int, answers: Sequence[int]) -> None:
        self.rank = rank
        self.answers = list(answers)

    def gather_integers(self, value: int) -> list[int]:
        return self.answers


def test_a_row_counts_as_one() -> None:
    group = data_parallel_group(Told(3, [7, 7, 5, 5]), 2)
    assert (group.rank, group.world_size) == (1, 2)
    assert group.gather_integers(5) == [7, 5]
    alone = ProcessGroup()
    assert data_parallel_group(alone, 1) is alone


def test_a_row_has_the_same_batches() -> None:
    group = DataParallelGroup(Told(0, [7, 7, 5, 6]), 2)
    with pytest.raises(ConfigError, match=r"workers \[2, 3\] share one model, .* counts \[5, 6\]"):
        group.gather_integers(7)


# -- among processes ---------------------------------------------------------------------------


def meet(operator: Any) -> dict[str, Any]:
    whole = operator._context.strategy.group
    mesh = make_mesh(whole, {"data": 2, "model": 2}, torch.device("cpu"))
    data = data_parallel_group(whole, 2)
    sums = {}
    for name in ("data", "model"):
        total = torch.tensor([whole.rank])
        dist.all_reduce(total, group=mesh.get_group(name))
        sums[name] = int(total)
    flat = make_mesh(whole, {"data": 4}, torch.device("cpu"))
    timeouts = {
        group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        for group in mesh.get_all_groups()
    }
    return {
        "place": tuple(mesh.get_coordinate() or ()),
        "names": mesh.mesh_dim_names,
        "sums": sums,
        "flat": (flat.mesh_dim_names, flat.size()),
        "timeouts": timeouts,
        "data": (data.rank, data.world_size),
        "order": data.broadcast_integers([whole.rank, 8]),
        "long": [data.broadcast_integers(range(whole.rank, count)) for count in (0, 4095, 4096, 9000)],
        "gathered": data.gather_integers(data.rank * 10),
    }


@pytest.mark.slow
def test_four_workers_meet_in_a_grid() -> None:
    with TorchTrainer(training_operator_cls=Digits, num_workers=4, use_gpu=False, timeout_s=60) as gang:
        told = gang.apply_all_operators(meet)
    for rank, seen in enumerate(told):
        row, column = divmod(rank, 2)
        assert seen["place"] == (row, column)
        assert seen["names"] == ("data", "model")
        assert seen["sums"] == {"data": 2 * column + 2, "model": 4 * row + 1}
        assert seen["flat"] == (("data",), 4)
        assert seen["timeouts"] == {60.0}
        assert seen["data"] == (row, 2)
        assert seen["order"] == [0, 8]
        assert seen["long"] == [list(range(count)) for count in (0, 4095, 4096, 9000)]
        assert seen["gathered"] == [0, 10]
