"""The trainer of functions on a Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import trainkit
from tests.suites.function_trainer import FunctionTrainerSuite
from tests.train.torch.launched import trainer
from trainkit import train
from trainkit.errors import TrainingFailedError
from trainkit.train import ScalingConfig


def whereabouts(config: dict[str, Any]) -> None:
    """Write down where each rank is; rank 1 fails."""
    context, everyone = train.get_context(), [None] * dist.get_world_size()
    node = trainkit.get_runtime_context().get_node_id()
    own = (node, context.get_node_rank(), context.get_local_rank(), context.get_local_world_size())
    dist.all_gather_object(everyone, own)
    if dist.get_rank() == 0:
        Path(config["file"]).write_text(json.dumps(everyone))
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("cursed")
    train.report({})


@pytest.mark.usefixtures("ray_cluster")
class TestRayEngine(FunctionTrainerSuite):
    """The trainer of functions with each worker on a node of its own."""

    def test_ranks_of_a_node_follow_each_other(self, tmp_path: Path) -> None:
        """Ray's SPREAD gives the first two places on different nodes; errors name no number but the rank."""
        scaling = ScalingConfig(num_workers=4, resources_per_worker={"CPU": 0.5}, placement_strategy="SPREAD")
        config = {"file": str(tmp_path / "everyone")}
        with pytest.raises(TrainingFailedError, match=r"(?s) train-worker\.advance .*worker 1 of 4"):
            self.trainer(whereabouts, config, scaling_config=scaling).fit()
        everyone = json.loads((tmp_path / "everyone").read_text())
        nodes, node_ranks, local_ranks, sizes = zip(*everyone, strict=True)
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
        assert (node_ranks, local_ranks, sizes) == ((0, 0, 1, 1), (0, 1, 0, 1), (2, 2, 2, 2))


def read(config: dict[str, Any]) -> None:
    """Report what each worker gets of a data set in two passes, and of one that is not split."""
    shard = train.get_dataset_shard("shared")
    batches = [[batch["x"].tolist() for batch in shard.iter_torch_batches(batch_size=4)] for _ in range(2)]
    whole = [row["id"] for row in train.get_dataset_shard("whole").iter_rows()]
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, (batches, sorted(whole)))
    train.report({"everyone": everyone})


def test_a_ray_dataset_is_shared_among_the_workers(ray_cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Ray Data needs it: pip install 'ray[data]'")
    from ray import data

    # The tasks of a data set need CPUs beside those of the workers.
    more = ray_cluster.add_node(num_cpus=2, include_dashboard=False, include_log_monitor=False)
    try:
        # One holds references to objects from the beginning, the other makes them.
        given = {
            "shared": data.from_items([{"x": 2 * number} for number in range(16)], override_num_blocks=2)
        }
        given["whole"] = data.range(6, override_num_blocks=1)
        only = train.DataConfig(datasets_to_split=["shared"])
        result = trainer(read, tmp_path, datasets=given, dataset_config=only).fit()
    finally:
        ray_cluster.remove_node(more)
    (first, whole), (second, also_whole) = result.metrics["everyone"]
    for one, other in zip(first, second, strict=True):
        assert [len(batch) for batch in one] == [len(batch) for batch in other] == [4, 4]
        assert sorted(itertools.chain(*one, *other)) == list(range(0, 32, 2))
    assert whole == also_whole == list(range(6))
