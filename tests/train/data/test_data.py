"""Dealing samples out to workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from trainkit.errors import ConfigError
from trainkit.train.data.feed import Feed, make_feed
from trainkit.train.data.sharding import BatchSizes, ShardedBatchSampler, batch_weight, samples_of_rank, shard
from trainkit.train.distributed.process_group import ProcessGroup
from trainkit.train.step.epoch import run_epoch


class Seat(ProcessGroup):
    """One worker's place in a group in which all agree: enough where nothing has to be exchanged."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def gather_integers(self, value: int) -> list[int]:
        return [value] * self.world_size


def dealt(
    samples: int, size: int, world: int, *, training: bool, drop_last: bool = False
) -> list[ShardedBatchSampler]:
    order = SequentialSampler(range(samples))
    return [
        ShardedBatchSampler(order, size, drop_last=drop_last, group=Seat(rank, world), in_step=training)
        for rank in range(world)
    ]


WORLDS = st.tuples(st.integers(0, 120), st.integers(1, 9), st.integers(1, 6))


@given(WORLDS)
def test_validation_sees_each_sample_once(world: tuple[int, int, int]) -> None:
    samples, size, workers = world
    seen = [
        i for sampler in dealt(samples, size, workers, training=False) for batch in sampler for i in batch
    ]
    assert sorted(seen) == list(range(samples))


@given(WORLDS, st.booleans())
def test_lengths_are_true(world: tuple[int, int, int], training: bool) -> None:
    for sampler in dealt(*world, training=training):
        assert len(sampler) == len(list(sampler))


@given(WORLDS, st.booleans())
def test_in_training_all_take_the_same_steps_over_the_plain_loops_batches(
    world: tuple[int, int, int], drop_last: bool
) -> None:
    samples, size, workers = world
    per_worker = [list(s) for s in dealt(samples, size, workers, training=True, drop_last=drop_last)]
    order, total = list(range(samples)), size * workers
    plain = [order[start : start + total] for start in range(0, samples, total)]
    if drop_last and plain and len(plain[-1]) < total:
        plain.pop()
    assert {len(batches) for batches in per_worker} == {len(plain)}
    for step, expected in enumerate(plain):
        assert {i for batches in per_worker for i in batches[step]} == set(expected)


@given(WORLDS, st.booleans(), st.data())
def test_a_pass_goes_on_where_its_state_was_taken(
    world: tuple[int, int, int], drop_last: bool, data: st.DataObject
) -> None:
    """As torchdata's `StatefulDataLoader` asks for it, also after the last batch of a pass."""
    samples, size, workers = world

    def begun() -> ShardedBatchSampler:
        order = RandomSampler(range(max(samples, 1)), generator=torch.Generator().manual_seed(3))
        return ShardedBatchSampler(order, size, drop_last=drop_last, group=Seat(0, workers), in_step=True)

    plain = begun()
    passes = [list(plain), list(plain)]
    taken = data.draw(st.integers(0, len(passes[0])))
    first, again = begun(), begun()
    list(itertools.islice(first, taken))
    again.load_state_dict(first.state_dict())
    assert [list(again), list(again)] == [passes[0][taken:], passes[1]]


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4), st.integers(1, 5))
def test_weighted_means_of_a_step_add_up_to_the_mean_of_all_its_samples(
    samples: int, size: int, workers: int, every: int
) -> None:
    values = torch.arange(samples, dtype=torch.float64) ** 2
    sizes = BatchSizes(samples, size * workers, drop_last=False)
    weighted, step = 0.0, []
    for index in range(sizes.steps):
        batch = range(samples)[index * sizes.batch_size : (index + 1) * sizes.batch_size]
        assert len(batch) == sizes.size(index)
        step.extend(batch)
        for rank in range(workers):
            part = shard(batch, rank, workers)
            assert len(part) == samples_of_rank(len(batch), rank, workers)
            weight = batch_weight(index, sizes.steps, sizes, every=every, rank=rank, world_size=workers)
            assert weight.averaged or not part
            weighted += float(values[part].mean()) * weight.averaged / workers if part else 0.0
        if weight.closes_step:
            assert weighted == pytest.approx(float(values[step].mean()))
            weighted, step = 0.0, []
    assert not step


def loader(samples: int = 10, **options: object) -> DataLoader[object]:
    return DataLoader(TensorDataset(torch.arange(samples)), **options)  # type: ignore[arg-type]


def feed(source: object, group: ProcessGroup | None = None, training: bool = True) -> Feed:
    return make_feed(source, group=group or ProcessGroup(), training=training, split=True)


def test_one_worker_keeps_the_users_own_loader() -> None:
    own = loader(batch_size=4)
    assert feed(own).loader is own


@pytest.mark.parametrize(("steps", "taken"), [(None, 3), (2, 2), (3, 3), (8, 8)])
def test_more_steps_than_batches_start_the_data_again(steps: int | None, taken: int) -> None:
    assert len(list(feed(loader(batch_size=4)).batches(num_steps=steps))) == taken


def test_validation_never_starts_again_and_empty_data_ends() -> None:
    assert len(list(feed(loader(batch_size=4), training=False).batches(num_steps=9))) == 3
    assert list(feed([]).batches(num_steps=3)) == []


