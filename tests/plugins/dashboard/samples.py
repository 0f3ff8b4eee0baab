"""Experiments that charts and pages are tested on."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import trainkit
from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler, PopulationBasedTraining

HOSTILE = "<img src=x onerror=alert(1)>"
"""Choice of a hyperparameter that would be an element, were it not shown as text."""
MARKED = "<a href='javascript:alert(2)'><b>&lt;%{x}$x^2$ \x1b\u202e"
"""Name that Plotly would take for a link, bold, an entity, a template and a formula, were it not escaped."""


def curve(config: dict[str, Any], step: int) -> float:
    """Return a loss that falls with the steps, the faster the better the configuration is."""
    fit = abs(math.log10(config["lr"]) + 2) + abs(config["width"] - 64) / 64
    fit += {"relu": 0.0, "gelu": 0.1}.get(config["activation"], 0.6)
    return 0.1 + 0.25 * fit + (1.5 + 0.1 * fit) / step + 0.02 * math.sin(step * (1 + config["width"]))


def train(config: dict[str, Any]) -> None:
    """Train a network that doesn't exist."""
    print(f"lr {config['lr']:.2g}, {config['activation']}")
    for step in range(1, config.get("steps", 16) + 1):
        loss = curve(config, step)
        time.sleep(config.get("pause_s", 0.0))
        told = {"loss": loss, "accuracy": max(0.0, 1 - loss / 2), "cost": config["width"] / 128}
        if "pause_s" in config:
            told["reported_ms"] = round(1000 * time.time())
        tune.report(told)


def space(other: str = HOSTILE) -> dict[str, Any]:
    """Return a space with three hyperparameters; `other` is the third choice of one of them."""
    return {
        "lr": tune.loguniform(1e-4, 1e-1),
        "width": tune.randint(8, 128),
        "activation": tune.choice(["relu", "gelu", other]),
    }


def halving(
    root: Path, name: str = "digits", num_samples: int = 24, other: str = HOSTILE, seed: int = 0
) -> Path:
    """Run a search by ASHA; return its folder."""
    tune.Tuner(
        train,
        param_space=space(other),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=num_samples,
            seed=seed,
            scheduler=ASHAScheduler(max_t=16, grace_period=2, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name=name, storage_path=str(root), verbose=0),
    ).fit()
    return root / name


def repeated(root: Path, name: str = "seeds") -> Path:
    """Run two learning rates with three seeds each; return the folder."""

    def train(config: dict[str, Any]) -> None:
        for step in range(1, 11):
            tune.report({"loss": (config["lr"] + config["seed"]) / step, "accuracy": 1 - config["lr"]})

    tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([0.1, 0.5]), "batch": 64, "seed": tune.grid_search([0, 1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name=name, storage_path=str(root), verbose=0),
    ).fit()
    return root / name


def ended(root: Path, name: str = "ended") -> Path:
    """Run trials that end in each way, of which the first and the last violate a constraint."""

    def train(config: dict[str, Any]) -> None:
        if config["case"] == 2:
            raise ValueError("no data")
        for _ in range(2):
            tune.report({"loss": [4, 1, 0, 5][config["case"]], "size": [9, 1, 1, 9][config["case"]]})

    tune.Tuner(
        train,
        param_space={
            "case": tune.grid_search([0, 1, 2, 3]),
            "optimizer": tune.choice(["sgd"]),
            "momentum": tune.when({"optimizer": "sgd"}, tune.uniform(0.5, 0.99)),
        },
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            constraints=["size <= 5"],
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=2, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name=name, storage_path=str(root), verbose=0),
    ).fit()
    return root / name


def marked(root: Path) -> Path:
    """Run a search in which each name that a user chooses would be more than text to whoever draws it."""

    def train(config: dict[str, Any]) -> None:
        for step in range(1, 5):
            tune.report({MARKED: config[f"lr {MARKED}"] / step + (config[MARKED] == HOSTILE)})

    tune.Tuner(
        train,
        param_space={
            f"lr {MARKED}": tune.uniform(1, 2),
            f"wd {MARKED}": tune.loguniform(1e-3, 1),
            MARKED: tune.choice([HOSTILE, MARKED]),
        },
        tune_config=tune.TuneConfig(
            metric=MARKED,
            mode="min",
            num_samples=12,
            seed=0,
            scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name=HOSTILE, storage_path=str(root), verbose=0),
    ).fit()
    return root / HOSTILE


def member(config: dict[str, Any]) -> None:
    """Train a member of a population, which goes on from checkpoints."""
    checkpoint = tune.get_checkpoint()
    begin = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            begin = int((Path(folder) / "step").read_text())
    for step in range(begin + 1, 13):
        folder = Path(tune.get_context().get_trial_dir()) / "state"
        folder.mkdir(exist_ok=True)
        (folder / "step").write_text(str(step))
        tune.report(
            {"score": step * config["lr"] * 10 + 0.1 * step},
            checkpoint=tune.Checkpoint.from_directory(str(folder)),
        )


def population(root: Path, name: str = "population") -> Path:
    """Run population based training; return its folder."""
    tune.Tuner(
        member,
        param_space={"lr": tune.uniform(0.01, 0.2)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=4,
            seed=1,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=3,
                hyperparam_mutations={"lr": tune.uniform(0.01, 0.2)},
            ),
        ),
        run_config=tune.RunConfig(name=name, storage_path=str(root), verbose=0),
    ).fit()
    return root / name


class Saving(tune.Trainable):
    """Training of a network that doesn't exist, whose state can be saved at any step."""

    def setup(self, config: dict[str, Any]) -> None:
        self.step_count = 0

    def step(self) -> dict[str, Any]:
        self.step_count += 1
        time.sleep(self.config["pause_s"])
        return {"loss": curve(self.config, self.step_count)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "step").write_text(str(self.step_count))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.step_count = int((Path(checkpoint_dir) / "step").read_text())


def running(root: Path, trainable: Any = train, name: str = "live") -> None:
    """Run a search that goes on until it is stopped."""
    tune.Tuner(
        trainable,
        param_space={**space("tanh"), "pause_s": 0.2, "steps": 5_000},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=8, seed=3, max_concurrent_trials=2
        ),
        run_config=tune.RunConfig(name=name, storage_path=str(root), verbose=0, log_to_file=True),
    ).fit()


if __name__ == "__main__":
    trainkit.init(num_cpus=3)
    running(Path(sys.argv[1]), {"train": train, "Saving": Saving}[sys.argv[2]])
