"""BayesOptSearch: the package bayesian-optimization over continuous spaces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.searchers.bayesopt import Box, Coordinates
from trainkit.plugins.testing.searcher import Row, Search
from trainkit.tune.search import BayesOptSearch
from trainkit.tune.space.domains import Domain
from trainkit.tune.space.search_space import Space

pytestmark = pytest.mark.usefixtures("inline")

PLANE = {"x": tune.uniform(-10, 10), "net": {"lr": tune.loguniform(1e-4, 1)}, "constant": [1, 2]}


def row_of(**arguments) -> Row:
    return Row("bayesopt", lambda **given: BayesOptSearch(**{"random_search_steps": 4, **arguments, **given}))


def loss_of(config) -> float:
    return (config["x"] - 2) ** 2 + (math.log10(config["net"]["lr"]) + 2) ** 2


# row 1.24
@pytest.mark.slow
def test_it_finds_the_best_in_few_trials_and_one_seed_gives_one_history():
    configs = Search(row_of(), PLANE, num_samples=14).run(loss=loss_of)
    assert all(config["constant"] == [1, 2] for config in configs)
    assert min(map(loss_of, configs)) < 0.5
    assert configs[:8] == Search(row_of(), PLANE, num_samples=8).run(loss=loss_of)
    # Ray's default seed is its own.
    assert configs[:4] == Search(row_of(), PLANE, num_samples=4, seed=5).run(loss=loss_of)
    assert configs[:4] != Search(row_of(random_state=1), PLANE, num_samples=4).run(loss=loss_of)


@pytest.mark.parametrize("kind", ["ucb", "ei", "poi"])
def test_each_acquisition_function_learns_where_more_is_better(kind):
    row = row_of(utility_kwargs={"kind": kind, "kappa": 2.0, "xi": 0.01}, mode="max")
    configs = Search(row, PLANE, num_samples=8).run(loss=lambda config: -loss_of(config))
    losses = list(map(loss_of, configs))
    assert min(losses[4:]) < min(losses[:4])


@pytest.mark.slow
def test_trials_that_run_keep_others_away():
    search = Search(row_of(), {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}, num_samples=40)
    search.run(8)
    batch = [search.next() for _ in range(4)]
    points = np.array([[config["x"], config["y"]] for config in batch])
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + 100 * np.eye(4)
    assert distances.min() > 0.5


def test_failures_in_the_random_phase_do_not_stall_it():
    """Ray's waits for as many results as there are random trials, for ever if one fails."""
    search = Search(row_of(), PLANE, num_samples=9)
    while search.next() is not None:
        search.finish(list(search.configs)[-1], error=len(search.configs) % 2 == 0, loss=math.nan)
    assert len(search.configs) == 9


@pytest.mark.slow
def test_a_search_that_insists_ends_by_its_patience():
    """At a constant slope the model wants the corner, again and again."""
    insists = {"utility_kwargs": {"kappa": 0.0}, "random_search_steps": 3, "repeat_float_precision": 1}
    space = {"x": tune.uniform(0, 1)}
    configs = Search(row_of(**insists), space, num_samples=30).run(loss=lambda config: config["x"])
    assert len(configs) < 30
    again = row_of(**insists, skip_duplicate=False)
    assert len(Search(again, space, num_samples=10).run(loss=lambda config: config["x"])) == 10


def test_bounds_of_its_own_as_in_ray(fit):
    search = BayesOptSearch({"x": (-10, 10), "net/lr": (1e-4, 1)}, metric="loss", mode="min")
    grid = fit(lambda config: {"loss": loss_of(config)}, {"c": 3}, num_samples=12, search_alg=search)
    for result in grid:
        assert set(result.config) == {"x", "net", "c"}
        assert 1e-4 <= result.config["net"]["lr"] <= 1


def test_what_is_forbidden_never_comes():
    space = {"x": tune.uniform(0, 1), "rule": tune.forbid(lambda config: config["x"] < 0.5)}
    configs = Search(row_of(), space, num_samples=6).run(loss=lambda config: -config["x"])
    assert len(configs) == 6
    assert all(config["x"] >= 0.5 for config in configs)


