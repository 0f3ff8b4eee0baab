"""The suite of strategies, over all of them."""

from __future__ import annotations

from typing import Any

import pytest

from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.plugins.testing.strategy import StrategyRow, StrategySuite
from trainkit.train.strategies.fsdp import FSDP
from trainkit.train.strategies.layers import Layers
from trainkit.train.strategies.tensor import TensorParallel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("runtime")]

ROWS = [
    StrategyRow("single", 1),
    StrategyRow("ddp", 2),
    StrategyRow("fsdp", 2),
    StrategyRow(FSDP(replicas=2), 4),
    StrategyRow(Layers(["3", "5"], devices=["cpu", "cpu", "cpu"]), 2),
    StrategyRow("pipeline", 1),
    StrategyRow("pipeline", 2),
    StrategyRow(Pipeline(schedule="gpipe", microbatches=4), 4),
    StrategyRow(Pipeline(degree=2, tensor=TensorParallel(degree=2)), 4),
    StrategyRow("tensor", 2),
    StrategyRow(TensorParallel(degree=2), 4),
    StrategyRow(TensorParallel(degree=2, data="shard"), 4),
]


class TestStrategies(StrategySuite):
    @pytest.fixture(params=ROWS, ids=str)
    def row(self, request: Any) -> Any:
        return request.param
