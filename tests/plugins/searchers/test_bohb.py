"""TuneBOHB in experiments: what it is told, what it proposes in which space, how it goes on."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np
import pytest

from tests.conftest import run_python
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.searchers.bohb import Knowledge, TuneBOHB
from trainkit.plugins.testing.searcher import TREE, Row, Search, loss_of
from trainkit.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandForBOHB
from trainkit.tune.search import ConcurrencyLimiter

pytestmark = pytest.mark.usefixtures("inline")

EAGER = {"random_fraction": 0}
PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}


def falling(config, training_iteration, rng):
    return {"loss": config["x"] + 0.1 * rng.random() / training_iteration}


class Heard(TuneBOHB):
    """Notes what the model is taught."""

    judged: ClassVar[Counter[tuple[str, int]]] = Counter()

    def on_trial_decision(self, trial_id, result, decision):
        if "budget" in decision.reason:
            self.judged[trial_id, decision.reason["budget"]] += 1
        super().on_trial_decision(trial_id, result, decision)


@pytest.fixture(autouse=True)
def fresh():
    Heard.judged.clear()


def searched(scheduler, searcher, num_samples):
    settings = {"num_samples": num_samples, "scheduler": scheduler, "search_alg": searcher}
    return tune.TuneConfig(metric="loss", mode="min", **settings)


# property 17: where Ray's controller does not tell of results with which a trial is stopped
@pytest.mark.parametrize("workers", [1, 4])
def test_every_result_at_every_budget_is_heard_once(workers):
    """One turn of Hyperband with 9 and 3: 9-3-1, 5-1 and 3 trials, all levels of which all brackets share."""
    config = searched(HyperBandForBOHB(max_t=9), Heard(), 17)
    results = tune.simulate(falling, {"x": tune.uniform(0, 1)}, config, workers=workers, seed=1)
    assert set(Heard.judged.values()) == {1}
    assert Counter(budget for _, budget in Heard.judged) == {0: 9, 1: 3 + 5, 2: 1 + 1 + 3}
    ended = {each["trial_id"]: each["verdict"] for each in results.decisions() if "budget" in each}
    assert set(ended.values()) == {"STOP"} and len(ended) == 17


# property 17: what is reported again after a failure, from an earlier checkpoint or from none, is heard once
def test_reports_that_come_again_count_once():
    often = searched(HyperBandForBOHB(max_t=9), Heard(), 34)
    run = tune.RunConfig(failure_config=tune.FailureConfig(max_failures=-1))
    failing = {"workers": 4, "failures": 0.1, "resume": False}
    tune.simulate(falling, {"x": tune.uniform(0, 1)}, often, seed=1, run_config=run, **failing)
    assert set(Heard.judged.values()) == {1}
    assert Counter(budget for _, budget in Heard.judged) == {0: 18, 1: 16, 2: 10}


SCHEDULERS = {
    "hyperband": lambda: HyperBandForBOHB(max_t=9),
    "asha": lambda: ASHAScheduler(max_t=9, reduction_factor=3),
    "fifo": FIFOScheduler,
}


# property 16, row 2.6
@pytest.mark.parametrize("name", SCHEDULERS)
def test_it_learns_with_every_scheduler(name):
    """What it suggests late is nearer to the optimum than what is drawn at random."""

    def late(searcher):
        """Of suggestions 30 to 59, the median distance; three seeds."""
        distances = []
        for seed in range(3):
            results = tune.simulate(
                lambda config, training_iteration, rng: {
                    "loss": abs(config["x"] - 0.3) + abs(config["y"] - 0.7) + 0.1 / training_iteration
                },
                {"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)},
                searched(SCHEDULERS[name](), searcher, 60),
                workers=4,
                seed=seed,
                run_config=tune.RunConfig(stop={"training_iteration": 9}),
            )
            assert {result.status for result in results} == {"TERMINATED"}
            configs = [result.config for result in results][30:]
            distances += [abs(config["x"] - 0.3) + abs(config["y"] - 0.7) for config in configs]
        return np.median(distances)

    assert late("bohb") < 0.6 * late("random")


# --- spaces ---------------------------------------------------------------------------------------

ROW = Row("bohb", lambda **given: TuneBOHB(bohb_config=EAGER, **given))


# property 20, rows 1.28 and 2.6
def test_proposals_hold_what_is_active_and_nothing_else():
    space = {
        "momentum": tune.when({"optimizer": "sgd"}, tune.uniform(0, 1)),
        "optimizer": tune.choice(["sgd", "adam"]),
        "schedule": tune.when(
            {"optimizer": "adam"},
            {
                "kind": tune.choice(["flat", "cosine"]),
                "warm": tune.when({"kind": "cosine"}, tune.randint(1, 50)),
            },
        ),
        "lr": tune.loguniform(1e-5, 1),
        "pair": tune.forbid({"optimizer": "adam", "lr": tune.uniform(0.1, 1)}),
    }
    search = Search(ROW, space, num_samples=80)
    for config in search.run():
        names = {"optimizer", "lr", "momentum" if config["optimizer"] == "sgd" else "schedule"}
        assert set(config) == names
        if "schedule" in config:
            assert ("warm" in config["schedule"]) == (config["schedule"]["kind"] == "cosine")
            assert config["lr"] < 0.1
    assert {config["optimizer"] for config in search.configs.values()} == {"sgd", "adam"}


def test_a_branch_that_is_better_is_gone_into():
    def loss(config):
        return config["model"].get("width", 2.0) + config["a"]

    search = Search(ROW, TREE, num_samples=60)
    while (config := search.next()) is not None:
        search.finish(list(search.configs)[-1], loss=loss(config))
    late = [config["model"] for config in list(search.configs.values())[30:]]
    assert sum("width" in model for model in late) > 25
    assert np.median([model["width"] for model in late if "width" in model]) < 0.3


@pytest.mark.parametrize(
    "make", [lambda: TuneBOHB(max_concurrent=2), lambda: ConcurrencyLimiter(TuneBOHB(), 2)]
)
def test_so_many_at_once_and_paused_ones_do_not_count(make):
    results = tune.simulate(
        falling, {"x": tune.uniform(0, 1)}, searched(HyperBandForBOHB(max_t=9), make(), 17), workers=9, seed=0
    )
    assert {result.status for result in results} == {"TERMINATED"}
    began = [span.started for span in results.timeline[:6]]
    assert began == [0, 0, 1, 1, 2, 2]  # each pauses after one iteration, and leaves its place to another


def test_ten_thousand_trials_are_replayed_without_a_model(monkeypatch):
    made = 0

    def count(*arguments):
        nonlocal made
        made += 1

    monkeypatch.setattr(Knowledge, "_model", count)
    search = Search(ROW, PLANE, num_samples=10_001)
    rng = np.random.default_rng(0)
    space = search.searcher.space
    for n in range(10_000):
        config = space.configuration(0, rng)
        search.searcher.replay(f"t{n}", config)
        search.searcher.on_trial_complete(f"t{n}", {"loss": loss_of(config), "training_iteration": 1})
    assert made == 0
    assert space.contains(search.searcher.suggest("next"))
    assert made == 1


# --- names and bad input --------------------------------------------------------------------------


# row 1.29
@pytest.mark.external
def test_it_needs_numpy_only():
    """Neither SciPy nor statsmodels, ConfigSpace nor HpBandSter."""
    code = """
