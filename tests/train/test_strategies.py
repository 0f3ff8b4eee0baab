"""The suite of strategies, over all of them."""

from __future__ import annotations

from typing import Any

import pytest

from trainkit.testing.strategy import Row, StrategySuite
from trainkit.train.strategies.layers import Layers
from trainkit.train.strategies.pipeline import Pipeline
from trainkit.train.strategies.tensor import TensorParallel

pytestmark = pytest.mark.usefixtures("runtime")

ROWS = [
    Row("single", 1),
    Row("ddp", 1),
    Row("ddp", 2),
    Row("ddp", 4),
    Row("fsdp", 1),
    Row("fsdp", 2),
    Row("fsdp", 4),
    Row(Layers(devices=["cpu", "cpu"]), 1),
    Row(Layers(["3", "5"], devices=["cpu", "cpu", "cpu"]), 2),
    Row("pipeline", 1),
    Row("pipeline", 2),
    Row(Pipeline(schedule="gpipe", microbatches=4), 4),
    Row(Pipeline(degree=2), 4),
    Row("tensor", 2),
    Row("tensor", 4),
    Row(TensorParallel(degree=2), 4),
    Row(TensorParallel(degree=2, data="shard"), 4),
]


class TestStrategies(StrategySuite):
    @pytest.fixture(params=ROWS, ids=str)
    def row(self, request: Any) -> Any:
        return request.param