@pytest.mark.parametrize(
    ("arguments", "space", "words"),
    [
        ({}, {"x": tune.uniform(0, 1), "n": tune.randn()}, "n: BayesOptSearch supports bounds"),
        ({}, {"a": tune.choice([0, 1]), "b": tune.when({"a": 1}, tune.uniform(0, 1))}, "b: BayesOptSearch"),
        ({}, {"g": tune.grid_search([1, 2])}, "g: BayesOptSearch"),
        ({"space": {"x": (1, 0)}}, {}, "lower bound"),
        ({"space": [1]}, {}, "space="),
        ({"mode": "least"}, PLANE, "'least'"),
        ({"metric": ["a", "b"]}, PLANE, "one metric"),
        ({"patience": 0}, PLANE, "patience=0"),
        ({"random_state": -1}, PLANE, "random_state=-1"),
        ({"random_search_steps": 1.5}, PLANE, "random_search_steps=1.5"),
        ({"utility_kwargs": {"kind": "best"}}, PLANE, "kind='best'"),
        ({"utility_kwargs": {"kapa": 1}}, PLANE, "kapa"),
        ({"utility_kwargs": {"kappa": math.nan}}, PLANE, "kappa=nan"),
        ({"points_to_evaluate": [{"z": 3}]}, PLANE, "z=3"),
        ({"points_to_evaluate": [{"x": 30}]}, PLANE, "x=30"),
    ],
)
def test_a_mistake_is_named(arguments, space, words):
    with pytest.raises(ConfigError, match=words):
        Search(row_of(**arguments), space)


# --- values that are no real numbers ----------------------------------------------------------------

DOMAINS: list[Domain] = [
    tune.uniform(-2, 5),
    tune.loguniform(1e-4, 1),
    tune.quniform(0, 1, 0.1),
    tune.qloguniform(0.5, 64, 0.5),
    tune.randint(-3, 9),
    tune.lograndint(1, 300),
    tune.qrandint(4, 32, 4),
    tune.choice(["a", None, (1, 2), 1.5]),
    tune.choice([{"nested": 1}]),
    tune.randint(7, 8),
]


@given(st.sampled_from(DOMAINS), st.integers(0, 2**32))
def test_a_value_has_a_place_and_a_place_its_value(domain: Domain, seed: int) -> None:
    code = Coordinates("x", domain)
    value = domain.draw(np.random.default_rng(seed))
    place = code.encode(value)
    assert place.keys() == code.bounds.keys()
    assert all(low <= place[name] <= high for name, (low, high) in code.bounds.items())
    again = code.decode(place)
    assert again == value or math.isclose(again, value, rel_tol=1e-9)


@given(st.sampled_from(DOMAINS), st.data())
def test_every_place_within_the_bounds_is_a_value(domain: Domain, data: Any) -> None:
    code = Coordinates("x", domain)
    place = {name: data.draw(st.floats(low, high), label=name) for name, (low, high) in code.bounds.items()}
    assert domain.contains(code.decode(place))


def test_neighbours_among_a_million_whole_numbers_are_two() -> None:
    box = Box(Space.of({"n": tune.randint(0, 10**6), "x": tune.uniform(0, 1)}), own=False)

    def mark(n: int, x: float) -> list[list[float]]:
        return box.mark(box.encoded({"n": n, "x": x}), 5)

    assert mark(500_000, 0.5) != mark(500_001, 0.5)
    assert mark(500_000, 0.5) == mark(500_000, 0.5000001)
    assert mark(500_000, 0.5) != mark(500_000, 0.50002)


@pytest.mark.parametrize("size", [2, 5])
def test_of_a_list_every_value_is_tried_once_and_then_the_search_ends(size: int) -> None:
    # row 2.13: the model insists on the best, and what is left is found all the same
    def report(config: dict[str, Any]) -> dict[str, float]:
        return {"score": float(config["place"])}

    grid = tune.Tuner(
        report,
        param_space={"place": tune.choice(list(range(size)))},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=size + 4,
            search_alg=BayesOptSearch(random_search_steps=1),
            max_concurrent_trials=1,
        ),
        run_config=tune.RunConfig(verbose=0),
    ).fit()
    assert sorted(result.config["place"] for result in grid) == list(range(size))
