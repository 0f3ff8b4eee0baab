"""Tune a convolutional network on handwritten digits, then train the best one on two workers.

    python -m recipes.mnist              # or: make demo; less than a minute on two cores
    python -m recipes.mnist --resume     # go on after an interruption, with the same options

Two of the twenty-four trials, over learning rate, momentum, batch size and width, run at a time, and ASHA
stops most trials early. The program prints the best configuration and the accuracy of the final training. It
leaves the experiment, a picture of all learning curves and a checkpoint in `results/mnist`. An interruption,
even by SIGKILL, loses no reports, and nothing that was reported runs again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import trainkit
from recipes import curves, data
from trainkit import tune
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.tune.schedulers import ASHAScheduler

SPACE = {
    "lr": tune.loguniform(1e-3, 0.5),
    "momentum": tune.uniform(0.0, 0.95),
    "batch_size": tune.choice([16, 32, 64, 128]),
    "width": tune.choice([16, 24, 32]),
}


def network(width: int) -> nn.Module:
    """Return two convolutions and a linear layer, for images of any size: (n, 1, h, w) to (n, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(2 * width * 4 * 4, 10),
    )


class DigitClassifier(TrainingOperator):
    """The model and its data; trainkit's own loops train it."""

    def setup(self, config):
        model = network(config["width"])
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config["epochs"])
        self.register(models=model, optimizers=optimizer, criterion=loss, schedulers=decay)
        training, validation = data.load(config["data"], limit=config["limit"])
        batch_size = config["batch_size"] // self.world_size  # each worker takes its share of a batch
        self.register_data(
            train_loader=DataLoader(training, batch_size=batch_size, shuffle=True),
            validation_loader=DataLoader(validation, batch_size=256),
        )


# The network is so small that it trains as fast on the CPU as on a GPU.
TRAINER = {"training_operator_cls": DigitClassifier, "scheduler_step_freq": "epoch", "use_gpu": False}


def search(dataset: Path, args: argparse.Namespace, earlier: Path | None) -> tune.ResultGrid:
    """Run all trials, or the remaining trials of an earlier search."""
    fixed = {
        "data": str(dataset.absolute()),
        "limit": 4_000,
        "epochs": args.epochs,
    }  # all of scikit-learn's digits, but only some of MNIST
    trainable = TorchTrainer.as_trainable(config=fixed, **TRAINER)
    if earlier:
        return tune.Tuner.restore(earlier, trainable).fit()
    tuner = tune.Tuner(
        trainable,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="val_accuracy",
            mode="max",
            num_samples=args.trials,
            max_concurrent_trials=2,
            scheduler=ASHAScheduler(max_t=args.epochs, grace_period=min(2, args.epochs), reduction_factor=3),
            seed=0,
        ),
        run_config=tune.RunConfig(name=time.strftime("search-%Y%m%d-%H%M%S"), storage_path=args.output),
    )
    return tuner.fit()


def train(config: dict, checkpoint: Path) -> list[float]:
    """Train on two workers and save a checkpoint; return the validation accuracy after each epoch."""
    accuracies = []
    with TorchTrainer(config=config, num_workers=2, **TRAINER) as trainer:
        for epoch in range(1, config["epochs"] + 1):
            training, validation = trainer.train(), trainer.validate()
            accuracies.append(validation["val_accuracy"])
            print(f"epoch {epoch:2}  loss {training['train_loss']:.4f}  accuracy {accuracies[-1]:.2%}")
        trainer.save(checkpoint)
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24, help="configurations to try (%(default)s)")
    parser.add_argument("--epochs", type=int, default=18, help="of a trial that is not stopped (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("results/mnist"), help="%(default)s")
    parser.add_argument("--resume", action="store_true", help="go on with the last search in --output")
    parser.add_argument("--data", choices=["auto", "mnist", "digits"], default="auto", help="%(default)s")
    parser.add_argument("--data-folder", type=Path, default=Path("data"), help="of MNIST (%(default)s)")
    args = parser.parse_args()

    args.output.mkdir(parents=True, exist_ok=True)
    dataset, checkpoint, picture = (args.output / name for name in ("data.pt", "checkpoint", "curves.png"))
    earlier = max(args.output.glob("search-*"), default=None) if args.resume else None
    if args.resume and earlier is None:
        parser.error(f"{args.output} holds no search to go on with")
    if earlier is None:
        data.prepare(dataset, source=args.data, folder=args.data_folder)
    name, images, held_out = data.describe(dataset)
    print(f"data: {name}, {images:,} images to train on and {held_out:,} to validate on")

    trainkit.init(num_cpus=2, num_gpus=0)  # two trials at a time, then two workers
    results = search(dataset, args, earlier)
    if not all(trial.status.is_finished for trial in results):
        sys.exit("interrupted; --resume goes on from here")
    best = results.get_best_result(scope="all")
    chosen = {key: best.config[key] for key in SPACE}
    print("best configuration:", ", ".join(f"{key}={value:.4g}" for key, value in chosen.items()))

    epochs = max(3, min(2 * args.epochs, 200_000 // images))
    accuracies = train({**chosen, "data": str(dataset), "limit": None, "epochs": epochs}, checkpoint)
    curves.draw(
        picture,
        trials={trial.trial_id: [row["val_accuracy"] for row in trial.history] for trial in results},
        best=best.trial_id,
        final=accuracies,
        max_t=args.epochs,
        title=f"A convolutional network on {name}",
    )
    print(f"final validation accuracy: {accuracies[-1]:.4f}")
    print(f"picture:    {picture}")
    print(f"checkpoint: {checkpoint}, to be loaded by")
    print(f"    model = recipes.mnist.network(width={chosen['width']})")
    print(f"    model.load_state_dict(torch.load('{checkpoint}/state.pt', weights_only=True)['models'][0])")


if __name__ == "__main__":
    main()
