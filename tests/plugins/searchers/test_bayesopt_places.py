"""Where BayesOptSearch's model has values that are no real numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.plugins.searchers.bayesopt import BayesOptSearch, Box, Coordinates
from trainkit.tune.space.domains import Domain
from trainkit.tune.space.search_space import Space

pytestmark = pytest.mark.usefixtures("inline")

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
