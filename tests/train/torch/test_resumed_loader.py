"""Prepared loaders that continue in the middle of a pass, on any number of workers."""

from __future__ import annotations

import io
import itertools
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from trainkit import train
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer
from trainkit.train.torch import prepare_data_loader, prepare_model

GLOBAL = 12


class Numbered(Dataset[int]):
    """Samples that are their own index, and note that they were loaded."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.loaded = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        self.loaded += 1
        return index


class Stream(IterableDataset[int]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


class KeptStream(Stream):
    """Stream with a state of its own, which counts what is read."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.read = self.at = self.start = 0

    def __iter__(self) -> Iterator[int]:
        first, self.start = self.start, 0
        for sample in range(first, self.samples):
            self.at = sample + 1
            self.read += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


@contextmanager
def seat(rank: int, workers: int) -> Iterator[None]:
    """One of several workers that run one after another, in a group of torch without the others."""
    if workers == 1:
        yield
        return
    dist.init_process_group("fake", rank=rank, world_size=workers, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def loader_of(samples: int, workers: int, kind: str) -> Any:
    size = GLOBAL // workers
    if kind.endswith("stream"):
        stream = KeptStream(samples) if kind == "kept stream" else Stream(samples)
        return prepare_data_loader(DataLoader(stream, size), use_stateful_dataset=kind == "kept stream")
    data = Numbered(samples)
    if kind == "generator":
        own = torch.Generator().manual_seed(4)
        return prepare_data_loader(DataLoader(data, size, shuffle=True, generator=own))
    if kind == "own share" and workers > 1:
        return prepare_data_loader(DataLoader(data, size, sampler=DistributedSampler(data)))
    loader: Any = prepare_data_loader(DataLoader(data, size, shuffle=kind != "in order"))
    if kind.startswith("epoch"):
        loader.set_epoch(int(kind.removeprefix("epoch")))
    return loader


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a function reads it from its checkpoint."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def taken_by(
    samples: int, workers: int, kind: str, state: dict[str, Any] | None, most: int | None, seed: int
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Take `most` batches of a pass; return the global batches, and the state of each worker."""
    parts, states = [], []
    for rank in range(workers):
        with seat(rank, workers):
            torch.manual_seed(seed + rank)
            loader = loader_of(samples, workers, kind)
            if state is not None:
                loader.load_state_dict(saved(state))
            taken = []
            for batch in itertools.islice(loader, most):
                taken.append(batch.tolist())
                torch.rand(2)  # such as dropout
            parts.append(taken)
            states.append(loader.state_dict())
    steps = len(parts[0])
    assert {len(part) for part in parts} == {steps}
    return [sorted(i for part in parts for i in part[step]) for step in range(steps)], states


KINDS = st.sampled_from(["in order", "shuffle", "generator", "own share", "epoch7", "stream", "kept stream"])
WORKERS = st.sampled_from([1, 2, 3, 4])


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 90), KINDS)
def test_the_rest_of_a_pass_is_the_same_on_any_number_of_workers(
    data: st.DataObject, samples: int, kind: str
) -> None:
    workers, steps = data.draw(WORKERS), -(-samples // GLOBAL)
    whole, _ = taken_by(samples, workers, kind, None, None, 0)
    seen: list[list[int]] = []
    state = None
    for seed in (0, 20, 40):
        most = data.draw(st.integers(0 if state else 1, steps))
        batches, states = taken_by(samples, workers, kind, state, most, seed)
        seen += batches
        if len(seen) < steps:
            state = saved(states[data.draw(st.integers(0, workers - 1))])
        workers = data.draw(WORKERS)
        if len(seen) >= steps:
            break
    else:
        seen += taken_by(samples, workers, kind, state, None, 60)[0]
    full = samples // GLOBAL
    assert seen[:full] == whole[:full]
    assert len(seen) == len(whole) == steps
    left = set(range(samples)) - {i for batch in seen[:full] for i in batch}
    last = [i for batch in seen[full:] for i in batch]
    assert left <= set(last) and len(last) - len(left) < 4  # samples that pad the last batch


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), WORKERS, st.integers(1, 5), KINDS, st.integers(0, 3))
def test_a_pass_on_the_same_workers_continues_exactly(
    samples: int, workers: int, taken: int, kind: str, origin: int
) -> None:
    whole, _ = taken_by(samples, workers, kind, None, None, 0)
    first, states = taken_by(samples, workers, kind, None, taken, 0)
    if len(first) == taken < len(whole):
        state = states[origin % workers]
        assert first + taken_by(samples, workers, kind, state, None, 50)[0] == whole


def test_the_epoch_decides_the_order_on_any_number_of_workers() -> None:
    orders = [taken_by(48, workers, "epoch1", None, None, workers)[0] for workers in (1, 2, 3, 4)]
    assert orders == [orders[0]] * 4
    assert taken_by(48, 1, "epoch2", None, None, 1)[0] != orders[0]


def test_nothing_is_loaded_to_be_thrown_away() -> None:
    data = Numbered(1000)
    loader: Any = prepare_data_loader(DataLoader(data, 10, shuffle=True))
    list(itertools.islice(loader, 90))
    state = loader.state_dict()
    data.loaded = 0
    loader.load_state_dict(state)
    assert len(list(loader)) == 10
    assert data.loaded == 100
    assert len(list(loader)) == 100  # the next pass is whole


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_with_a_state_is_not_read_again(workers: int) -> None:
    with seat(workers - 1, workers):
        loader = loader_of(100, workers, "kept stream")
        list(itertools.islice(loader, 7))
        again = loader_of(100, workers, "kept stream")
        again.load_state_dict(saved(loader.state_dict()))
        assert len(list(again)) == 2
        assert getattr(again.dataset, "source", again.dataset).read == 100 - 7 * GLOBAL
        if workers == 2:
            assert len(list(again)) == 9  # the next pass is whole


class RandomStream(KeptStream):
    """Stream with a state of its own, whose samples are drawn from the global generators."""

    def __iter__(self) -> Iterator[Any]:
        return ((index, torch.rand(())) for index in super().__iter__())


def test_a_shared_stream_draws_the_same_numbers_as_without_the_interruption() -> None:
    with seat(1, 2):
        loader, whole, again = (
            prepare_data_loader(DataLoader(RandomStream(40), 3), use_stateful_dataset=True) for _ in range(3)
        )
        expected = [[part.tolist() for part in batch] for batch in whole]
        first = [[part.tolist() for part in batch] for batch in itertools.islice(loader, 4)]
        again.load_state_dict(saved(loader.state_dict()))  # type: ignore[attr-defined]
        assert first + [[part.tolist() for part in batch] for batch in again] == expected


class BufferedStream(KeptStream):
    """Stream whose shuffle buffer is no part of its state, as in data sets of Hugging Face."""

    def __iter__(self) -> Iterator[int]:
        draws, buffer = random.Random(1), []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) > 4:
                yield buffer.pop(draws.randrange(4))
        yield from buffer


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_reads_ahead_continues_exactly_by_default(workers: int) -> None:
    with seat(workers - 1, workers):
        loader, whole, again = (prepare_data_loader(DataLoader(BufferedStream(40), 3)) for _ in range(3))
        first = [batch.tolist() for batch in itertools.islice(loader, 4)]
        again.load_state_dict(saved(loader.state_dict()))  # type: ignore[attr-defined]
        assert first + [batch.tolist() for batch in again] == [batch.tolist() for batch in whole]


@pytest.mark.parametrize(
    "loader",
    [DataLoader(Numbered(4)), DataLoader(Stream(4)), DataLoader(KeptStream(4), num_workers=1)],
    ids=["map-style", "without a state", "processes"],
)
def test_use_stateful_dataset_needs_a_stream_that_this_process_reads(loader: DataLoader[Any]) -> None:
    with pytest.raises(ConfigError, match="use_stateful_dataset=True is not supported"):
        prepare_data_loader(loader, use_stateful_dataset=True)


class Backwards(Sampler[int]):
    """A sampler of the user's own, with its own generator."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.samples, generator=self.generator).tolist()[::-1])


@pytest.mark.parametrize("kind", ["sampler", "weighted", "batch_sampler", "single", "replacement"])
@pytest.mark.parametrize("processes", [0, 2])
def test_samplers_of_ones_own_continue(kind: str, processes: int) -> None:
    data = Numbered(21)

    def made() -> Any:
        options: dict[str, Any] = {
            "sampler": {"sampler": Backwards(21), "batch_size": 2},
            "weighted": {"sampler": WeightedRandomSampler([1.0] * 21, 30), "batch_size": 4},
            "batch_sampler": {"batch_sampler": [[i, i // 2] for i in range(21)]},
            "single": {"batch_size": None, "shuffle": True},
            "replacement": {"sampler": RandomSampler(data, replacement=True), "batch_size": 3},
        }[kind]
        return prepare_data_loader(DataLoader(data, num_workers=processes, **options))

    torch.manual_seed(3)
    loader = made()
    passes = [[torch.as_tensor(each).tolist() for each in loader] for _ in range(2)]
    after = torch.rand(2)
    torch.manual_seed(3)
    loader = made()
    list(loader)
    first = [torch.as_tensor(each).tolist() for each in itertools.islice(loader, 5)]
    state, generator = saved(loader.state_dict()), torch.get_rng_state()
    torch.manual_seed(9)
    again = made()
    again.load_state_dict(state)
    torch.set_rng_state(generator)
    assert first + [torch.as_tensor(each).tolist() for each in again] == passes[1]
    assert torch.equal(torch.rand(2), after)  # continuing has drawn no random number


def test_a_state_between_passes_begins_the_next_pass() -> None:
    def made() -> Any:
        own = torch.Generator().manual_seed(4)
        return prepare_data_loader(DataLoader(Numbered(7), 2, shuffle=True, generator=own))

    loader, again = made(), made()
    list(loader)
    again.load_state_dict(saved(loader.state_dict()))
    expected = [batch.tolist() for batch in loader]
    assert sorted(itertools.chain(*expected)) == list(range(7))
    assert [batch.tolist() for batch in again] == expected


def test_a_loaded_state_is_the_state_until_the_pass_begins() -> None:
    loader: Any = prepare_data_loader(DataLoader(Numbered(9), 2))
    next(iter(loader))
    state = loader.state_dict()
    again: Any = prepare_data_loader(DataLoader(Numbered(9), 2))
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [batch.tolist() for batch in again] == [[2, 3], [4, 5], [6, 7], [8]]


def test_the_position_of_a_finished_epoch_is_not_taken_for_the_next(caplog: Any) -> None:
    with seat(0, 2):
        loader: Any = loader_of(24, 2, "shuffle")
        loader.sampler.set_epoch(3)
        next(iter(loader))
        state = loader.state_dict()
        again: Any = loader_of(24, 2, "shuffle")
        again.load_state_dict(state)
        again.sampler.set_epoch(4)
        assert len(list(again)) == 2
        assert "belongs to epoch 3, but epoch 4 begins" in caplog.text
        again.load_state_dict(state)
        again.sampler.set_epoch(3)
        assert len(list(again)) == 1


@pytest.mark.parametrize("owner", ["loader", "sampler"])
def test_a_generator_of_the_user_keeps_deciding_the_order(owner: str) -> None:
    def batches(prepares: bool) -> list[list[int]]:
        data, own = Numbered(9), torch.Generator().manual_seed(4)
        sampler = RandomSampler(data, generator=own)
        more: Any = {"sampler": sampler} if owner == "sampler" else {"shuffle": True, "generator": own}
        loader: Any = DataLoader(data, 9, **more)
        if prepares:
            loader = prepare_data_loader(loader)
            loader.set_epoch(1)
        return [batch.tolist() for _ in range(2) for batch in loader]

    assert batches(prepares=True) == batches(prepares=False)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), WORKERS, st.booleans(), st.booleans(), st.integers(0, 3))
def test_a_loop_that_takes_all_batches_ends_the_pass(
    samples: int, workers: int, cuts: bool, drop_last: bool, taken: int
) -> None:
    with seat(0, workers):
        data = Numbered(samples)
        shares = DistributedSampler(data, drop_last=cuts) if workers > 1 else None
        loader: Any = prepare_data_loader(DataLoader(data, 3, sampler=shares, drop_last=drop_last))
        steps = len(loader)
        if taken < steps:
            list(itertools.islice(loader, taken))
            if taken:
                loader.load_state_dict(loader.state_dict())
            for step, _ in zip(range(steps - taken), loader, strict=False):
                at_end = step == steps - taken - 1
                assert "position" in loader.state_dict()  # The loop may still use the batch.
            assert at_end
            assert "position" not in loader.state_dict()
            assert len(list(loader)) == steps


@pytest.mark.parametrize("batches", [[[0, 1], [2], [3]], [[0, 1, 2, 3]]])
def test_a_loop_that_takes_all_batches_of_ones_own_sampler_ends_the_pass(batches: list[list[int]]) -> None:
    loader: Any = prepare_data_loader(DataLoader(Numbered(4), batch_sampler=batches))
    list(itertools.islice(loader, len(batches)))
    assert "position" not in loader.state_dict()


def test_the_state_after_a_break_continues_the_pass() -> None:
    loader: Any = prepare_data_loader(DataLoader(Numbered(9), 2))
    for batch in loader:
        if 3 in batch:
            break
    again: Any = prepare_data_loader(DataLoader(Numbered(9), 2))
    again.load_state_dict(saved(loader.state_dict()))
    assert [batch.tolist() for batch in again] == [[4, 5], [6, 7], [8]]
    assert len(list(loader)) == 5


def test_a_look_at_a_batch_does_not_move_the_position_of_the_loop(caplog: Any) -> None:
    loader: Any = prepare_data_loader(DataLoader(KeptStream(9), 2), use_stateful_dataset=True)
    for step, _ in enumerate(loader):
        next(iter(loader))
        again: Any = prepare_data_loader(DataLoader(Stream(9), 2))
        again.load_state_dict(saved(loader.state_dict()))
        assert sum(map(len, again)) == max(9 - 2 * (step + 1), 0)
    assert "position" not in loader.state_dict()
    assert not caplog.records


def test_a_second_open_pass_is_reported(caplog: Any) -> None:
    loader: Any = prepare_data_loader(DataLoader(Numbered(10), 2))
    held = iter(loader)
    next(held)
    for step, _ in enumerate(loader):
        assert loader.state_dict()["position"]["consumed"] == 2 * (step + 1)
    assert caplog.text.count("two passes over the loader are open") == 1
    assert "position" not in loader.state_dict()


def test_a_loaded_position_is_used_up_by_the_first_batch(caplog: Any) -> None:
    def made() -> Any:
        own = torch.Generator().manual_seed(4)
        return prepare_data_loader(DataLoader(Numbered(12), 2, shuffle=True, generator=own))

    loader, again = made(), made()
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    again.load_state_dict(saved(loader.state_dict()))
    iter(again)
    assert again.state_dict()["position"]["consumed"] == 4
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]
    loader = made()
    list(itertools.islice(loader, 2))
    again.load_state_dict(saved(loader.state_dict()))
    next(iter(again))
    assert not caplog.records
    assert len(list(again)) == 6
    assert "its loop took only one batch" in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_another_number_of_samples_starts_the_pass_again(workers: int, caplog: Any) -> None:
    with seat(0, workers):
        loader: Any = prepare_data_loader(DataLoader(Numbered(20), 2, shuffle=True))
        next(iter(loader))
        more: Any = prepare_data_loader(DataLoader(Numbered(24), 2, shuffle=True))
        more.load_state_dict(saved(loader.state_dict()))
        assert len(list(more)) == 12 // workers
    assert "belongs to a pass over 20 samples, but the loader has 24 samples now" in caplog.text


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_share_made_by_the_program_continues_with_a_warning_by_the_state_of_worker_0(
    shuffle: bool, caplog: Any
) -> None:
    def taken(rank: int, seed: int, state: Any = None, most: int | None = None) -> tuple[list[int], Any]:
        with seat(rank, 2):
            torch.manual_seed(seed)
            own: Any = Subset(Numbered(25), range(rank, 25, 2))
            plain = DataLoader(own, 3, shuffle=shuffle)
            loader: Any = prepare_data_loader(plain, add_dist_sampler=False)
            if state is not None:
                loader.load_state_dict(saved(state))
            samples = [i for batch in itertools.islice(loader, most) for i in batch.tolist()]
            return samples, loader.state_dict()

    _, state = taken(0, 5, most=2)
    first, own = taken(1, 5, most=2)
    for each in (own, state):
        assert not caplog.records
        assert sorted(first + taken(1, 9, each)[0]) == list(range(1, 25, 2))
    assert ("worker 1 continues its own share" in caplog.text) is shuffle


class KeepsPosition(DataLoader[Any]):
    """Loader whose own state includes its position, like torchdata's `StatefulDataLoader`."""

    taken, start = 0, 0

    def __iter__(self) -> Any:
        first, self.start = self.start, 0
        self.taken = first
        for batch in itertools.islice(super().__iter__(), first, None):
            self.taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["taken"]


def test_a_loader_with_a_state_of_its_own_keeps_it() -> None:
    loader: Any = prepare_data_loader(KeepsPosition(Numbered(9), 2))
    list(itertools.islice(loader, 2))
    state = saved(loader.state_dict())
    assert state["loader"] == {"taken": 2}
    again: Any = prepare_data_loader(KeepsPosition(Numbered(9), 2))
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[4, 5], [6, 7], [8]]


