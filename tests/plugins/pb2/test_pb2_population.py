"""What a population learns by PB2, and what it is told."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainkit import tune
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import PB2, Verdict


class Population:
    """Drives a synchronous PB2 as the controller does: `gain(config, round, trial)` is added to a score."""

    def __init__(self, scheduler: PB2, configs: list[dict[str, Any]]) -> None:
        self.scheduler = scheduler
        scheduler.set_search_properties("m", "max", scheduler_generator(0), len(configs))
        self.configs = {str(number): config for number, config in enumerate(configs)}
        self.scores = dict.fromkeys(self.configs, 0.0)
        self.reasons: list[dict[str, Any]] = []
        self.round = 0
        for trial_id, config in self.configs.items():
            scheduler.on_trial_add(trial_id, config)

    def train(self, gain: Callable[[dict[str, Any], int, str], float]) -> None:
        for trial_id, config in self.configs.items():
            self.scores[trial_id] += gain(config, self.round, trial_id)
        self.round += 1
        for trial_id in self.configs:
            decision = self.scheduler.on_result(trial_id, {"t": self.round, "m": self.scores[trial_id]})
            assert decision.verdict is Verdict.PAUSE
        before = dict(self.scores)
        for trial_id, decision in self.scheduler.verdicts():
            donor = decision.donors[0]
            self.reasons.append(dict(decision.reason))
            self.configs[trial_id] = dict(donor.config)
            self.scores[trial_id] = before[donor.trial_id]
            self.scheduler.on_trial_change(trial_id, self.configs[trial_id], donor.trial_id)
        for trial_id in self.configs:
            self.scheduler.on_trial_resume(trial_id)


def pb2(**arguments: Any) -> PB2:
    given = {"hyperparam_bounds": {"h": [0.0, 1.0]}, **arguments}
    return PB2(time_attr="t", perturbation_interval=1, synch=True, **given)


def drifting(rng: np.random.Generator) -> Callable[[dict[str, Any], int, str], float]:
    def gain(config: dict[str, Any], round_: int, trial_id: str) -> float:
        return 1 - 4 * (config["h"] - (0.2 + 0.6 * round_ / 29)) ** 2 + float(rng.normal(0, 0.02))

    return gain


@pytest.mark.slow
def test_b6_on_a_drifting_bandit_it_is_ahead_of_uniform_choices():
    best = []
    for plain in (False, True):
        rng = np.random.default_rng(0)
        explore = (lambda config, rng=rng: {**config, "h": float(rng.random())}) if plain else None
        population = Population(pb2(custom_explore_fn=explore), [{"h": float(h)} for h in rng.random(4)])
        for _ in range(30):
            population.train(drifting(rng))
        best.append(max(population.scores.values()) / 30)
    ours, uniform = best
    assert ours > 0.98
    assert ours >= uniform


def test_gains_come_from_unchanged_hyperparameters_and_begin_with_the_donors_score():
    scheduler = pb2(quantile_fraction=0.5)
    population = Population(scheduler, [{"h": 0.1}, {"h": 0.9}])
    population.train(lambda config, round_, trial_id: 10 * config["h"])  # nothing before it: no gain
    assert len(scheduler._bandit.gains) == 0
    assert population.scores == {"0": 9.0, "1": 9.0}
    chosen = population.configs["0"]["h"]
    assert population.reasons[0]["changes"]["h"] == {"old": 0.9, "new": chosen, "how": "bandit"}
    population.train(lambda config, round_, trial_id: config["h"])
    learnt = [(each.round, each.before, each.x[0], gain) for each, gain in scheduler._bandit.gains]
    assert learnt == [pytest.approx((1, 9, chosen, chosen)), pytest.approx((1, 9, 0.9, 0.9))]


def test_nan_gives_no_gain_and_no_donor():
    scheduler = pb2(quantile_fraction=0.5)
    population = Population(scheduler, [{"h": 0.1}, {"h": 0.9}])
    population.train(lambda config, round_, trial_id: math.nan if trial_id == "0" else 1.0)
    assert population.scores["0"] == 1.0
    population.train(lambda config, round_, trial_id: math.nan if trial_id == "1" else 1.0)
    assert len(scheduler._bandit.gains) == 1
    population.train(lambda config, round_, trial_id: 1.0)
    assert all(math.isfinite(gain) for _, gain in scheduler._bandit.gains)


def test_whole_numbers_texts_and_what_is_not_there():
    bounds = {"n": tune.randint(1, 9), "kind": tune.choice(["a", "b", "c"]), "net": {"h": [0.0, 1.0]}}
    scheduler = pb2(hyperparam_bounds=bounds)
    start = {"n": 4, "kind": "a", "net": {"h": 0.5}, "fixed": [1]}
    population = Population(scheduler, [start, {**start, "n": 5}, {"n": 8, "kind": "b"}, start])
    for _ in range(6):
        population.train(lambda config, round_, trial_id: float(trial_id) + config["n"])
    for config in population.configs.values():
        assert config["n"] in range(1, 9)
        assert type(config["n"]) is int
        assert config["kind"] in "abc"
        if "net" in config:
            assert 0 <= config["net"]["h"] <= 1
    kinds = [reason["changes"]["kind"]["how"] for reason in population.reasons]
    assert set(kinds) <= {"keep", "resample"}


def train(config):
    checkpoint = tune.get_checkpoint()
    score = checkpoint.get_metadata()["score"] if checkpoint is not None else 0.0
    for _ in range(6):
        score += config["h"]
        with tempfile.TemporaryDirectory() as folder:
            saved = tune.Checkpoint.from_directory(folder)
            saved.set_metadata({"score": score})
            tune.report({"score": score}, checkpoint=saved)


def test_an_experiment_takes_over_and_ends(inline, fit):
    results = fit(
        train,
        metric="score",
        mode="max",
        num_samples=4,
        seed=0,  # by chance nobody may be worth taking over
        scheduler=PB2("training_iteration", perturbation_interval=2, hyperparam_bounds={"h": [0.0, 1.0]}),
        run={"stop": {"training_iteration": 8}},
    )
    assert {result.status for result in results} == {"TERMINATED"}
    assert all(0 <= result.config["h"] <= 1 for result in results)
    assert any(decision.get("rule") == "exploit" for result in results for decision in result.decisions)
