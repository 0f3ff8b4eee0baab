"""Populations whose members train in step and copy each other's state, simulated with a worker for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.problems import bandit, toy
from trainkit import tune
from trainkit.tune import schedulers as sch
from trainkit.tune.search import BasicVariantGenerator

UNIT = tune.uniform(0, 1)


def best_by_step(
    objective: Callable[..., dict[str, Any]],
    space: Mapping[str, Any],
    members: Sequence[dict[str, Any]],
    scheduler: sch.TrialScheduler,
    steps: int,
    seed: int,
) -> list[float]:
    """Return the best member's score after each step; `members` are the initial configurations."""
    results = tune.simulate(
        objective,
        param_space=dict(space),
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=len(members),
            search_alg=BasicVariantGenerator(points_to_evaluate=[dict(each) for each in members]),
            scheduler=scheduler,
        ),
        workers=len(members),
        seed=seed,
    )
    best = [-np.inf] * steps
    for result in results:
        for report in result.history:
            step = report["training_iteration"] - 1
            best[step] = max(best[step], report["score"])
    return best


# --- two members that each train half -------------------------------------------------------------

HALVES = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]


def run_toy(name: str, seed: int, *, steps: int = 100) -> list[float]:
    """Run Ray's example as "grid", "exploit only" or "PBT"; return the best value after each step."""
    members = [{**half, "lr": 0.05} for half in HALVES]
    full = {"h0": UNIT, "h1": UNIT, "lr": tune.loguniform(0.005, 0.1)}
    given: dict[str, Any] = {
        "hyperparam_mutations": full,
        "quantile_fraction": 0.5,
        "resample_probability": 0.5,
    }
    if name == "grid":
        given["quantile_fraction"] = 0
    elif name == "exploit only":  # weights are copied, and each member keeps its own half
        given = {"custom_explore_fn": _swapped, "quantile_fraction": 0.5}
    return best_by_step(_toy(0.75, steps), full, members, _pbt(4, **given), steps, seed)


def run_toy_of_the_paper(seed: int, *, steps: int = 400) -> list[float]:
    """Run the paper's setting: equal halves, random ties, and a little noise on both shares as explore."""
    rng = np.random.default_rng([seed, 1])

    def noisy(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, **{name: config[name] + float(rng.normal(0, 0.1)) for name in ("h0", "h1")}}

    space = {"h0": tune.uniform(-9, 9), "h1": tune.uniform(-9, 9)}
    scheduler = _pbt(10, custom_explore_fn=noisy, quantile_fraction=0.5, tie="random")
    return best_by_step(_toy(1.0, steps, lr=0.01), space, HALVES, scheduler, steps, seed)


def _toy(a: float, steps: int, lr: float = 0.05) -> Callable[..., dict[str, Any]]:
    def objective(
        config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator, state: Any = None
    ) -> dict[str, Any]:
        del rng
        weights = toy.step(state or toy.START, config, a, lr)
        return {"score": toy.value(weights, a), "state": weights, "done": training_iteration == steps}

    return objective


def _swapped(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "h0": config["h1"], "h1": config["h0"]}


def _pbt(interval: float, **given: Any) -> sch.TrialScheduler:
    return sch.PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=interval, synch=True, log_config=False, **given
    )


# --- four agents ----------------------------------------------------------------------------------


def run_bandit(name: str, seed: int, *, drift: bool) -> float:
    """Return the best agent's mean gain under "no exploit", "uniform", "PBT" or "PB2"."""

    def objective(
        config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator, state: Any = None
    ) -> dict[str, Any]:
        total = (state or 0.0) + bandit.gain(config["h"], training_iteration - 1, rng, drift=drift)
        return {"score": total, "state": total, "done": training_iteration == bandit.ROUNDS}

    rng = np.random.default_rng([seed, 2])
    agents = [{"h": float(rng.uniform())} for _ in range(bandit.AGENTS)]
    if name == "PB2":
        scheduler = sch.PB2(
            time_attr="training_iteration",
            perturbation_interval=1,
            synch=True,
            hyperparam_bounds={"h": [0, 1]},
        )
    else:
        shares = {"no exploit": (0, 0.25), "uniform": (0.25, 1), "PBT": (0.25, 0.25)}
        quantile, resample = shares[name]
        scheduler = _pbt(
            1, hyperparam_mutations={"h": UNIT}, quantile_fraction=quantile, resample_probability=resample
        )
    return best_by_step(objective, {"h": UNIT}, agents, scheduler, bandit.ROUNDS, seed)[-1] / bandit.ROUNDS
