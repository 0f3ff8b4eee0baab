"""Streams that are shared out: each sample once, the same global batches on any number of workers."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.train.data.test_data import Seat
from tests.train.operators import cpu_trainer
from tests.train.torch.launched import trainer as function_trainer
from trainkit import train
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.data.feed import Feed, make_feed
from trainkit.train.data.sharding import samples_of_rank
from trainkit.train.data.streams import Deal, SharedStreamLoader, checksum
from trainkit.train.torch import prepare_data_loader

WORLDS = st.tuples(st.integers(0, 80), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
"""Samples, batch size, workers and loader processes."""


def in_turn(parts: list[list[Any]]) -> list[Any]:
    """The batches of loader processes, in torch's order."""
    longest = max(map(len, parts))
    return [part[place] for place in range(longest) for part in parts if place < len(part)]


def plain(samples: int, size: int, drop_last: bool = False, first: int = 0) -> list[list[int]]:
    """The global batches of one worker and no loader process."""
    batches = [list(range(samples))[start : start + size] for start in range(first, samples, size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


@given(WORLDS, st.booleans(), st.booleans(), st.integers(0, 30))
def test_all_workers_take_the_batches_of_one(
    world: tuple[int, int, int, int], drop_last: bool, in_step: bool, skipped: int
) -> None:
    samples, size, workers, processes = world
    dealt = []
    for rank in range(workers):
        deal = Deal(rank, workers, size, drop_last, in_step)
        parts = [
            list(deal.shares(range(samples), skipped=skipped, process=process, processes=processes))
            for process in range(processes)
        ]
        dealt.append(in_turn(parts))
        if skipped == 0:
            assert sum(len(share.data) for share in dealt[-1]) == deal.length(samples)
    expected = plain(samples, size * workers, drop_last, skipped)
    if in_step:
        assert {len(shares) for shares in dealt} == {len(expected)}
    for step, batch in enumerate(expected):
        there = [(rank, shares[step]) for rank, shares in enumerate(dealt) if step < len(shares)]
        assert {share.size for _, share in there} == {len(batch)}
        own = [share.data[: samples_of_rank(share.size, rank, workers)] for rank, share in there]
        assert sorted(chain(*own)) == batch
        # A worker without a sample copies one, only so that it takes part in the step.
        copied = [share.data for share_own, (_, share) in zip(own, there, strict=True) if not share_own]
        assert copied == [[batch[0]]] * len(copied)
        assert in_step or not copied


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 12))
def test_weights_make_each_step_the_mean_over_its_samples(
    samples: int, size: int, workers: int, every: int, steps: int
) -> None:
    """Also where a pass ends in the middle of an optimizer step, and the stream begins again."""
    data, taken = Numbers(samples), []
    for rank in range(workers):
        loader = SharedStreamLoader(DataLoader(data, size), rank=rank, world_size=workers, in_step=True)
        seat = Alike(rank, workers)
        feed = Feed(loader, group=seat, training=True, every=every)
        taken.append(list(feed.batches(num_steps=steps)))
    weighted, alone, held, own = 0.0, 0.0, [], []
    batches = plain(samples, size * workers)
    for step in range(steps):
        held += batches[step % len(batches)]
        own += batches[step % len(batches)][::workers]
        for batches_of_rank in taken:
            batch = batches_of_rank[step]
            weighted += float(batch.data.double().mean()) * batch.weight.averaged / workers
        first = taken[0][step]
        alone += float(first.data.double().mean()) * first.weight.own
        if first.weight.closes_step:
            assert weighted * first.weight.correction == pytest.approx(sum(held) / len(held))
            assert alone * first.weight.own_correction == pytest.approx(sum(own) / len(own))
            weighted, alone, held, own = 0.0, 0.0, [], []
    assert not held


class Numbers(IterableDataset[int]):
    """The first numbers, as a stream that keeps the epochs it is told."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return (number + 1000 * self.epoch for number in range(self.count))


class Sized(Numbers):
    """The same with a length."""

    def __len__(self) -> int:
        return self.count


class ByProcess(Numbers):
    """Stream that divides itself among loader processes, as torch's documentation shows."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(self.count) if info is None else range(info.id, self.count, info.num_workers))


