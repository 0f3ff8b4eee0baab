"""Train a Lightning module on handwritten digits: once on several workers, or as the trials of a search.

    python -m recipes.lightning_digits                 # two workers; about fifteen seconds on two cores
    python -m recipes.lightning_digits --tune          # learning rate and width first

This needs `pip install '.[lightning,demo]'`. Lightning's own loops run the epochs, and its `EarlyStopping`
ends the training when the loss no longer improves. The program prints the loss and the accuracy of each
epoch, and writes a checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import trainkit
from recipes import data
from trainkit import tune
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator


class Classifier(pl.LightningModule):
    """Two convolutions and a linear layer, for images of any size."""

    def __init__(self, lr: float = 0.02, width: int = 16) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, 10),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", cross_entropy(logits, labels), sync_dist=True)
        self.log("val_accuracy", (logits.argmax(dim=1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Digits(pl.LightningDataModule):
    """The images in the file that `recipes.data` wrote."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config = config

    def setup(self, stage: str) -> None:
        self.training, self.validation = data.load(self.config["data"], limit=self.config["limit"])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.training, self.config[BATCH_SIZE], shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.validation, 256)


def search(operator: type[TrainingOperator], config: dict, trials: int, output: Path) -> dict:
    """Return the best learning rate and width of a search; each trial runs on one worker."""
    results = tune.Tuner(
        TorchTrainer.as_trainable(training_operator_cls=operator, config=config, use_gpu=False),
        param_space={"lr": tune.loguniform(1e-3, 0.1), "width": tune.choice([8, 16, 32])},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min", num_samples=trials, seed=0),
        run_config=tune.RunConfig(name="lightning-digits", storage_path=output, stop={"epoch": 5}, verbose=1),
    ).fit()
    best = results.get_best_result().config
    return {"lr": best["lr"], "width": best["width"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="of the training (%(default)s)")
    parser.add_argument("--epochs", type=int, default=15, help="at most (%(default)s)")
    parser.add_argument("--tune", type=int, nargs="?", const=6, default=0, help="trials before (%(const)s)")
    parser.add_argument("--limit", type=int, help="images to train on; default, all")
    parser.add_argument("--output", type=Path, default=Path("results/lightning"), help="%(default)s")
    args = parser.parse_args()

    args.output.mkdir(parents=True, exist_ok=True)
    data.prepare(args.output / "data.pt", source="digits")
    config = {"data": str(args.output / "data.pt"), "limit": args.limit, BATCH_SIZE: 64}
    trainkit.init(num_cpus=max(2, args.workers), num_gpus=0, preload=["torch", "pytorch_lightning"])
    operator = TrainingOperator.from_ptl(
        Classifier, datamodule=Digits, callbacks=[EarlyStopping("val_loss", patience=2)]
    )
    if args.tune:
        config |= search(operator, config, args.tune, args.output)
        print(f"best configuration: lr={config['lr']:.4g}, width={config['width']}")

    with TorchTrainer(
        training_operator_cls=operator, config=config, num_workers=args.workers, use_gpu=False
    ) as trainer:
        for _ in range(args.epochs):
            result = trainer.train()
            loss, accuracy = result["train_loss"], result["val_accuracy"]
            print(f"epoch {result['epoch']:2}  loss {loss:.4f}  accuracy {accuracy:.2%}")
            if result["should_stop"]:
                print("Lightning sees nothing left to gain")
                break
        checkpoint = trainer.save(args.output / "checkpoint")
    print(f"checkpoint: {checkpoint}, to be loaded by")
    print(f"    module = recipes.lightning_digits.Classifier(width={config.get('width', 16)})")
    print(f"    module.load_state_dict(torch.load('{checkpoint}/state.pt', weights_only=True)['models'][0])")


if __name__ == "__main__":
    main()
