"""Data and models by the names of `ray.util.sgd`: data sets outside the workers, and residual networks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

import trainkit
from trainkit.util.iter import from_items
from trainkit.util.sgd import TorchTrainer
from trainkit.util.sgd.data import Dataset
from trainkit.util.sgd.torch import TrainingOperator
from trainkit.util.sgd.torch.resnet import ResNet18


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    trainkit.init(num_cpus=4)
    yield
    trainkit.shutdown()


class Line(TrainingOperator):
    def setup(self, config):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer, self.criterion = self.register(
            models=model, optimizers=optimizer, criterion=torch.nn.MSELoss()
        )


def sample(x):
    return torch.tensor([x]), torch.tensor([2 * x])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shards", [0, 2])
def test_a_trainer_takes_batches_that_another_process_makes(workers: int, shards: int) -> None:
    points = [x / 64 for x in range(64)]
    data = from_items(points, shards, repeat=True) if shards else points
    dataset = Dataset(data, batch_size=16, download_func=sample, max_concurrency=2)
    trainer = TorchTrainer(training_operator_cls=Line, num_workers=workers)
    for _ in range(4):
        result = trainer.train(dataset=dataset, num_steps=30)
        assert result["batch_count"] == 30
        assert result["num_samples"] == 30 * 16 * workers
    assert abs(float(trainer.get_model()(torch.tensor([[0.5]]))) - 1) < 0.1
    trainer.shutdown()


def test_a_call_goes_on_where_the_last_one_was() -> None:
    dataset = Dataset(from_items([float(x) for x in range(4000)], 1), batch_size=2)
    taken: list[float] = []
    for _ in range(3):
        for batch in islice(dataset.get_shard(0), 5):
            taken += batch.tolist()
    assert taken == list(range(30))


def test_parts_of_a_data_set_are_apart_and_transformed() -> None:
    whole = from_items([float(x) for x in range(8)], 1)
    dataset = Dataset(whole, batch_size=2, download_func=sample, transform=lambda x: -x)
    dataset.set_num_shards(2)
    for _ in range(2):
        parts = [
            [(x.flatten().tolist(), y.flatten().tolist()) for x, y in dataset.get_shard(i)] for i in (0, 1)
        ]
        assert parts[0] == [([0.0, -1.0], [0.0, 2.0]), ([-4.0, -5.0], [8.0, 10.0])]
        assert [x for x, _ in parts[1]] == [[-2.0, -3.0], [-6.0, -7.0]]


def test_a_pass_that_has_failed_begins_anew(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.touch()

    def load(x):
        if x == 3 and fault.exists():
            raise OSError("the disk is away")
        return x

    shard = Dataset(from_items(range(6), 1), batch_size=2, download_func=load).get_shard(0)
    with pytest.raises(OSError, match="the disk is away"):
        list(shard)
    fault.unlink()
    for _ in range(2):
        assert [batch.tolist() for batch in shard] == [[0, 1], [2, 3], [4, 5]]


def test_residual_networks_keep_small_images_large() -> None:
    network = ResNet18()
    shapes = []
    network.layer4.register_forward_hook(lambda *given: shapes.append(given[2].shape))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == [(2, 512, 4, 4)]
