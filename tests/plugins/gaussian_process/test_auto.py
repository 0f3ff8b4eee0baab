"""`AutoSearch`: which searcher it is, and that it is one in every respect."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.svm import SVC

from trainkit import tune
from trainkit.plugins.testing.searcher import SearcherSuite
from trainkit.sklearn import TuneSearchCV
from trainkit.tune.search import (
    AutoSearch,
    BasicVariantGenerator,
    GaussianProcessSearch,
    Searcher,
    create_searcher,
    describe_searcher,
    described_searcher,
)
from trainkit.tune.space.search_space import Space

PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}


class TestConformance(SearcherSuite):
    def make(self, **arguments):
        return AutoSearch(**arguments)


def begun(space, metric="loss", num_samples=9, **arguments) -> Searcher:
    searcher = create_searcher("auto", **arguments)
    mode = metric and "min"
    searcher.begin(Space.of(space), metric=metric, mode=mode, num_samples=num_samples, seed=0)
    return searcher


@pytest.mark.parametrize("num_samples", [1, 2, -1])
def test_it_learns_where_there_is_something_to_learn(num_samples):
    assert isinstance(begun(PLANE, num_samples=num_samples).searcher, GaussianProcessSearch)


@pytest.mark.parametrize(
    "space, metric",
    [
        (PLANE, None),
        ({"x": tune.grid_search([1, 2])}, "loss"),
        ({**PLANE, "z": tune.grid_search([1, 2])}, "loss"),
        ({"x": 1}, "loss"),
        ({"x": tune.sample_from(lambda config: 3)}, "loss"),
    ],
)
def test_otherwise_it_draws_as_before(space, metric):
    searcher = begun(space, metric)
    assert isinstance(searcher.searcher, BasicVariantGenerator)
    plain = BasicVariantGenerator()
    plain.begin(Space.of(space), metric=metric, mode=metric and "min", num_samples=9, seed=0)
    assert searcher.suggest("t") == plain.suggest("t")
    assert searcher.total_samples == plain.total_samples


def test_several_objectives_are_drawn_for():
    results = tune.simulate(
        lambda config, training_iteration, rng: {"a": config["x"], "b": -config["x"], "done": True},
        PLANE,
        tune.TuneConfig(metric=["a", "b"], mode=["min", "min"], num_samples=6, search_alg="auto"),
        seed=0,
    )
    assert len(results) == 6 and not results.errors


def test_a_restore_makes_it_again():
    made = AutoSearch(points_to_evaluate=[{"x": 1.0}], seed=5)
    again = described_searcher(describe_searcher(made))
    assert isinstance(again, AutoSearch) and again.arguments == made.arguments
    for searcher in (made, again):
        searcher.begin(Space.of(PLANE), metric="loss", mode="min", num_samples=9, seed=0)
    assert [made.suggest(f"{n}") for n in range(3)] == [again.suggest(f"{n}") for n in range(3)]


def drawn(space, seed=0, **arguments):
    plain = BasicVariantGenerator(**arguments)
    plain.begin(Space.of(space), metric="loss", mode="min", num_samples=1, seed=seed)
    return plain.suggest("t")


def test_one_sample_is_drawn_as_before_and_learned_from_after_a_restore():
    one = begun(PLANE, num_samples=1)
    assert one.suggest("t") == drawn(PLANE)
    again = described_searcher(describe_searcher(create_searcher("auto", num_samples=1)))
    again.begin(Space.of(PLANE), metric="loss", mode="min", num_samples=9, seed=0)
    assert again.suggest("t") == drawn(PLANE)
    one.resize(9)
    assert one.suggest("t1") == again.suggest("t1")


def test_a_single_sample_keeps_the_values_of_a_point():
    space = {**PLANE, "net": tune.choice([{"a": tune.uniform(0, 1)}, {"b": 2}])}
    points = [{"x": 3.0}]
    assert begun(space, num_samples=1, points_to_evaluate=points).suggest("t") == drawn(
        space, points_to_evaluate=points
    )


def test_points_from_elsewhere_are_for_the_searcher_itself():
    with pytest.raises(NotImplementedError, match="use GaussianProcessSearch"):
        AutoSearch().add_evaluated_point({"x": 1, "y": 1}, 3.0)


@pytest.mark.process
def test_scikit_learn_searches_know_the_name():
    x, y = load_iris(return_X_y=True)
    search = TuneSearchCV(
        SVC(),
        {"C": tune.loguniform(1e-4, 1e4), "gamma": tune.loguniform(1e-6, 1e2)},
        n_trials=12,
        search_optimization="auto",
        random_state=0,
        n_jobs=1,
    ).fit(x, y)
    assert search.best_score_ > 0.95
    first = search.cv_results_["params"][0]
    np.testing.assert_allclose([first["C"], first["gamma"]], [1, 1e-2])
