"""The toy of the PBT paper (its figure 2), played through the scheduler: exact traces and known ends."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest

from trainkit import tune
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import PopulationBasedTraining, Verdict

CORNERS = ((1.0, 0.0), (0.0, 1.0))


class Toy:
    """Two weights of 0.9 under a surrogate loss that weighs them by h.

    Args:
        scale: of the true quality 1.2 - scale . theta**2, whose gradients are scaled alike.
    """

    def __init__(self, lr: float, scale: tuple[float, float]) -> None:
        self.lr, self.scale = lr, np.array(scale)
        self.theta = np.full(2, 0.9)

    def step(self, config: dict) -> None:
        h = np.array([config["h0"], config["h1"]])
        self.theta = self.theta - config.get("lr", self.lr) * 2 * self.scale * h * self.theta

    @property
    def quality(self) -> float:
        return float(1.2 - (self.scale * self.theta**2).sum())


def play(
    scheduler: PopulationBasedTraining, toys: list[Toy], configs: list[dict], steps: int, explore: bool = True
) -> list[float]:
    """The best quality after each interval; without `explore` weights are copied and h is kept."""
    best = []
    for number, config in enumerate(configs):
        scheduler.on_trial_add(str(number), config)
    every = int(scheduler.perturbation_interval)
    for t in range(1, steps + 1):
        for toy, config in zip(toys, configs, strict=True):
            toy.step(config)
        if t % every and t != steps:
            continue
        best.append(max(toy.quality for toy in toys))
        decided = []
        for number, toy in enumerate(toys):
            decision = scheduler.on_result(str(number), {"training_iteration": t, "q": toy.quality})
            decided.append((str(number), decision))
        for trial_id, decision in [*decided, *scheduler.verdicts()]:
            if decision.donors:
                donor, place = decision.donors[0], int(trial_id)
                toys[place].theta = toys[int(donor.trial_id)].theta.copy()
                if explore:
                    configs[place] = dict(donor.config)
                scheduler.on_trial_change(trial_id, configs[place], donor.trial_id)
        for trial_id, decision in decided:
            if decision.verdict is Verdict.PAUSE:
                scheduler.on_trial_resume(trial_id)
    return best


def pbt(seed: int = 0, **arguments) -> PopulationBasedTraining:
    settings = {
        "perturbation_interval": 4,
        "quantile_fraction": 0.5,
        "resample_probability": 0.5,
        "hyperparam_mutations": {"h0": tune.uniform(0, 1), "h1": tune.uniform(0, 1)},
        "synch": True,
    }
    scheduler = PopulationBasedTraining("training_iteration", "q", "max", **(settings | arguments))
    scheduler.set_search_properties("q", "max", scheduler_generator(seed), 2)
    return scheduler


def corners() -> list[dict]:
    return [{"h0": h0, "h1": h1} for h0, h1 in CORNERS]


# --- property 25, B5 ------------------------------------------------------------------------------


def test_members_that_leave_each_other_alone():
    toys = [Toy(0.05, (0.75, 1.0)) for _ in range(2)]
    play(pbt(quantile_fraction=0), toys, corners(), 400)
    assert sorted(round(toy.quality, 4) for toy in toys) == [0.39, 0.5925]


def test_exploit_alone():  # property 25
    toys = [Toy(0.05, (0.75, 1.0)) for _ in range(2)]
    trace = play(pbt(), toys, corners(), 100, explore=False)
    assert [round(value, 5) for value in trace[:6]] == [0.24382, 0.52572, 0.72431, 0.87540, 0.96088, 1.04186]
    assert trace[-1] == pytest.approx(1.1998, abs=5e-5), "near the optimum"


def test_equal_members_leave_each_other_alone_for_ever():
    toys = [Toy(0.01, (1.0, 1.0)) for _ in range(2)]
    best = play(pbt(perturbation_interval=10), toys, corners(), 2000)
    assert best[-1] == pytest.approx(0.39, abs=1e-6)


SEEDS = 40


def test_ties_broken_at_random_find_the_optimum():
    """Gaussian noise of 0.1 on h, every 10 steps; means and deviations of 500 seeds are known."""
    found = []
    for seed in range(SEEDS):
        noise = np.random.default_rng(1000 + seed)

        def shift(config, noise=noise):
            return {name: value + noise.normal(0, 0.1) for name, value in config.items()}

        scheduler = pbt(
            seed, perturbation_interval=10, hyperparam_mutations=None, custom_explore_fn=shift, tie="random"
        )
        toys = [Toy(0.01, (1.0, 1.0)) for _ in range(2)]
        best = play(scheduler, toys, corners(), 400)
        found.append([best[t // 10 - 1] for t in (50, 100, 200, 400)])
    expected = ((0.404, 0.082), (0.764, 0.157), (1.126, 0.087), (1.1997, 0.0014))
    for column, (middle, spread) in zip(zip(*found, strict=True), expected, strict=True):
        assert mean(column) == pytest.approx(middle, abs=3 * spread * (1 / SEEDS + 1 / 500) ** 0.5 + 5e-4)
