"""Train a ResNet-18 on CIFAR-10.

    python -m recipes.cifar10 --workers 2 --precision bf16 --compile --loaders 4   # two GPUs
    python -m recipes.cifar10 --workers 2 --precision bf16 --compile --loaders 4 --resume
    python -m recipes.cifar10 --data synthetic --epochs 3 --limit 100 --lr 0.02   # nothing to fetch

A full run needs a GPU for each worker: an epoch is 1.7e14 operations, half an hour on two CPU cores. Missing
files of CIFAR-10 are fetched into `data`. After each epoch the program prints loss and accuracy, and writes a
checkpoint, `results/cifar10/checkpoint`. With `--resume` an interrupted run continues from this checkpoint,
on any number of workers.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models import resnet18

from recipes import cifar
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator


def network() -> nn.Module:
    """Return a ResNet-18 for small images: (n, 3, 32, 32) to (n, 10) logits.

    The first layer is as in He et al. 2015, arXiv:1512.03385, for CIFAR-10: 3 by 3 filters, without pooling.
    """
    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


class ImageClassifier(TrainingOperator):
    """The model and its data; trainkit's own loops train it."""

    def setup(self, config):
        torch.manual_seed(config["seed"])
        model = network()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        training, validation = cifar.load(config["folder"], config["data"], config["limit"])
        steps = math.ceil(len(training) / (config[BATCH_SIZE] * self.world_size))
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config["epochs"] * steps)
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.register(models=model, optimizers=optimizer, criterion=loss, schedulers=decay)
        loading = {"num_workers": config["loaders"], "pin_memory": self.use_gpu}
        self.register_data(
            train_loader=DataLoader(training, config[BATCH_SIZE], shuffle=True, **loading),
            validation_loader=DataLoader(validation, config[BATCH_SIZE], **loading),
        )


def train(trainer: TorchTrainer, checkpoint: Path, epochs: int, finished: int) -> None:
    """Train from epoch `finished` + 1 to `epochs`; save a checkpoint after each epoch."""
    for epoch in range(finished + 1, epochs + 1):
        training, validation = trainer.train(), trainer.validate()
        trainer.save(checkpoint)
        print(
            f"epoch {epoch:3}  loss {training['train_loss']:.4f}  "
            f"validation loss {validation['val_loss']:.4f}  accuracy {validation['val_accuracy']:.2%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1, help="%(default)s")
    parser.add_argument("--precision", default="32", choices=["32", "bf16", "fp16"], help="%(default)s")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--epochs", type=int, default=30, help="%(default)s")
    parser.add_argument("--batch-size", type=int, default=128, help="over all workers (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.1, help="at the start; it falls to 0 (%(default)s)")
    parser.add_argument(
        "--loaders", type=int, default=0, help="processes that load, per worker (%(default)s)"
    )
    parser.add_argument("--data", default="cifar10", choices=["cifar10", "synthetic"], help="%(default)s")
    parser.add_argument("--folder", type=Path, default=Path("data"), help="of the files (%(default)s)")
    parser.add_argument("--limit", type=int, help="training images to use; default: all")
    parser.add_argument("--output", type=Path, default=Path("results/cifar10"), help="%(default)s")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output")
    args = parser.parse_args()

    try:
        cifar.prepare(args.folder, args.data)
    except OSError as error:
        parser.error(str(error))
    names = ("epochs", "lr", "loaders", "data", "limit")
    config = {name: getattr(args, name) for name in names}
    config |= {"folder": args.folder.absolute(), "seed": 0, BATCH_SIZE: args.batch_size}
    checkpoint = args.output / "checkpoint"
    with TorchTrainer(
        training_operator_cls=ImageClassifier,
        config=config,
        num_workers=args.workers,
        precision=args.precision,
        compile=args.compile,
        scheduler_step_freq="batch",
    ) as trainer:
        finished = 0
        if args.resume:
            trainer.load(checkpoint)
            finished = trainer.state_dict()["epoch"]
        train(trainer, checkpoint, args.epochs, finished)
    print(f"checkpoint: {checkpoint}")


if __name__ == "__main__":
    main()
