"""Loaders, models and optimizers that are prepared: no sampler, copy or schedule is lost."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import io
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trainkit.errors import ConfigError
from trainkit.plugins.profile import ranks
from trainkit.plugins.profile.rank_meter import RankMeter
from trainkit.train.torch import (
    accelerate,
    backward,
    libraries,
    prepare,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
)

DATA = TensorDataset(torch.arange(8.0))


@pytest.fixture
def two_workers() -> Iterator[None]:
    """The first of two ranks, by the process group of torch in which the others are left out."""
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def half_precision() -> Iterator[None]:
    accelerate(amp=True)
    yield
    accelerate(amp=False)


class Own(RandomSampler):
    """A sampler of the user's own."""


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(4)),
        WeightedRandomSampler([1.0] * 8, 8),
        RandomSampler(DATA, replacement=True),
        RandomSampler(DATA, num_samples=4),
        SequentialSampler(range(4)),
        Own(DATA),
    ],
)
def test_a_sampler_of_ones_own_is_not_dropped(sampler: Sampler[int]) -> None:
    loader: DataLoader[Any] = DataLoader(DATA, batch_size=2, sampler=sampler)
    with pytest.raises(
        ConfigError, match=f"would replace your own {type(sampler).__name__}.*add_dist_sampler=False"
    ):
        prepare_data_loader(loader)
    assert prepare_data_loader(loader, add_dist_sampler=False).sampler is sampler


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_are_shared(shuffle: bool) -> None:
    loader = prepare_data_loader(DataLoader(DATA, batch_size=2, shuffle=shuffle))
    assert isinstance(loader.sampler, DistributedSampler)
    assert loader.sampler.shuffle is shuffle
    assert [len(features) for (features,) in loader] == [2, 2]


class Endless(IterableDataset[int]):
    """A stream of the same samples for each worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.usefixtures("two_workers")
def test_a_stream_is_shared() -> None:
    stream: DataLoader[Any] = DataLoader(Endless())
    assert [int(number) for number in prepare_data_loader(stream, add_dist_sampler=False)] == [0, 1, 2, 3]
    shared = prepare_data_loader(stream)
    assert [int(number) for number in shared] == [0, 2]
    assert [int(number) for number in prepare_data_loader(shared)] == [0, 2]


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"needs a DataLoader, not a list: pass torch\.utils\.data\.DataLoader"
    ):
        prepare_data_loader([1, 2])  # type: ignore[arg-type]


@pytest.mark.usefixtures("two_workers")
def test_batches_of_a_share_are_left_alone() -> None:
    batches = BatchSampler(DistributedSampler(DATA), batch_size=2, drop_last=False)
    loader: DataLoader[Any] = DataLoader(DATA, batch_sampler=batches)
    assert prepare_data_loader(loader).batch_sampler is batches


@pytest.mark.usefixtures("two_workers")
def test_batches_of_ones_own_are_refused() -> None:
    batches = BatchSampler(SequentialSampler(DATA), batch_size=2, drop_last=False)
    with pytest.raises(ConfigError, match="this loader has its own batch_sampler"):
        prepare_data_loader(DataLoader(DATA, batch_sampler=batches))


class Line(nn.Module):
    """A linear layer, with a forward whose arguments have names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, features: torch.Tensor) -> Any:
        return self.layer(features)


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("copied", [copy.deepcopy, saved])
def test_copies_of_a_model_in_half_precision_have_weights_of_their_own(copied: Any) -> None:
    model, features = prepare_model(Line()), torch.ones(1, 2)
    other = copied(model)
    before = model(features)
    assert before.dtype is other(features).dtype is torch.bfloat16
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(features).item() == 0
    assert torch.equal(model(features), before)


@pytest.mark.usefixtures("half_precision")
def test_a_forward_in_half_precision_is_the_models() -> None:
    assert list(inspect.signature(prepare_model(Line()).forward).parameters) == ["features"]
    model = nn.Identity()
    plain = Line()
    model.forward = plain.forward  # type: ignore[method-assign]
    features = torch.ones(1, 2)
    assert torch.equal(prepare_model(model)(features), prepare_model(plain)(features))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("first", [False, True], ids=["schedule after", "schedule before"])
