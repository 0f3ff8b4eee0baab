"""Train a ResNet-50 whose layers are on two devices of one worker.

    python -m recipes.resnet50_layers --folder imagenet   # two GPUs
    python -m recipes.resnet50_layers --split layer4      # the second one begins with layer4
    python -m recipes.resnet50_layers --workers 2         # two copies of it, over four GPUs
    python -m recipes.resnet50_layers --cpu --size 64     # the same code, both halves on the CPU

A model that is too large for one GPU can be spread over several: the first half of the network on one GPU,
the rest on the other. Each batch is passed from one to the other. One half waits while the other computes, so
training becomes possible, but not faster. A full run needs two GPUs for each worker. With `--by-hand` the
model contains `.to(...)` calls, as in older scripts, and stays where they put it. Without `--folder` the
images are random numbers, which suffice to show where the layers are and how long a step takes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.models import ResNet, resnet50
from torchvision.models.resnet import Bottleneck
from torchvision.transforms import v2

from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.layers import Layers


class Placed(TrainingOperator):
    """Operator for any model; the strategy `Layers` puts the parts of the model on the worker's devices."""

    def setup(self, config):
        torch.manual_seed(0)
        model = self.network(config["classes"])
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        self.register(models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss())
        loaders = config["loaders"] if config["folder"] else 0
        self.register_data(
            train_loader=DataLoader(images(config), config[BATCH_SIZE], shuffle=True, num_workers=loaders)
        )

    def network(self, classes: int) -> nn.Module:
        return resnet50(num_classes=classes)


def images(config: dict) -> Dataset:
    """Return the images of a folder with a subfolder for each class, such as ImageNet; or random numbers."""
    size = config["size"]
    if config["folder"]:
        scaled = [v2.RandomResizedCrop(size), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        return ImageFolder(config["folder"], transform=v2.Compose(scaled))
    pixels = torch.randn(config["images"], 3, size, size)
    return TensorDataset(pixels, torch.randint(config["classes"], (config["images"],)))


class TwoHalves(ResNet):
    """ResNet-50 with explicit `.to(...)` calls."""

    def __init__(self, classes: int, first: torch.device, second: torch.device) -> None:
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=classes)
        self.second = second
        for name, child in self.named_children():
            child.to(second if name in ("layer3", "layer4", "avgpool", "fc") else first)

    def forward(self, x):
        x = self.layer2(self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x))))))
        x = self.layer4(self.layer3(x.to(self.second)))
        return self.fc(self.avgpool(x).flatten(1))


class ByHand(Placed):
    """Operator for a model that is already on its devices when it is registered, and stays there."""

    def network(self, classes: int) -> nn.Module:
        return TwoHalves(classes, *self.devices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1, help="%(default)s")
    parser.add_argument("--split", help="where the second device begins; default: where it balances")
    parser.add_argument("--by-hand", action="store_true", help="the model places itself")
    parser.add_argument("--cpu", action="store_true", help="both devices are the CPU")
    parser.add_argument("--precision", default="32", choices=["32", "bf16", "fp16"], help="%(default)s")
    parser.add_argument("--epochs", type=int, default=3, help="%(default)s")
    parser.add_argument("--folder", type=Path, help="of images, in a folder for each class; default: random")
    parser.add_argument("--images", type=int, default=1280, help="if they are random (%(default)s)")
    parser.add_argument("--loaders", type=int, default=4, help="processes that read files (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side (%(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="%(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="over all workers (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.01, help="%(default)s")
    args = parser.parse_args()

    names = ("folder", "images", "loaders", "size", "classes", "lr")
    config = {**{name: getattr(args, name) for name in names}, BATCH_SIZE: args.batch_size}
    layers = Layers(split=[args.split] if args.split else None, devices=["cpu", "cpu"] if args.cpu else None)
    with TorchTrainer(
        training_operator_cls=ByHand if args.by_hand else Placed,
        config=config,
        num_workers=args.workers,
        strategy=layers,
        use_gpu=not args.cpu,
        gpus_per_worker=None if args.cpu else 2,
        precision=args.precision,
    ) as trainer:
        for epoch in range(1, args.epochs + 1):
            start = time.perf_counter()
            training = trainer.train()
            speed = training["num_samples"] / (time.perf_counter() - start)
            print(f"epoch {epoch}  loss {training['train_loss']:.4f}  {speed:.0f} images a second")
        places = trainer.apply_all_operators(placement)[0]
    print(", ".join(f"{name}: {place}" for name, place in places.items()))


def placement(operator: TrainingOperator) -> dict[str, str]:
    """Return the device of each child of the model that has parameters."""
    model = getattr(operator.model, "module", operator.model)
    return {
        name: " ".join(sorted({str(parameter.device) for parameter in child.parameters()}))
        for name, child in model.named_children()
        if any(True for _ in child.parameters())
    }


if __name__ == "__main__":
    main()