def test_a_share_made_by_the_program_starts_again_on_another_number_of_workers(caplog: Any) -> None:
    def made(workers: int) -> Any:
        return prepare_data_loader(DataLoader(Numbered(9), 2), add_dist_sampler=workers == 1)

    with seat(0, 2):
        loader = made(2)
        next(iter(loader))
        state = loader.state_dict()
    again = made(1)
    again.load_state_dict(state)
    assert len(list(again)) == 5
    assert "only known for 2 workers" in caplog.text


def step_by_step(config: dict[str, Any]) -> None:
    """Report each step with a checkpoint; worker 1 is killed in the middle of the second epoch, once."""
    context = train.get_context()
    workers, rank = context.get_world_size(), context.get_world_rank()
    data = TensorDataset(torch.arange(50.0, dtype=torch.float64).unsqueeze(1) / 50)
    loader: Any = prepare_data_loader(DataLoader(data, GLOBAL // workers, shuffle=True, num_workers=1))
    plain = torch.nn.Linear(1, 1, dtype=torch.float64)
    torch.nn.init.ones_(plain.weight)
    torch.nn.init.zeros_(plain.bias)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    start = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        held = torch.load(Path(checkpoint.path, "held.pt"))
        plain.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        loader.load_state_dict(held["loader"])
        start = held["epoch"]
    model = prepare_model(plain)
    for epoch in range(start, 2):
        if workers > 1:
            loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            (model(x) - 3 * x).square().mean().backward()
            optimizer.step()
            parts: list[Any] = [x.flatten().tolist()]
            if workers > 1:
                parts = [None] * workers
                dist.all_gather_object(parts, x.flatten().tolist())
            samples = sorted(round(each * 50) for part in parts for each in part)
            held = {
                "model": plain.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "epoch": epoch,
            }
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    torch.save(held, Path(folder, "held.pt"))
                own = train.Checkpoint.from_directory(folder)
                train.report({"samples": samples, "weight": plain.weight.item()}, checkpoint=own)
            if rank == 1 and config["killed"] and checkpoint is None and epoch == 1 and GLOBAL - 1 in samples:
                os.kill(os.getpid(), signal.SIGKILL)


def reports(folder: Path, name: str, workers: int = 2, **more: Any) -> Any:
    return TorchTrainer(
        step_by_step,
        train_loop_config={"killed": name == "killed"},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name=name, storage_path=str(folder), verbose=0, failure_config=train.FailureConfig(max_failures=1)
        ),
        **more,
    ).fit()


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_a_function_loses_no_step_and_no_sample(tmp_path: Path) -> None:
    expected = reports(tmp_path, "undisturbed").metrics_dataframe
    assert len(expected) == 10
    found = reports(tmp_path, "killed").metrics_dataframe
    for name in ("samples", "weight"):
        assert list(found[name]) == list(expected[name])
    seventh = tmp_path / "undisturbed"
    checkpoint = next(each for each in sorted(seventh.glob("*/checkpoint_*"))[6:7])
    for workers in (1, 3):
        rest = reports(
            tmp_path, f"on {workers}", workers, resume_from_checkpoint=train.Checkpoint(str(checkpoint))
        ).metrics_dataframe
        assert list(rest["samples"])[:2] == list(expected["samples"])[7:9]
        assert list(rest["weight"])[:2] == pytest.approx(list(expected["weight"])[7:9], abs=1e-12)
        assert len(rest) == 3
