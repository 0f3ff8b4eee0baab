"""Shards of a data set: even, disjoint, drawn by a seed, and gone on with in the middle."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainkit.errors import ConfigError
from trainkit.train import DataConfig
from trainkit.train.torch.shards import DatasetShard, split


class Stream:
    """The numbers below `count`, as an iterable that can start again."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Any:
        return iter(range(self._count))


def shards(count: int, workers: int, seed: int | None = None) -> list[DatasetShard]:
    return list(split(range(count), workers, "train", DataConfig(seed=seed)))


counts = st.integers(4, 40)
workers = st.integers(1, 4)
seeds = st.none() | st.integers(0, 99)


@given(counts, workers, seeds)
def test_shards_are_even_and_disjoint(count: int, ways: int, seed: int | None) -> None:
    parts = [list(shard) for shard in shards(count, ways, seed)]
    assert {len(part) for part in parts} == {count // ways}
    everything = list(itertools.chain(*parts))
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(range(count))


@given(counts, workers)
def test_a_stream_is_dealt_in_full_rounds(count: int, ways: int) -> None:
    parts = [list(shard) for shard in split(Stream(count), ways, "train", DataConfig())]
    assert parts == [list(range(rank, count // ways * ways, ways)) for rank in range(ways)]


@given(counts, workers, seeds, st.data())
def test_a_pass_goes_on_where_its_state_was_kept(count: int, ways: int, seed: int | None, draw: Any) -> None:
    source, again = shards(count, ways, seed)[0], shards(count, ways, seed)[0]
    whole = [list(source), list(source)]
    interrupted = shards(count, ways, seed)[0]
    list(interrupted)
    taken = draw.draw(st.integers(0, len(whole[1])))
    first = list(itertools.islice(interrupted, taken))
    again.load_state_dict(interrupted.state_dict())
    # A pass that was taken to its last sample, and not beyond, is not over yet.
    assert first + list(again) == whole[1]


@given(counts, workers, seeds, st.integers(1, 9), st.booleans(), st.data())
def test_shuffled_batches_go_on_where_their_state_was_kept(
    count: int, ways: int, seed: int | None, size: int, streamed: bool, draw: Any
) -> None:
    data = Stream(count) if streamed else range(count)
    whole, interrupted, again = (split(data, ways, "train", DataConfig(seed=seed))[0] for _ in range(3))
    options = {"batch_size": 2, "local_shuffle_buffer_size": size, "local_shuffle_seed": 3}

    def numbers(batches: Any) -> list[int]:
        return [number for batch in batches for number in batch.tolist()]

    expected = numbers(whole.iter_torch_batches(**options))
    assert sorted(expected) == sorted(split(data, ways, "train", DataConfig(seed=seed))[0])
    taken = draw.draw(st.integers(0, len(expected) // 2))
    first = numbers(itertools.islice(interrupted.iter_torch_batches(**options), taken))
    again.load_state_dict(interrupted.state_dict())
    assert first + numbers(again.iter_torch_batches(**options)) == expected


@given(counts, workers, seeds, st.data())
def test_a_pass_that_is_broken_off_leaves_the_next_one_whole(
    count: int, ways: int, seed: int | None, draw: Any
) -> None:
    whole, shard = shards(count, ways, seed)[0], shards(count, ways, seed)[0]
    epochs = [list(whole) for _ in range(3)]
    taken = draw.draw(st.integers(0, count // ways))
    assert list(itertools.islice(shard, taken)) == epochs[0][:taken]
    for batch in shard.iter_torch_batches(batch_size=1):
        assert batch.tolist() == epochs[1][:1]
        break
    assert list(shard) == epochs[2]


@given(counts, workers, seeds)
def test_passes_at_the_same_time_are_epochs_of_their_own(count: int, ways: int, seed: int | None) -> None:
    whole, shard = shards(count, ways, seed)[0], shards(count, ways, seed)[0]
    epochs = [list(whole) for _ in range(3)]
    assert list(zip(shard, shard, strict=True)) == list(zip(epochs[0], epochs[1], strict=True))
    assert list(shard) == epochs[2]


@given(counts, workers, seeds)
def test_a_state_is_that_of_the_latest_pass(count: int, ways: int, seed: int | None) -> None:
    shard = shards(count, ways, seed)[0]
    earlier = iter(shard)
    next(earlier)
    latest = iter(shard)
    next(latest)
    list(earlier)
    assert shard.state_dict() == {"epoch": 1, "taken": 1}
    list(latest)
    assert shard.state_dict() == {"epoch": 2, "taken": 0}


def test_a_loaded_state_is_used_once() -> None:
    shard = shards(6, 1)[0]
    shard.load_state_dict({"epoch": 4, "taken": 2})
    assert [list(shard), list(shard)] == [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert shard.state_dict() == {"epoch": 6, "taken": 0}


def test_samples_are_counted_without_beginning_a_pass() -> None:
    for data in (list(range(7)), Stream(7)):
        shard = split(data, 2, "train", DataConfig())[0]
        assert (shard.count(), shard.state_dict()["epoch"]) == (3, 0)
        assert len(list(shard)) == 3


def test_an_epoch_has_an_order_of_its_own() -> None:
    shard = shards(40, 2, seed=0)[0]
    first, second = list(shard), list(shard)
    assert first != second
    shard.set_epoch(0)
    assert list(shard) == first
    assert [shards(40, 2, seed=0)[0][index] for index in range(20)] == first


def test_a_loader_takes_a_shard() -> None:
    loader: DataLoader[Any] = DataLoader(shards(10, 2)[1], batch_size=2)  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[1, 3], [5, 7], [9]]


def test_a_loader_gets_another_order_when_the_epoch_is_set() -> None:
    shard, passes = shards(40, 2, seed=0)[0], shards(40, 2, seed=0)[0]
    loader: DataLoader[Any] = DataLoader(shard, batch_size=20)  # type: ignore[arg-type]
    first, second = list(passes), list(passes)
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in loader] == [first]
    shard.set_epoch(1)
    assert [batch.tolist() for batch in loader] == [second]


def test_the_order_is_drawn_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    randperm = torch.randperm

    def counted(count: int, **options: Any) -> torch.Tensor:
        drawn.append(count)
        return randperm(count, **options)

    monkeypatch.setattr(torch, "randperm", counted)
    shard = shards(40, 2, seed=0)[0]
    for epoch in range(2):
        shard.set_epoch(epoch)
        assert len([shard[index] for index in range(20)]) == 20
    assert drawn == [40, 40]


class Point(NamedTuple):
    """A sample by names."""

    x: Any
    y: int


def test_samples_with_names_stay_so() -> None:
    (shard,) = split([Point(np.ones(2), i) for i in range(4)], 1, "train", DataConfig())
    for batches in (shard.iter_torch_batches(batch_size=4), shard.iter_batches(batch_size=4)):
        (batch,) = batches
        assert type(batch) is Point
        assert batch.x.shape == (4, 2)
        assert batch.y.tolist() == [0, 1, 2, 3]
    assert isinstance(batch.y, np.ndarray)


def test_batches_are_collated_and_converted() -> None:
    rows = [{"x": [float(i), 1.0], "y": i} for i in range(5)]
    (shard,) = split(rows, 1, "train", DataConfig())
    batches = list(shard.iter_torch_batches(batch_size=2, drop_last=True, dtypes={"y": torch.float64}))
    assert [batch["y"].tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert batches[0]["y"].dtype is torch.float64
    assert [batch["y"].tolist() for batch in shard.iter_batches(batch_size=3)] == [[0, 1, 2], [3, 4]]
    drawn = list(shard.iter_torch_batches(batch_size=5, local_shuffle_buffer_size=5, local_shuffle_seed=1))
    assert sorted(drawn[0]["y"].tolist()) == [0, 1, 2, 3, 4] != drawn[0]["y"].tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "is a int: pass an indexable data set with a length"),
        (iter([1, 2]), "an iterable that can restart"),
        ([1], r"has fewer samples \(1\) than workers \(2\)"),
        ({"a": 1, "b": 2}, "is a dict, which does not define its samples: pass a list"),
        ("text", "is a str, which"),
        (b"bytes", "is a bytes, which"),
        (pd.DataFrame({"a": [1, 2]}), r"is a DataFrame, which .* from to_dict\('records'\) of pandas"),
        (pl.DataFrame({"a": [1, 2]}), "is a DataFrame, which"),
        (pd.Series([1, 2], index=[7, 8]), "is a Series, which"),
    ],
)
def test_what_cant_be_shared_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split(data, 2, "train", DataConfig())


def test_data_that_are_not_shared_are_whole_on_each_worker() -> None:
    first, second = split([1, 2, 3], 2, "valid", DataConfig(datasets_to_split=["train"]))
    assert list(first) == list(second) == [1, 2, 3]


class Counted(IterableDataset[int]):
    """A stream of torch's that knows its length."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter(range(5))


class Sized(Dataset[int]):
    """An indexable data set of torch's."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index >= 5:
            raise IndexError(index)
        return index


@pytest.mark.parametrize("data", [Counted(), Sized()])
def test_data_sets_of_torch_are_dealt(data: Any) -> None:
    assert [list(shard) for shard in split(data, 2, "train", DataConfig())] == [[0, 2], [1, 3]]


def test_a_buffer_holds_a_sample_at_least() -> None:
    with pytest.raises(ConfigError, match="local_shuffle_buffer_size=0: give a whole number of 1 or more"):
        shards(4, 1)[0].iter_torch_batches(local_shuffle_buffer_size=0)
