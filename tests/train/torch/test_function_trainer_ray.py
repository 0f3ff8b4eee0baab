"""The trainer of functions on a Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

import trainkit
from tests.suites.function_trainer import FunctionTrainerSuite
from trainkit import train
from trainkit.train import ScalingConfig


def whereabouts() -> None:
    context, everyone = train.get_context(), [None] * dist.get_world_size()
    node = trainkit.get_runtime_context().get_node_id()
    own = (node, context.get_node_rank(), context.get_local_rank(), context.get_local_world_size())
    dist.all_gather_object(everyone, own)
    train.report({"everyone": everyone})


@pytest.mark.usefixtures("ray_cluster")
class TestRayEngine(FunctionTrainerSuite):
    """The trainer of functions with each worker on a node of its own."""

    def test_ranks_of_a_node_follow_each_other(self) -> None:
        """Ray's SPREAD gives the first two places on different nodes."""
        scaling = ScalingConfig(num_workers=4, resources_per_worker={"CPU": 0.5}, placement_strategy="SPREAD")
        result: Any = self.trainer(whereabouts, scaling_config=scaling).fit()
        nodes, node_ranks, local_ranks, sizes = zip(*result.metrics["everyone"], strict=True)
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
        assert (node_ranks, local_ranks, sizes) == ((0, 0, 1, 1), (0, 1, 0, 1), (2, 2, 2, 2))