def test_weights_of_an_uneven_last_batch() -> None:
    own = feed(loader(9, batch_size=2), Seat(1, 2))
    assert [batch.weight.averaged for batch in own.batches()] == [1.0, 1.0, 0.0]
    first = feed(loader(9, batch_size=2), Seat(0, 2))
    assert [batch.weight.averaged for batch in first.batches()] == [1.0, 1.0, 2.0]


def test_weights_follow_the_steps_not_the_batches_taken_ahead() -> None:
    own = feed(loader(9, batch_size=2), Seat(1, 2))
    seen: list[float] = []

    def step(batch: object, info: dict[str, object]) -> dict[str, float]:
        seen.append(own.weight)
        return {}

    for _ in range(2):
        ahead = [batch.data for batch in own.batches(num_steps=5)]
        seen.clear()
        for part in (ahead[:2], ahead[2:]):
            run_epoch(step, own.label(part), info={})
        assert seen == [1.0, 1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("samples", "steps"), [(8, None), (9, None), (9, 2), (9, 3), (9, 7), (8, 2), (8, 5)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loaders_own_generator_is_drawn_from_as_in_a_plain_loop(
    samples: int, steps: int | None, drop_last: bool
) -> None:
    def shuffled() -> DataLoader[object]:
        options = {"generator": torch.Generator().manual_seed(3), "batch_size": 4, "drop_last": drop_last}
        return loader(samples, shuffle=True, **options)

    def after(own: Feed, generator: torch.Generator) -> list[int]:
        for _ in own.batches(num_steps=steps):
            pass
        return generator.get_state().tolist()

    plain, ours = shuffled(), shuffled()
    order = ShardedBatchSampler(ours.sampler, 4, drop_last=drop_last, group=ProcessGroup(), in_step=True)
    dealt_out = loader(samples, batch_sampler=order, generator=ours.generator)
    assert plain.generator is not None
    assert ours.generator is not None
    assert after(feed(dealt_out), ours.generator) == after(feed(plain), plain.generator)


def test_the_loaders_other_settings_stay() -> None:
    shared = feed(loader(batch_size=3, collate_fn=len), Seat(1, 2)).loader
    assert list(shared) == [3, 2]  # type: ignore[comparison-overlap]


@given(
    st.integers(1, 9),
    st.sampled_from([(), (3,), (0,), (1, 4, 4), (3, 1, 1), (2, 3, 4)]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64]),
    st.booleans(),
    st.booleans(),
)
def test_rows_taken_together_are_those_taken_one_by_one(
    samples: int, shape: tuple[int, ...], dtype: torch.dtype, strided: bool, parted: bool
) -> None:
    values = (torch.randn(samples, *shape) * 9).to(dtype)
    if strided and values.dim() == 4:
        values = values.to(memory_format=torch.channels_last)
    data: Any = TensorDataset(values, torch.arange(samples))
    if parted:
        every_second: Any = np.arange(0, samples, 2)
        data = Subset(Subset(data, list(range(samples))[::-1]), every_second)

    def after(batches: Any, order: torch.Generator) -> Any:
        taken = [[(each.tolist(), each.stride(), each.dtype) for each in batch] for batch in batches]
        return str(taken), order.get_state().tolist(), torch.get_rng_state().tolist()

    def of(take: Callable[[Any], Any]) -> Any:
        torch.manual_seed(1)
        order = torch.Generator().manual_seed(0)
        return after(take(DataLoader(data, 4, shuffle=True, generator=order)), order)

    assert of(lambda plain: (batch.data for batch in feed(plain).batches())) == of(iter)


def test_a_sampler_over_tensors_may_give_what_is_no_number() -> None:
    data = TensorDataset(torch.arange(6.0))
    rows: Any = [True, slice(1, 2), torch.tensor(3)]
    for order in (rows[:1], rows[1:2], rows[2:], [-1, 5]):
        plain = DataLoader(data, 2, sampler=order)
        assert str([batch.data for batch in feed(plain).batches()]) == str(list(plain))


def test_a_row_that_is_not_there_is_named() -> None:
    with pytest.raises(IndexError, match="index 6"):
        list(feed(DataLoader(TensorDataset(torch.arange(6.0)), 2, sampler=[5, 6])).batches())


def test_what_cannot_be_shared_says_so() -> None:
    with pytest.raises(ConfigError, match=r"train_loader has batch_size=None.*add_dist_sampler=False"):
        feed(loader(batch_size=None), Seat(0, 2))
    with pytest.raises(ConfigError, match=r"validation_loader must be a DataLoader .*, not a int"):
        feed(3, training=False)
    with pytest.raises(ConfigError, match=r"train_loader must be .*, not a list_iterator"):
        feed(iter([1, 2]))


def test_unequal_data_sets_are_told_by_worker() -> None:
    class Unequal(Seat):
        def gather_integers(self, value: int) -> list[int]:
            return [value, value - 1]

    with pytest.raises(ConfigError, match=r"train_loader has \[10, 9\] samples on workers 0 to 1"):
        feed(loader(batch_size=2), Unequal(0, 2))


def test_plain_iterables_are_left_whole_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    own = [1, 2, 3]
    assert feed(own, Seat(0, 2), training=False).loader is own
    assert "can't be shared among the 2 workers" in caplog.text
