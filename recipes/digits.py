"""Tune a small network on handwritten digits with any scheduler; the network needs only NumPy.

    python -m recipes.digits                        # ASHA; a quarter of a minute on two cores
    python -m recipes.digits --scheduler pbt        # or hyperband, bohb, median, pb2, ...
    python -m recipes.digits --resume               # go on after an interruption

This needs `pip install '.[demo]'`, for the digits. The trainable is a class that saves and loads its weights.
So schedulers can pause and resume a trial, or copy weights from one trial to another. The program prints the
outcome of each trial, and the best configuration.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import trainkit
from trainkit import tune
from trainkit.tune import schedulers
from trainkit.tune.search import TuneBOHB

SPACE = {
    "lr": tune.loguniform(1e-3, 1.0),
    "momentum": tune.uniform(0.0, 0.95),
    "decay": tune.loguniform(1e-6, 1e-2),
}
WIDTH, BATCH = 32, 32


def load() -> dict[str, np.ndarray]:
    """Return scikit-learn's digits; a fifth of each class is for validation."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    return dict(zip(("train_x", "valid_x", "train_y", "valid_y"), parts, strict=True))


class Network(tune.Trainable):
    """One hidden layer, trained by stochastic gradient descent with momentum; an iteration is an epoch."""

    def setup(self, config: dict[str, Any], data: dict[str, np.ndarray]) -> None:
        self.data = data
        rng = np.random.default_rng(0)
        shapes = {"w1": (64, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, 10), "b2": (10,)}
        self.weights = {
            name: rng.normal(0, shape[0] ** -0.5, shape) if name[0] == "w" else np.zeros(shape)
            for name, shape in shapes.items()
        }
        self.speed = {name: np.zeros(shape) for name, shape in shapes.items()}

    def step(self) -> dict[str, float]:
        # Shuffled with the epoch's number as the seed, so that a pause changes nothing.
        order = np.random.default_rng(self.iteration).permutation(len(self.data["train_x"]))
        # Too large a learning rate overflows. Such a trial reports NaN, which no scheduler prefers.
        with np.errstate(all="ignore"):
            for begin in range(0, len(order), BATCH):
                rows = order[begin : begin + BATCH]
                self._descend(self.data["train_x"][rows], self.data["train_y"][rows])
            _, chances = self._forward(self.data["valid_x"])
            labels = self.data["valid_y"]
            loss = -np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean()
        return {"loss": float(loss), "accuracy": float((chances.argmax(axis=1) == labels).mean())}

    def _forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(0, x @ self.weights["w1"] + self.weights["b1"])
        logits = hidden @ self.weights["w2"] + self.weights["b2"]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def _descend(self, x: np.ndarray, labels: np.ndarray) -> None:
        hidden, slope = self._forward(x)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= len(labels)
        below = (slope @ self.weights["w2"].T) * (hidden > 0)
        slopes = {"w1": x.T @ below, "b1": below.sum(axis=0), "w2": hidden.T @ slope, "b2": slope.sum(axis=0)}
        for name, value in slopes.items():
            value += self.config["decay"] * self.weights[name]
            self.speed[name] = self.config["momentum"] * self.speed[name] - self.config["lr"] * value
            self.weights[name] += self.speed[name]

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        arrays = {**self.weights, **{f"speed_{name}": value for name, value in self.speed.items()}}
        np.savez(Path(checkpoint_dir, "weights.npz"), **arrays)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        with np.load(Path(checkpoint_dir, "weights.npz")) as arrays:
            self.weights = {name: arrays[name] for name in self.weights}
            self.speed = {name: arrays[f"speed_{name}"] for name in self.speed}


def _pbt(**given: Any) -> schedulers.PopulationBasedTraining:
    return schedulers.PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=3, hyperparam_mutations=SPACE, **given
    )


SCHEDULERS: dict[str, Callable[[int], schedulers.TrialScheduler]] = {
    "fifo": lambda epochs: schedulers.FIFOScheduler(),
    "asha": lambda epochs: schedulers.ASHAScheduler(max_t=epochs, reduction_factor=3),
    "asha-promotion": lambda epochs: schedulers.ASHAScheduler(
        max_t=epochs, reduction_factor=3, type="promotion"
    ),
    "hyperband": lambda epochs: schedulers.HyperBandScheduler(max_t=epochs),
    "bohb": lambda epochs: schedulers.HyperBandForBOHB(max_t=epochs),
    "median": lambda epochs: schedulers.MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, min_samples_required=3
    ),
    "pbt": lambda epochs: _pbt(),
    "pbt-synch": lambda epochs: _pbt(synch=True),
    "pb2": lambda epochs: schedulers.PB2(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_bounds={"lr": [1e-3, 1.0], "momentum": [0.0, 0.95], "decay": [1e-6, 1e-2]},
    ),
    "resources": lambda epochs: schedulers.ResourceChangingScheduler(
        schedulers.ASHAScheduler(max_t=epochs, reduction_factor=3)
    ),
}
"""Function from the number of epochs to a scheduler, by the scheduler's name."""


def tuner(
    scheduler: str,
    data: dict[str, np.ndarray],
    *,
    trials: int,
    epochs: int,
    seed: int = 0,
    trainable: type[tune.Trainable] = Network,
    **run: Any,
) -> tune.Tuner:
    """Return the Tuner for the search; `run` has further arguments of its RunConfig."""
    return tune.Tuner(
        tune.with_parameters(trainable, data=data),
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=trials,
            scheduler=SCHEDULERS[scheduler](epochs),
            search_alg=TuneBOHB() if scheduler == "bohb" else None,
            seed=seed,
        ),
        run_config=tune.RunConfig(stop={"training_iteration": epochs}, **run),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", choices=list(SCHEDULERS), default="asha", help="%(default)s")
    parser.add_argument("--trials", type=int, default=16, help="%(default)s")
    parser.add_argument("--epochs", type=int, default=27, help="of a trial that is not stopped (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("results/digits"), help="%(default)s")
    parser.add_argument("--resume", action="store_true", help="go on with what --output holds")
    args = parser.parse_args()

    trainkit.init(num_cpus=2, num_gpus=0)
    data, folder = load(), args.output / args.scheduler
    if args.resume:
        search = tune.Tuner.restore(folder, tune.with_parameters(Network, data=data))
    else:
        options = {"name": args.scheduler, "storage_path": args.output, "verbose": 1}
        search = tuner(args.scheduler, data, trials=args.trials, epochs=args.epochs, **options)
    results = search.fit()
    counts = Counter(str(result.status) for result in results)
    epochs = sum(len(result.history) for result in results)
    print(f"{', '.join(f'{count} {status}' for status, count in counts.items())}; {epochs} epochs in all")
    for result in results:
        last = result.decisions[-1] if result.decisions else {}
        print(
            f"{result.trial_id}  {result.metrics.get('accuracy', float('nan')):.2%}  {result.reason or last}"
        )
    best = results.get_best_result(scope="all")
    values = ", ".join(f"{name}={value:.4g}" for name, value in best.config.items())
    print(f"best: {best.best_metrics['accuracy']:.2%} with {values}")


if __name__ == "__main__":
    main()