def test_a_schedule_takes_an_optimizer_that_scales_back(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # accelerate() makes one on a GPU only; torch has one for CPUs that computes the same.
    monkeypatch.setattr(prepare._Precision, "scaler", torch.amp.GradScaler("cpu"))
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if first else None
    optimizer = prepare_optimizer(optimizer)
    schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for expected in (0.0, -0.5):
        optimizer.zero_grad()
        backward(weight.sum())
        optimizer.step()
        schedule.step()
        assert weight.item() == expected
    assert schedule.get_last_lr() == [0.25]


class Epochs(DataLoader[Any]):
    """Loader with a method of its own."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_prepared_loader_has_the_methods_of_the_users_class() -> None:
    loader: Any = prepare_data_loader(Epochs(DATA))
    for one in (loader, pickle.loads(pickle.dumps(loader))):
        one.set_epoch(3)
        assert one.epoch == 3
        with pytest.raises(AttributeError, match="nonesuch"):
            _ = one.nonesuch


def test_a_loader_is_prepared_once() -> None:
    again: Any = prepare_data_loader(prepare_data_loader(DataLoader(DATA)))
    assert type(again._loader) is DataLoader


class Fragile:
    """Iterator that raises once; its batches have a shape that can't be had."""

    def __init__(self) -> None:
        self._taken = 0

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._taken += 1
        if self._taken == 2:
            raise OSError("a bad sample")
        if self._taken > 3:
            raise StopIteration
        return self


def test_what_is_counted_goes_on_after_an_error(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    meter = RankMeter(0, 1, trainer="t", group="g")
    batches: Any = meter.metered(Fragile())
    assert len(batches) == 3
    assert isinstance(next(batches), Fragile)
    assert caplog.text.count("no shape") == 1
    with pytest.raises(OSError, match="a bad sample"):
        next(batches)
    meter.page.due = 0  # as by who asks for a trace
    assert len(list(batches)) == 1
    assert caplog.text.count("no shape") == 1
    assert meter.page.batches == 2
    meter.page.folder, meter.page.steps, meter.page.asked, meter.page.due = os.fsencode(tmp_path), 1, 1, 0
    assert len(list(meter.metered(iter(range(3))))) == 3
    assert meter.page.answered == 1 and meter.page.error == b"" and any(tmp_path.iterdir())
    meter.close()


@pytest.mark.parametrize("sign", ["\u5b9e", "\U0001f600", "\x01", '"', "\udcff"])
def test_names_of_any_signs_are_told_as_far_as_they_have_room(sign: str) -> None:
    def told() -> list[str]:
        return [row["trainer"] + row["group"] for row in ranks.rows([os.getpid()]) if row["rank"] == 77]

    meter = RankMeter(77, 78, trainer="first" + sign * 500, group=sign * 500 + "last")
    (name,) = told()
    seen = sign.encode(errors="replace").decode()
    assert name.startswith("first" + seen * 60) and name.endswith(seen * 60 + "last")
    assert set(name) == set("firstlast" + seen)
    meter.close()
    assert told() == []


@pytest.mark.filterwarnings("ignore")
def test_a_recording_ends_with_its_thread() -> None:
    meter = RankMeter(0, 1, trainer="t", group="g")
    meter.page.steps, meter.page.asked = 9, 1
    thread = threading.Thread(target=lambda: list(meter.metered(iter([1, 2]))))
    thread.start()
    thread.join()
    assert meter._recording is not None
    assert list(meter.metered(iter([1, 2]))) == [1, 2]
    assert meter._recording is None
    assert meter.page.answered == 1
    meter.close()


STATE = """
import torch

class PartialState:
    num_processes = 1
    device = torch.device("cpu")
    mixed_precision = "fp16"

    def __init__(self):
        pass

class AcceleratorState(PartialState):
    pass
"""


def test_a_library_is_checked_for_all_who_asked_once_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks for it first, without importing it, changes nothing."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    (tmp_path / "accelerate" / "state.py").write_text(STATE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("accelerate", "accelerate.state"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    told: list[str] = []
    libraries.watch_ranks(0, 2, told.append)
    libraries.watch_libraries()
    libraries.watch_libraries()  # as where several workers run in this process
    assert importlib.util.find_spec("accelerate.state") is not None
    state: Any = importlib.import_module("accelerate.state")
    state.PartialState()
    assert len(told) == 1 and "Accelerate counts 1 process, but there are 2 ranks" in told[0]
    with pytest.raises(ConfigError, match="mixed_precision='fp16', and this worker has no GPU"):
        state.AcceleratorState()
