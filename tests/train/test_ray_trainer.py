"""Trainers on a Ray cluster of two nodes, both on this machine: each worker is on a node of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import trainkit
from tests.train.operators import Digits, gang_losses, plain_losses
from trainkit.train import BATCH_SIZE, TorchTrainer

ray = pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from tests.runtime.ray_session import clean_ray  # noqa: E402

CONFIG = {"samples": 75, BATCH_SIZE: 20, "dtype": torch.float64}
STEPS = 10


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    def start() -> Any:
        cluster = Cluster()
        for _ in range(2):
            cluster.add_node(num_cpus=1, include_dashboard=False)
        trainkit.init(address=cluster.address, log_to_driver=False)
        return cluster.shutdown

    with clean_ray(start):
        yield


def whereabouts() -> dict[str, Any]:
    """Of one worker: its node, its pid, and the addresses that it listens at."""
    listening = psutil.Process().net_connections("inet")
    return {
        "node": trainkit.get_runtime_context().get_node_id(),
        "pid": os.getpid(),
        "addresses": {found.laddr.ip for found in listening if found.status == psutil.CONN_LISTEN},
        "environment": {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")},
    }


def make_trainer(**arguments: Any) -> TorchTrainer:
    return TorchTrainer(
        training_operator_cls=Digits, config=CONFIG, num_workers=2, use_gpu=False, timeout_s=60, **arguments
    )


def test_two_workers_on_two_nodes(tmp_path: Path) -> None:
    with make_trainer() as trainer:
        places = trainer.apply_all_workers(whereabouts)
        assert len({place["node"] for place in places}) == 2
        print(places)
        assert trainer.apply_all_operators(lambda operator: (operator.world_rank, operator.local_rank)) == [
            (0, 0),
            (1, 0),
        ]
        result = trainer.train(num_steps=STEPS)
        assert result["epoch"] == 1
        assert gang_losses(trainer) == pytest.approx(plain_losses(CONFIG, STEPS), abs=1e-9)
        print(trainer.validate())