class Shuffled(Numbers):
    """Stream whose order depends on all global generators."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count).tolist()
        random.shuffle(order)
        return iter(np.random.permutation(order).tolist())


class Alike(Seat):
    """Seat in a group in which all read the same stream."""

    @property
    def members(self) -> int:
        return 1


def shares_of(data: Any, workers: int, size: int = 2, **options: Any) -> list[list[list[int]]]:
    """The batches of each worker in one pass."""
    loader = DataLoader(data, size, **options)
    made = [
        SharedStreamLoader(loader, rank=rank, world_size=workers, in_step=True) for rank in range(workers)
    ]
    return [[torch.as_tensor(batch).tolist() for batch in each] for each in made]


@pytest.mark.parametrize("kind", [Numbers, ByProcess, Shuffled])
def test_loader_processes_repeat_nothing(kind: type[Numbers]) -> None:
    found = shares_of(kind(11), 2, num_workers=2)
    assert [len(batches) for batches in found] == [3, 3]
    steps = [sorted(chain(*parts)) for parts in zip(*found, strict=True)]
    assert sorted(chain(*steps)) == list(range(11))
    assert found == shares_of(kind(11), 2)
    if kind is not Shuffled:
        assert steps == plain(11, 4)


def test_a_pass_leaves_the_generators_alone() -> None:
    def state() -> str:
        return str((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))

    loader = SharedStreamLoader(DataLoader(Shuffled(9), 2), rank=0, world_size=2, in_step=True)
    batches = iter(loader)
    next(batches)
    before = state()
    assert len(list(batches)) == 2
    assert state() == before


@pytest.mark.parametrize("persistent", [False, True])
def test_loader_processes_see_the_epoch_and_the_start(persistent: bool) -> None:
    stream: Any = DataLoader(Numbers(10), 2, num_workers=2, persistent_workers=persistent)
    loader = SharedStreamLoader(stream, rank=1, world_size=2, in_step=True)
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
        expected = [[1, 3], [5, 7], [9]]
        assert [batch.tolist() for batch in loader] == [
            [number + 1000 * epoch for number in batch] for batch in expected
        ]
    loader.start_at(3, {})
    assert [batch.tolist() for batch in loader] == [[1004, 1006], [1008]]
    assert len(list(loader)) == 3


def test_a_stream_of_known_length_has_a_length() -> None:
    for rank in range(3):
        loader = SharedStreamLoader(DataLoader(Sized(13), 2), rank=rank, world_size=3, in_step=True)
        assert (len(loader), loader.batch_size) == (3, 2)
        assert len(loader) == len(list(loader))
    with pytest.raises(TypeError, match="has no len"):
        len(SharedStreamLoader(DataLoader(Numbers(3)), rank=0, world_size=2, in_step=True))


def test_a_stream_of_whole_batches_is_dealt_out_by_batches() -> None:
    found = shares_of(Numbers(5), 2, None)  # type: ignore[arg-type]
    assert found == [[0, 2, 4], [1, 3, 4]]


def test_one_worker_without_loader_processes_keeps_its_stream() -> None:
    own = DataLoader(Numbers(5), 2)
    assert make_feed(own, group=Seat(0, 1), training=True, split=True).loader is own
    for options in ({"split": False}, {"split": True, "sharded": True}):
        assert make_feed(own, group=Seat(0, 2), training=True, **options).loader is own


def test_streams_that_differ_are_refused() -> None:
    class Differing(Seat):
        def broadcast_integers(self, values: Any) -> list[int]:
            return list(values)

        def gather_integers(self, value: int) -> list[int]:
            return [value, value + 1]

    feed = make_feed(DataLoader(Numbers(5), 2), group=Differing(0, 2), training=True, split=True)
    with pytest.raises(ConfigError, match=r"different samples on worker 0 and worker 1.*sharded=True"):
        next(feed.batches())


@pytest.mark.parametrize(
    "sample",
    [
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.tensor(3.0)[None].expand(2),
        np.arange(3),
        {"text": "a", "number": 1.5, "nested": [(b"x", None, True)]},
    ],
    ids=repr,
)
def test_checksums_tell_samples_apart(sample: Any) -> None:
    assert checksum(sample) == checksum(sample) > 0
    assert checksum(sample) != checksum([sample])


def test_values_without_a_checksum_are_not_compared() -> None:
    assert checksum(object()) == checksum(np.array([object()])) == 0


class Pairs(IterableDataset[Any]):
    """Stream of features and targets."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(21):
            value = torch.tensor([number / 10], dtype=torch.float64)
            yield value, value.square()


