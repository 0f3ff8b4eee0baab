"""Random numbers of samples: the same on any number of workers and loader processes."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.train.operators import cpu_trainer
from tests.train.torch.launched import trainer as function_trainer
from trainkit import train
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TrainingOperator
from trainkit.train.data.randomness import SeededSamples, seed_of, seeded_samples
from trainkit.train.torch import prepare_data_loader

SAMPLES = 12


class Augmented(Dataset[Any]):
    """Samples with a random number of each generator, and the epoch."""

    classes = ("cat", "dog")

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
        return torch.tensor([index, *drawn, self.epoch], dtype=torch.float64)


def samples_of(loader: Any) -> dict[int, list[float]]:
    """The samples of a pass, by index."""
    return {int(row[0]): row[1:].tolist() for row in torch.cat(list(loader))}


def passes(seed: int, epochs: int = 2, **options: Any) -> list[dict[int, list[float]]]:
    loader, found = seeded_samples(DataLoader(Augmented(), 5, **options), seed, "train_loader"), []
    for epoch in range(epochs):
        loader.dataset.set_epoch(epoch)
        found.append(samples_of(loader))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "shuffle": True},
    ],
    ids=str,
)
def test_a_samples_numbers_are_those_of_its_index_and_epoch(options: dict[str, Any]) -> None:
    expected = passes(3)
    assert passes(3, **options) == expected
    first, second = ([sample[:3] for sample in each.values()] for each in expected)
    drawn = list(chain(*first, *second))
    assert len(set(drawn)) == len(drawn)


def test_another_seed_gives_other_numbers() -> None:
    assert passes(4, 1)[0][0] != passes(3, 1)[0][0]


def test_the_generators_of_the_process_are_left_alone() -> None:
    def state() -> str:
        return str((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))

    before = state()
    samples = SeededSamples(Augmented(), 1)
    assert samples[3].tolist() == samples[np.int64(3)].tolist() == samples[torch.tensor(3)].tolist()
    assert state() == before


def test_a_data_set_keeps_its_attributes_and_its_copies() -> None:
    samples = SeededSamples(Augmented(), 1)
    samples.set_epoch(4)
    for each in (samples, copy.deepcopy(samples), pickle.loads(pickle.dumps(samples))):
        assert (each.classes, len(each), each.epoch) == (("cat", "dog"), SAMPLES, 4)
        assert each[1].tolist() == samples[1].tolist()
    with pytest.raises(AttributeError, match="no attribute 'labels'"):
        _ = samples.labels


def test_seeds_are_those_of_all_parts() -> None:
    assert seed_of(1, 2, 3) == seed_of(1, 2, 3) != seed_of(1, 3, 2)
    assert 0 <= seed_of("x") < 2**63


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("loader", [DataLoader(Stream()), [1, 2]], ids=["stream", "list"])
def test_samples_without_an_index_are_refused(loader: Any) -> None:
    with pytest.raises(ConfigError, match=r"sample_seed=0 needs a DataLoader over a map-style data set"):
        seeded_samples(loader, 0, "train_loader")


class Trained(TrainingOperator):
    """Operator whose features are random."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1, dtype=torch.float64)
        self.register(models=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.01))
        loader = DataLoader(Augmented(), config[BATCH_SIZE], num_workers=config["processes"])
        self.register_data(train_loader=loader, sample_seed=7)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        loss = self.model(batch[:, :4]).square().mean()
        self.backward(loss)
        self.optimizer_step()
        return {"loss": loss.detach(), "num_samples": len(batch)}


def weights(workers: int, processes: int) -> list[float]:
    with cpu_trainer(Trained, workers, {BATCH_SIZE: 4, "processes": processes}) as trainer:
        for _ in range(2):
            trainer.train()
        return [value for each in trainer.get_model().parameters() for value in each.flatten().tolist()]


@pytest.mark.usefixtures("runtime")
def test_an_operator_trains_alike_on_any_number_of_workers() -> None:
    assert weights(2, 2) == pytest.approx(weights(1, 0), rel=1e-12)


def loop(config: dict[str, Any]) -> None:
    loader = prepare_data_loader(DataLoader(Augmented(), 2), sample_seed=3)
    loader.dataset.set_epoch(1)  # type: ignore[attr-defined]
    for index, sample in samples_of(loader).items():
        assert sample == config["expected"][index]
    train.report({"samples": len(samples_of(loader))})


@pytest.mark.usefixtures("runtime")
def test_a_functions_samples_have_the_same_numbers(tmp_path: Path) -> None:
    result = function_trainer(loop, tmp_path, {"expected": passes(3)[1]}).fit()
    assert result.metrics["samples"] == SAMPLES // 2
