"""Job of all sides of `benchmarks.gpu`: ResNet-50 in bf16 with channels_last, on images of noise."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import ResNet, resnet50
from torchvision.models.resnet import BasicBlock

from trainkit.train import BATCH_SIZE, TrainingOperator


@dataclass(frozen=True)
class Sizes:
    """Sizes of one run.

    Attributes:
        model: "resnet50", or a smaller model.
        pixels: width and height of an image.
        batch: number of images for a step of one worker.
        steps: number of steps in a block.
        blocks: number of timed blocks of each side.
        loaders: number of processes that make the batches.
    """

    model: str = "resnet50"
    pixels: int = 224
    batch: int = 64
    steps: int = 40
    blocks: int = 15
    loaders: int = 4


SMALL = Sizes(model="resnet10", pixels=8, batch=4, steps=1, blocks=1, loaders=0)


class Noise(Dataset[Any]):
    """Data set of a given number of noise images, some of which are equal."""

    def __init__(self, count: int, pixels: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(min(count, 64), 3, pixels, pixels, generator=generator)
        self.labels = torch.randint(1000, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index % len(self.images)], self.labels[index]


def make_model(sizes: Sizes) -> nn.Module:
    """Return the network, with the same weights each time."""
    torch.manual_seed(0)
    return resnet50() if sizes.model == "resnet50" else ResNet(BasicBlock, [1, 1, 1, 1])


def make_optimizer(model: nn.Module, sizes: Sizes) -> torch.optim.Optimizer:
    """Return SGD, with momentum and weight decay as for ImageNet, but without them for a small network.

    FSDP2 computes how each kind of operation is sharded, which takes longer than all else in a small network.
    """
    if sizes.model != "resnet50":
        return torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def make_loader(sizes: Sizes, batch: int, workers: int = 1, sampler: Any = None) -> DataLoader[Any]:
    """Return a loader with a block's batches for `workers` workers; its memory is pinned if GPUs exist."""
    return DataLoader(
        Noise(sizes.steps * sizes.batch * workers, sizes.pixels),
        batch,
        sampler=sampler,
        num_workers=sizes.loaders,
        persistent_workers=sizes.loaders > 0,
        pin_memory=torch.cuda.is_available(),
    )


def plain_steps(model: nn.Module, optimizer: Any, loader: Any, device: torch.device, steps: int) -> float:
    """Return the seconds of `steps` steps of the plain loop, with the same settings as the trainer's."""
    criterion = nn.CrossEntropyLoss()
    start = time.perf_counter()
    model.train()
    losses = []
    for images, labels in islice(loader, steps):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    # This is the only wait for the device, as in the trainer.
    torch.stack(losses).mean().item()
    return time.perf_counter() - start


class Images(TrainingOperator):
    """The job as a training operator."""

    def setup(self, config: dict[str, Any]) -> None:
        """Register the same objects as in the plain script."""
        sizes = config["sizes"]
        model = make_model(sizes)
        self.register(models=model, optimizers=make_optimizer(model, sizes), criterion=nn.CrossEntropyLoss())
        # The workers share a loader whose samples are enough for all of them.
        self.register_data(train_loader=make_loader(sizes, config[BATCH_SIZE], workers=config["data_ways"]))


def peak_bytes(operator: Any) -> int:
    """Return the peak memory of this worker's tensors on its GPU, in bytes."""
    return torch.cuda.max_memory_allocated(operator.device)