import sys
for name in ("scipy", "optuna", "statsmodels", "ConfigSpace", "hpbandster", "pandas", "sklearn", "torch"):
    sys.modules[name] = None
from trainkit import tune
results = tune.simulate(
    lambda config, training_iteration, rng: {"loss": config["x"]},
    {"x": tune.uniform(0, 1)},
    tune.TuneConfig(metric="loss", mode="min", num_samples=20, scheduler="hb_bohb", search_alg="bohb"),
    seed=0,
)
assert len(results) == 20
"""
    run_python("-c", code)


def test_a_space_of_another_package_is_refused():
    class ConfigurationSpace:
        pass

    with pytest.raises(ConfigError, match=r"must be a dictionary of tune's domains.*ConfigurationSpace"):
        TuneBOHB(ConfigurationSpace())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": ["a", "b"]}, "optimises one metric"),
        ({"mode": "least"}, "neither 'min' nor 'max'"),
        ({"seed": -1}, "seed=-1: give a whole number"),
        ({"max_concurrent": 1.5}, "max_concurrent=1.5"),
        ({"points_to_evaluate": [3]}, "give a list of dictionaries"),
        ({"points_to_evaluate": [{"x": 99}]}, "x=99 is not in uniform"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Search(ROW, PLANE, arguments=arguments)
