"""Continuing in the middle of an epoch: the next batch, for any number of workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler

from tests.train.torch.test_resumed_loader import KeptStream, Numbered, Stream
from trainkit.train.checkpoint.state import generator_states, load_generator_states
from trainkit.train.data.feed import Feed, make_feed
from trainkit.train.data.sharding import BatchWeight
from trainkit.train.distributed.process_group import ProcessGroup


def seed(value: int) -> None:
    torch.default_generator.manual_seed(value)
    random.seed(value)


class Seat(ProcessGroup):
    """One of several workers that run one after another: worker 0 first, whose broadcasts the others read."""

    def __init__(self, rank: int, world_size: int, sent: list[list[int]]) -> None:
        self.rank = rank
        self.world_size = world_size
        self._sent = sent
        self._read = 0

    def gather_integers(self, value: int) -> list[int]:
        return [value] * self.world_size

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        if self.rank == 0:
            self._sent.append(list(values))
        self._read += 1
        return self._sent[self._read - 1]


class Workers:
    """Feeds of all workers over equal data."""

    def __init__(
        self,
        samples: int,
        batch_size: int,
        workers: int,
        kind: str,
        *,
        drop_last: bool,
        every: int = 1,
        total: int | None = None,
    ) -> None:
        sent: list[list[int]] = []
        self.feeds = [
            make_feed(
                _loader(Numbered(samples), batch_size, kind, drop_last),
                group=Seat(rank, workers, sent),
                training=True,
                split=True,
                every=every,
                total=total,
            )
            for rank in range(workers)
        ]
        for feed in self.feeds:
            feed.stateful = kind == "kept stream"
        self.random = [torch.Generator().manual_seed(3 + rank).get_state() for rank in range(workers)]

    def train(self, most: int | None, num_steps: int | None = None) -> list[list[int]]:
        """Take at most `most` batches, with random draws between them; return the global batches, sorted."""
        parts = [list(self._part(rank, feed, most, num_steps)) for rank, feed in enumerate(self.feeds)]
        steps = max(map(len, parts))
        assert {len(part) for part in parts} == {steps}
        return [sorted(i for part in parts for i in part[step]) for step in range(steps)]

    def _part(self, rank: int, feed: Feed, most: int | None, num_steps: int | None) -> Iterator[list[int]]:
        torch.set_rng_state(self.random[rank])
        batches = feed.batches(1, num_steps)
        for _ in range(10**6 if most is None else most):
            if (batch := next(batches, None)) is None:
                feed.end_epoch()
                break
            torch.rand(3)  # such as dropout
            feed.done = feed.taken
            yield batch.data.tolist() if batch.weight.averaged else []
        self.random[rank] = torch.get_rng_state()

    def states(self) -> list[dict[str, Any]]:
        return [{**feed.state(), "random": held} for feed, held in zip(self.feeds, self.random, strict=True)]

    def load(self, states: list[dict[str, Any]]) -> None:
        for rank, feed in enumerate(self.feeds):
            position = {"position": {**states[0]["position"], "generators": {}}}
            feed.load_state(states[rank] if rank < len(states) else position)
            if rank < len(states):
                self.random[rank] = states[rank]["random"]


def _loader(data: Numbered, batch_size: int, kind: str, drop_last: bool) -> DataLoader[int]:
    samples = len(data)
    if kind.endswith("stream"):
        stream = KeptStream(samples) if kind == "kept stream" else Stream(samples)
        return DataLoader(stream, batch_size, drop_last=drop_last)
    sampler: Sampler[int] | None = None
    if kind == "weighted":
        sampler = WeightedRandomSampler([1.0] * samples, samples, replacement=False)
    generator = torch.Generator().manual_seed(4) if kind == "generator" else None
    shuffle = kind in ("shuffle", "generator")
    return DataLoader(
        data, batch_size, shuffle=shuffle, sampler=sampler, generator=generator, drop_last=drop_last
    )


KINDS = st.sampled_from(["in order", "shuffle", "generator", "weighted", "stream", "kept stream"])
SHARED = st.sampled_from([(12, 1), (6, 2), (4, 3), (3, 4), (3, 5), (2, 7)])
"""Largest batch size of a worker, and number of workers, for a global batch of 12."""


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 90), KINDS, st.booleans(), st.sampled_from([None, 3, 11, 20]))
def test_the_next_batches_are_the_same_on_any_number_of_workers(
    data: st.DataObject, samples: int, kind: str, drop_last: bool, num_steps: int | None
) -> None:
    def workers(shape: tuple[int, int]) -> Workers:
        return Workers(samples, *shape, kind, drop_last=drop_last, total=12)

    undisturbed = workers((12, 1))
    whole = undisturbed.train(None, num_steps)
    seen: list[list[int]] = []
    some = workers(data.draw(SHARED))
    for _ in range(3):
        seen += some.train(data.draw(st.integers(1, 4)), num_steps)
        if not all(feed.is_exact(feed.done) for feed in some.feeds):  # the epoch has ended
            break
        states = some.states()
        some = workers(data.draw(SHARED))
        some.load(states)
    else:
        seen += some.train(None, num_steps)
    assert seen == whole
    assert some.train(None, num_steps) == undisturbed.train(None, num_steps)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 90),
    KINDS,
    st.tuples(st.integers(1, 7), st.integers(1, 4)),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_each_sample_comes_once_if_the_global_batch_changes(
    samples: int, kind: str, shape: tuple[int, int], now: int, steps: int
) -> None:
    before = Workers(samples, *shape, kind, drop_last=False)
    seen = before.train(steps)
    states = before.states()
    if "position" in states[0]:
        after = Workers(samples, shape[0], now, kind, drop_last=False, every=2)
        after.load(states)
        seen += after.train(None)
    assert sorted(i for batch in seen for i in batch) == list(range(samples))


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(6, 60), st.sampled_from([(6, 1), (3, 2), (2, 3)]), st.sampled_from([2, 3]))
def test_batches_that_form_a_step_keep_their_weights(
    data: st.DataObject, samples: int, shape: tuple[int, int], every: int
) -> None:
    num_steps = data.draw(st.sampled_from([None, 4, 9, 15]))

    def weights(feed: Feed, most: int | None = None) -> list[BatchWeight]:
        found = []
        for batch in itertools.islice(feed.batches(1, num_steps), most):
            found.append(batch.weight)
            feed.done = feed.taken
        return found

    def last() -> Feed:
        workers = Workers(samples, *shape, "in order", drop_last=False, every=every)
        return workers.feeds[-1]

    whole = weights(last())
    begun = last()
    closing = [index + 1 for index, weight in enumerate(whole) if weight.closes_step]
    first = weights(begun, data.draw(st.sampled_from(closing)))
    rest = last()
    rest.load_state(begun.state())
    assert first + weights(rest) == whole


def test_nothing_is_loaded_to_be_thrown_away() -> None:
    before = Workers(1000, 10, 1, "shuffle", drop_last=False)
    before.train(90)
    after = Workers(1000, 10, 1, "shuffle", drop_last=False)
    after.load(before.states())
    assert len(after.train(None)) == 10
    assert after.feeds[0].loader.dataset.loaded == 100  # type: ignore[attr-defined]


class Augmented(Numbered):
    def __getitem__(self, index: int) -> Any:
        return index, random.random(), torch.rand(())


@pytest.mark.parametrize("batch_sampler", [False, True])
def test_augmentation_and_own_batch_samplers_continue_exactly(batch_sampler: bool) -> None:
    def feed() -> Feed:
        data = Augmented(40)
        batches = [[i, (i * 7) % 40] for i in range(40)]
        loader: DataLoader[Any] = (
            DataLoader(data, batch_sampler=batches) if batch_sampler else DataLoader(data, 3, shuffle=True)
        )
        return make_feed(loader, group=ProcessGroup(), training=True, split=True)

    def run(own: Feed, state: Any = None, most: int = 100) -> tuple[list[Any], Any]:
        if state is not None:
            held, generators = state
            own.load_state(held)
            load_generator_states(generators)
        taken = []
        for batch in own.batches(0):
            taken.append([part.tolist() for part in batch.data])
            own.done = own.taken
            if len(taken) == most:
                break
        return taken, (own.state(), generator_states())

    seed(1)
    whole, _ = run(feed())
    seed(1)
    first, state = run(feed(), most=5)
    seed(50)
    rest, _ = run(feed(), state)
    assert first + rest == whole
