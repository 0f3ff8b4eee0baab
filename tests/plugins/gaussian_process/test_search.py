"""`GaussianProcessSearch` in searches: what it finds, what it survives, and that it forgets nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl

from tests.packages import ROOT
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.gaussian_process.model import IN_MODEL, thinned
from trainkit.plugins.testing.searcher import Row, Search, SearcherSuite
from trainkit.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    Repeater,
    create_searcher,
)
from trainkit.tune.space.search_space import Space

ROW = Row("gp", GaussianProcessSearch)
PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}
LEARNERS = {
    "learner": tune.choice(list("abcde")),
    **{
        f"{each}{number}": tune.when({"learner": each}, tune.uniform(0, 1))
        for each in "abcde"
        for number in range(2)
    },
}


def bowl(config):
    return (config["x"] - 2) ** 2 + (config["y"] + 1) ** 2


def by_learner(config):
    learner = config["learner"]
    first, second = config[f"{learner}0"], config[f"{learner}1"]
    return 0.2 * "abcde".index(learner) + (first - 0.3) ** 2 + (second - 0.7) ** 2


def best_of(space, loss, number, *, seed, make=GaussianProcessSearch):
    configs = Search(Row("it", make), space, num_samples=number, seed=seed).run(loss=loss)
    return min(map(loss, configs))


class TestConformance(SearcherSuite):
    def make(self, **arguments):
        return GaussianProcessSearch(**arguments)


class TestConformanceUnderWrappers(SearcherSuite):
    @pytest.fixture(
        params=[
            Row("limited", lambda **given: ConcurrencyLimiter(GaussianProcessSearch(**given), 64)),
            Row("repeated", lambda **given: Repeater(GaussianProcessSearch(**given), 2), repeat=2),
        ],
        ids=str,
    )
    def row(self, request):
        return request.param


@pytest.mark.parametrize("space, loss, share", [(PLANE, bowl, 0.01), (LEARNERS, by_learner, 0.5)])
def test_it_finds_more_than_random_draws(space, loss, share):
    ours = [best_of(space, loss, 25, seed=seed) for seed in range(5)]
    drawn = [best_of(space, loss, 25, seed=seed, make=BasicVariantGenerator) for seed in range(30)]
    assert np.median(ours) < share * np.median(drawn)


def test_its_name_is_in_the_registry():
    assert isinstance(create_searcher("gp", seed=3), GaussianProcessSearch)


def test_the_first_is_the_centre_and_points_come_before():
    search = Search(ROW, PLANE, arguments={"points_to_evaluate": [{"x": 5.0, "y": -5.0}, {"x": 1.0}]})
    first, second, third = search.run(3)
    assert first == {"x": 5.0, "y": -5.0} and second["x"] == 1.0
    assert third["x"] == pytest.approx(0, abs=1e-9) and third["y"] == pytest.approx(0, abs=1e-9)


def test_trials_at_once_are_apart():
    search = Search(ROW, PLANE, num_samples=40)
    search.run(10, loss=bowl)
    configs = [search.next() for _ in range(8)]
    distances = [math.dist(a.values(), b.values()) for a in configs for b in configs if a is not b]
    assert min(distances) > 1e-3


def test_many_workers_begin_before_any_result():
    search = Search(ROW, PLANE, num_samples=40)
    configs = [search.next() for _ in range(30)]
    strata = {(int(config["x"] // 5), int(config["y"] // 5)) for config in configs}
    assert len(strata) == 16


def test_failed_trials_keep_it_away():
    """A quarter of the space fails; the best losses are beside it."""

    def fails(config):
        return config["x"] > 0 and config["y"] < 0

    search, failed = Search(ROW, PLANE, num_samples=40), []
    while (config := search.next()) is not None:
        failed.append(fails(config))
        search.finish(list(search.configs)[-1], math.nan if failed[-1] else bowl(config), error=failed[-1])
    assert sum(failed[20:]) < 8
    worked = [config for config in search.configs.values() if not fails(config)]
    assert (
        min(map(bowl, worked)) < 5.1
    )  # 1 beside one border of the region, 4 beside the other, 5 in its corner


def test_evaluated_points_are_the_first_results():
    searcher = GaussianProcessSearch(PLANE, metric="loss", mode="min", seed=0)
    rng = np.random.default_rng(0)
    for x, y in rng.uniform(-10, 10, (20, 2)):
        searcher.add_evaluated_point({"x": x, "y": y}, bowl({"x": x, "y": y}))
    assert bowl(searcher.suggest("0")) < 4


@pytest.mark.parametrize("mode", ["min", "max"])
def test_it_goes_where_the_mode_says(mode):
    sign = 1 if mode == "max" else -1
    searcher = GaussianProcessSearch({"x": tune.uniform(-1, 1)}, metric="m", mode=mode, seed=0)
    for number in map(str, range(9)):
        searcher.on_trial_complete(number, {"m": searcher.suggest(number)["x"]})
    assert sign * searcher.suggest("9")["x"] > 0.5


def test_more_trials_than_the_model_holds():
    search = Search(ROW, {f"x{n}": tune.uniform(0, 1) for n in range(4)}, num_samples=400)

    def loss(config):
        return sum((value - 0.4) ** 2 for value in config.values())

    searcher, rng = search.searcher, np.random.default_rng(0)
    for row in rng.random((IN_MODEL + 50, 4)):
        config = dict(zip(search.space, row.tolist(), strict=True))
        searcher.add_evaluated_point(config, loss(config))
    before = min(point.value for point in searcher.evaluated)
    configs = search.run(4, loss=loss)
    assert min(map(loss, configs)) < 0.2 * before


def test_results_beyond_those_that_the_model_chooses_from():
    losses = np.random.default_rng(0).permutation(5000).astype(float)
    losses[::7] = math.nan
    chosen = thinned(losses.tolist(), 800)
    assert len(chosen) <= 800 and chosen == sorted(set(chosen))
    assert {*np.argsort(losses)[:266].tolist(), *range(4734, 5000)} <= {*chosen}
    assert np.diff(chosen).max() < 25


def test_no_trial_is_repeated_if_the_model_contains_only_some():
    size = 14
    searcher = GaussianProcessSearch()
    points = np.random.default_rng(0).permutation(size * size)
    for point in points[:-6]:
        x, y = divmod(int(point), size)
        searcher.add_evaluated_point({"x": x, "y": y}, (x - 7) ** 2 + (y - 7) ** 2)
    space = {"x": tune.randint(0, size), "y": tune.randint(0, size)}
    searcher.begin(Space.of(space), metric="loss", mode="min", num_samples=6, seed=0)
    left = {divmod(int(point), size) for point in points[-6:]}
    for number in range(6):
        config = searcher.suggest(f"t{number}")
        left.remove((config["x"], config["y"]))


def test_a_space_of_constants_and_one_of_a_single_value():
    assert Search(ROW, {"a": 1}, num_samples=3, allow_duplicates=True).run() == [{"a": 1}] * 3
    assert Search(ROW, {"a": tune.choice([1])}, num_samples=3, allow_duplicates=True).run() == [{"a": 1}] * 3


def test_computed_values_and_long_lists():
    names = [f"name {number}" for number in range(60)]
    space = {
        "name": tune.choice(names),
        "x": tune.uniform(0, 1),
        "twice": tune.sample_from(lambda config: 2 * config["x"]),
    }

    def loss(config):
        return names.index(config["name"]) % 7 + config["twice"]

    configs = Search(ROW, space, num_samples=40).run(loss=loss)
    assert all(config["twice"] == 2 * config["x"] for config in configs)
    assert min(map(loss, configs)) < 1.5


def test_a_schedule_of_simulated_trials_takes_it():
    results = tune.simulate(
        lambda config, training_iteration, rng: {"loss": bowl(config) + 1 / training_iteration},
        PLANE,
        tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=30,
            search_alg="gp",
            scheduler=tune.schedulers.ASHAScheduler(max_t=9, reduction_factor=3),
        ),
        workers=4,
        seed=0,
    )
    assert len(results) == 30 and not results.errors
    assert results.get_best_result().metrics["loss"] < 0.5


@pytest.mark.usefixtures("inline")
def test_a_restored_experiment_makes_the_suggestions_that_were_next(fit, restore):
    def objective(config):
        return {"loss": bowl(config), "training_iteration": 1}

    config = {"metric": "loss", "mode": "min", "seed": 4, "search_alg": "gp", "max_concurrent_trials": 1}
    whole = fit(objective, PLANE, **config, num_samples=12, run={"name": "whole"})
    fit(objective, PLANE, **config, num_samples=7, run={"name": "part"})
    rest = restore(objective, "part", num_samples=12)
    assert [each.config for each in rest] == [each.config for each in whole]


def test_searches_in_threads_leave_the_number_of_blas_threads():
    def search(seed):
        best_of(PLANE, bowl, 10, seed=seed)

    def numbers():
        return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2):
        before = numbers()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(search, range(8)))
        assert numbers() == before


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="give GaussianProcessSearch domains"):
        GaussianProcessSearch([1, 2])
    with pytest.raises(ConfigError, match="use choice instead of grid_search"):
        GaussianProcessSearch({"x": tune.grid_search([1, 2])})


@pytest.mark.external
def test_it_needs_numpy_alone():
    program = """
import sys
from trainkit import tune
searcher = tune.search.GaussianProcessSearch({"x": tune.uniform(0, 1)}, metric="m", mode="min", seed=0)
for number in map(str, range(9)):
    searcher.on_trial_complete(number, {"m": searcher.suggest(number)["x"]})
print(sorted({"scipy", "sklearn", "torch", "optuna", "pandas"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=100
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_partial_points_of_a_space_with_two_conditional_lists():
    space = {
        "a": tune.choice(["p", "q", "r"]),
        "b": tune.choice(["s", "t"]),
        "x": tune.when({"a": "p"}, tune.uniform(0, 1)),
        "y": tune.when({"b": "s"}, tune.uniform(0, 1)),
    }
    points = [{"a": "p"}, {"b": "s"}, {"a": "q"}, {"b": "t"}]
    searcher = GaussianProcessSearch(points_to_evaluate=points)
    searcher.begin(Space.of(space), metric="loss", mode="min", num_samples=8, seed=0)
    configs = [searcher.suggest(f"t{n}") for n in range(8)]
    assert all(point.items() <= config.items() for point, config in zip(points, configs, strict=False))
