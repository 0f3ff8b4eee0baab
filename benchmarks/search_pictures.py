"""Pictures of simulated runs: one for each algorithm, and one for the kinds of plot.

`python -m benchmarks.search --plots FOLDER` draws them; `make pictures` draws all pictures of the
documentation. All algorithms except populations have the same problem: learning curves of 81 configurations
on four workers, or of 27 configurations if reservations change.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import resource_pictures
from trainkit import tune
from trainkit.plugins.plots import style
from trainkit.tune import schedulers as sch

LAST = 81
SIZE, DPI = (12.0, 3.8), 75
SPACE = {"lr": tune.loguniform(1e-4, 1.0), "width": tune.choice([16, 32, 64, 128])}
ITERATION = {"time_attr": "training_iteration"}


def learning(config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the loss of a learning curve that falls towards a value of the configuration."""
    off = abs(np.log10(config["lr"]) + 2) / 2
    floor = 0.05 + 0.2 * off**2 + 0.05 * abs(np.log2(config["width"]) - 6) / 2
    loss = floor + (1 - floor) * (1 + training_iteration / 2) ** -0.8 + 0.01 * rng.normal()
    return {"loss": float(loss), "done": training_iteration == LAST}


def drifting(
    config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator, state: Any = None
) -> dict[str, Any]:
    """Return a loss whose best learning rate falls during training; progress is kept with the weights."""
    loss = 1.0 if state is None else state
    best = 10 ** (-0.5 - 2.5 * training_iteration / LAST)
    rate = 0.06 * max(0.0, 1 - abs(np.log10(config["lr"] / best)))
    loss += (0.02 - loss) * rate + 0.003 * rng.normal()
    return {"loss": float(loss), "state": loss, "done": training_iteration == LAST}


def classifying(
    config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return an accuracy that rises towards a value of the learning rate, depth and optimizer."""
    optimizer = config["optimizer"]
    off = abs(np.log10(config["lr"]) + 1.5) + 0.1 * abs(config["layers"] - 3)
    momentum = 0.05 * abs(optimizer["momentum"] - 0.9) if optimizer["name"] == "sgd" else 0.0
    top = max(0.4, 0.87 - 0.12 * off - momentum)
    accuracy = top - (top - 0.1) * (1 + training_iteration) ** -1.1 + 0.01 * rng.normal()
    return {"accuracy": float(accuracy), "done": training_iteration == PLOTS_LAST}


PLOTS_LAST = 27
PLOTS_SPACE = {
    "lr": tune.loguniform(1e-4, 1.0),
    "layers": tune.randint(1, 7),
    "optimizer": tune.choice([{"name": "adam"}, {"name": "sgd", "momentum": tune.uniform(0.0, 1.0)}]),
}


def _pbt() -> sch.TrialScheduler:
    return sch.PopulationBasedTraining(
        **ITERATION,
        perturbation_interval=9,
        hyperparam_mutations={"lr": SPACE["lr"]},
        synch=True,
        log_config=False,
    )


def _pb2() -> sch.TrialScheduler:
    bounds = {"lr": [1e-4, 1.0]}
    return sch.PB2(**ITERATION, perturbation_interval=9, hyperparam_bounds=bounds, synch=True)


Made = Callable[[], sch.TrialScheduler]
RUNS: dict[str, tuple[Made, str]] = {
    "asha": (lambda: sch.ASHAScheduler(max_t=LAST, reduction_factor=3), "rungs"),
    "asha-promotion": (lambda: sch.ASHAScheduler(max_t=LAST, reduction_factor=3, type="promotion"), "rungs"),
    "hyperband": (lambda: sch.HyperBandScheduler(max_t=LAST), "rungs"),
    "bohb": (lambda: sch.HyperBandForBOHB(max_t=LAST), "rungs"),
    "median": (lambda: sch.MedianStoppingRule(**ITERATION, grace_period=5), "curves"),
    "pbt": (_pbt, "lineage"),
    "pb2": (_pb2, "lineage"),
}
"""Scheduler and kind of plot beside the timeline, by the name of a documentation page."""


def simulated(name: str) -> tune.ResultGrid:
    """Return the run for the picture with this name."""
    population = name in ("pbt", "pb2")
    return tune.simulate(
        drifting if population else learning,
        param_space={"lr": SPACE["lr"]} if population else SPACE,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=8 if population else 81,
            scheduler=RUNS[name][0](),
            search_alg=tune.search.TuneBOHB() if name == "bohb" else "random",
        ),
        workers=8 if population else 4,
        seed=1,
    )


def draw(name: str, folder: Path) -> Path:
    """Draw one run: the scheduler's decisions, and the timeline of the workers."""
    results, kind = simulated(name), RUNS[name][1]
    _, left = style.figure_of(None, SIZE)
    figure = left.get_figure()
    left.remove()
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    results.plot(kind, ax=left)
    results.plot("timeline", ax=right)
    path = folder / f"tuning-{name}.png"
    save(figure, path)
    return path


def save(figure: Figure, path: Path) -> None:
    """Write the figure in 64 colours, which needs a fifth of the space."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="png", dpi=DPI)
        Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def draw_kinds(folder: Path) -> Path:
    """Draw the three kinds of plot on the documentation page about results, from one run with ASHA."""
    results = tune.simulate(
        classifying,
        param_space=PLOTS_SPACE,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=81,
            scheduler=sch.ASHAScheduler(max_t=PLOTS_LAST, reduction_factor=3),
            search_alg="random",
        ),
        workers=4,
        seed=1,
    )
    _, only = style.figure_of(None, (11.5, 8.0))
    figure = only.get_figure()
    only.remove()
    above, below = figure.subfigures(2, 1, height_ratios=[4, 5])
    curves, rungs = above.subplots(1, 2)
    results.plot("curves", ax=curves)
    results.plot("rungs", ax=rungs)
    results.plot("parallel", ax=below.subplots())
    path = folder / "tuning-plots.png"
    save(figure, path)
    return path


def draw_all(folder: Path) -> Iterator[Path]:
    """Draw a simulated run of each algorithm into `folder`, and the picture of the kinds of plot."""
    folder.mkdir(parents=True, exist_ok=True)
    yield draw_kinds(folder)
    for name in RUNS:
        yield draw(name, folder)
    path = folder / "tuning-resource-changing.png"
    resource_pictures.draw(learning, SPACE, path, DPI)
    yield path
