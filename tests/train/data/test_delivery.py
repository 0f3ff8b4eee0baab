"""Batches reach the default steps on the device, one ahead; a step of one's own gets them as they are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.train.operators import Digits, alone, make_parts, plain_losses, train_alone
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.data import prefetch as module
from trainkit.train.data.prefetch import DevicePrefetcher, pinned

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"
)


def test_on_a_cpu_nothing_comes_between_loader_and_step() -> None:
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.zeros(4, 2)), 2)
    device = torch.device("cpu")
    assert pinned(loader, device) is loader
    assert DevicePrefetcher(device, channels_last=False).ahead(loader) is loader


class Streams:
    """Stands in for CUDA's streams, and notes who waits for whom."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def wait_stream(self, other: Any) -> None:
        self.events.append("wait")


def test_a_batch_is_under_way_before_the_step_ahead_of_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the computing stream waits for is the step's own batch, not the one behind it."""
    events: list[str] = []
    streams = Streams(events)
    monkeypatch.setattr(module.torch.cuda, "Stream", lambda device: streams)
    monkeypatch.setattr(module.torch.cuda, "current_stream", lambda device: streams)
    monkeypatch.setattr(module.torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(module, "_pin", lambda tensor: tensor)

    def move(batch: Any) -> Any:
        events.append(f"copy {int(batch[0])}")
        return batch

    batches = [(torch.tensor(index), torch.tensor(0)) for index in range(3)]
    brought = module._on_side_stream(batches, torch.device("cuda"), move)
    events.extend(f"step {int(batch[0])}" for batch in brought)
    assert events == ["copy 0", "wait", "copy 1", "step 0", "wait", "copy 2", "step 1", "wait", "step 2"]
    assert list(module._on_side_stream([], torch.device("cuda"), move)) == []


def test_only_the_default_steps_have_their_batches_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr(DevicePrefetcher, "ahead", lambda self, batches: met.append(batches) or batches)

    class Plain(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            model, optimizer, criterion, train, _ = make_parts(config)
            self.register(models=model, optimizers=optimizer, criterion=criterion)
            self.register_data(train_loader=train)

    for cls, times in ((Plain, 1), (Digits, 0)):
        met.clear()
        train_alone(alone(cls, {"samples": 64}), 1)
        assert len(met) == times


class Default(TrainingOperator):
    """Data as `config["loaders"]` and `config["on_gpu"]` say, the default steps."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, criterion, train, _ = make_parts(config)
        data: Any = train.dataset
        if config["on_gpu"]:
            data = TensorDataset(*(tensor.to(self.device) for tensor in data.tensors))
        self.loader: DataLoader[Any] = DataLoader(data, config[BATCH_SIZE], num_workers=config["loaders"])
        self.register(models=model, optimizers=optimizer, criterion=criterion)
        self.register_data(train_loader=self.loader)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(("loaders", "on_gpu"), [(0, False), (2, False), (0, True)])
def test_gpu_batches_brought_ahead_give_the_plain_loops_losses(loaders: int, on_gpu: bool) -> None:
    config = {"samples": 500, BATCH_SIZE: 48, "shuffle": False, "loaders": loaders, "on_gpu": on_gpu}
    with TorchTrainer(training_operator_cls=Default, config=config) as trainer:
        plain = plain_losses(config, 22)
        for epoch in range(2):
            last = trainer.train()["last_train_loss"]
            assert last == pytest.approx(plain[11 * epoch + 10], abs=1e-9)
        read = trainer.apply_all_operators(
            lambda op: (op.loader.pin_memory, op._train_feed.loader.pin_memory)  # type: ignore[attr-defined]
        )
        assert read == [(False, loaders > 0)]