class Streaming(TrainingOperator):
    """Operator that trains and validates on a stream, with some loader processes."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Linear(1, 1, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        loader = DataLoader(Pairs(), config[BATCH_SIZE], num_workers=config["processes"])
        self.register_data(train_loader=loader, validation_loader=loader)


def trained(workers: int, processes: int) -> list[Any]:
    """The results of two epochs on global batches of six samples; three batches are accumulated, then one."""
    config = {BATCH_SIZE: 6, "processes": processes}
    with cpu_trainer(Streaming, workers, config, grad_accumulation_steps=3) as trainer:
        made = [trainer.train() for _ in range(2)]
        assert {(result["num_samples"], result["batch_count"]) for result in made} == {(21, 4)}
        validated = trainer.validate()
        assert validated["num_samples"] == 21
        weights = [parameter.item() for parameter in trainer.get_model().parameters()]
    return [*weights, *(result["train_loss"] for result in made), validated["val_loss"]]


@pytest.mark.usefixtures("runtime")
def test_an_operator_trains_on_a_stream_as_on_one_worker() -> None:
    expected = trained(1, 0)
    for workers, processes in ((1, 2), (2, 2), (3, 0)):
        assert trained(workers, processes) == pytest.approx(expected, rel=1e-12)


class Mixed(TrainingOperator):
    """Operator that keeps the steps over a stream that is shuffled by the global generators."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps: list[list[int]] = []
        self.register_data(train_loader=DataLoader(Shuffled(11), config[BATCH_SIZE]))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self.steps.append(batch.tolist())
        return {"num_samples": len(batch)}


def mixed(workers: int) -> TorchTrainer:
    return cpu_trainer(Mixed, workers, {BATCH_SIZE: 6}, num_cpus_per_worker=0.5)


def two_epochs(trainer: TorchTrainer) -> list[list[int]]:
    """The global batches of two epochs, sorted."""
    trainer.train()
    trainer.train()
    found = trainer.apply_all_operators(lambda operator: operator.steps)
    return [sorted(chain(*parts)) for parts in zip(*found, strict=True)]


@pytest.mark.usefixtures("runtime")
def test_a_checkpoint_has_what_a_shuffled_streams_order_depends_on(tmp_path: Path) -> None:
    with mixed(2) as trainer:
        trainer.save(tmp_path / "c")
        expected = two_epochs(trainer)
    for epoch in (expected[:2], expected[2:]):
        assert sorted(chain(*epoch)) == list(range(11))
    assert expected[:2] != expected[2:]
    with mixed(3) as trainer:
        trainer.load(tmp_path / "c")
        assert two_epochs(trainer) == expected


def test_a_script_alone_shares_its_stream_among_loader_processes() -> None:
    alone = prepare_data_loader(DataLoader(Numbers(5), 2))
    assert [batch.tolist() for batch in alone] == [[0, 1], [2, 3], [4]]
    shared = prepare_data_loader(DataLoader(Numbers(5), 2, num_workers=2))
    assert [batch.tolist() for batch in shared] == [[0, 1], [2, 3], [4]]


def loop(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    loader = prepare_data_loader(DataLoader(Numbers(9), 2, num_workers=2))
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
        found = [batch.tolist() for batch in loader]
        assert found == [[number + 1000 * epoch for number in batch] for batch in config["expected"][rank]]
    whole = DataLoader(Numbers(3), 3)
    assert [batch.tolist() for batch in prepare_data_loader(whole, add_dist_sampler=False)] == [[0, 1, 2]]
    warnings: list[Any] = []
    logging.getLogger("trainkit.train.torch.prepare").addFilter(
        lambda record: warnings.append(record) or True
    )
    list(prepare_data_loader(DataLoader(Divided(rank), 2)))
    told: list[Any] = [None, None]
    torch.distributed.all_gather_object(told, [record.getMessage() for record in warnings])
    assert "begins with different samples on workers 0 and 1" in str(told)


class Divided(Numbers):
    """Stream of one rank's own numbers."""

    def __init__(self, rank: int) -> None:
        super().__init__(9)
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 20, 2))


@pytest.mark.usefixtures("runtime")
def test_a_function_shares_a_stream(tmp_path: Path) -> None:
    expected = [[[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [8]]]
    function_trainer(loop, tmp_path, {"expected": expected}).fit()
