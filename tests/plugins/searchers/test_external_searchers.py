"""Searchers of other packages: the promises of every searcher, and what each package adds."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, MissingDependencyError
from trainkit.plugins.testing.searcher import Row, Search, SearcherSuite
from trainkit.tune.search import AxSearch, NevergradSearch, RustunaSearch, SkOptSearch, SMACSearch
from trainkit.tune.search.registry import create_searcher, describe_searcher, described_searcher

# The suite would ask a model hundreds of times, and some take a second: `test_the_model_is_asked` asks those.
SLOW = 45
ROWS = (
    Row("rustuna", lambda **given: RustunaSearch(n_initial_points=5, **given)),
    Row("nevergrad", NevergradSearch),
    Row("nevergrad-swarm", lambda **given: NevergradSearch("PSO", **given)),
    Row("nevergrad-cma", lambda **given: NevergradSearch("CMA", **given)),
    Row("skopt", lambda **given: SkOptSearch(n_initial_points=SLOW, **given)),
    Row("smac", lambda **given: SMACSearch(n_initial_points=SLOW, **given)),
    Row("ax", lambda **given: AxSearch(n_initial_points=SLOW, **given)),
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ax", "ignore::DeprecationWarning:torch")


class TestSearchers(SearcherSuite):
    @pytest.fixture(params=ROWS, ids=str)
    def row(self, request):
        return request.param


ng = importlib.import_module("nevergrad")  # after the class, which lets it load
SPACE = {
    "x": tune.uniform(-1, 1),
    "kind": tune.choice([{"name": "wide", "width": tune.randint(1, 64)}, {"name": "deep"}]),
}
MODELS = {
    "ax": lambda **given: AxSearch(n_initial_points=8, **given),
    "rustuna": lambda **given: RustunaSearch(n_initial_points=8, multivariate=False, **given),
    "skopt": lambda **given: SkOptSearch(n_initial_points=8, base_estimator="ET", **given),
    "smac": lambda **given: SMACSearch(n_initial_points=8, **given),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a space with a condition, with trials that run; a restore comes to the same."""
    search = Search(Row(name, MODELS[name]), SPACE, num_samples=13)
    asked = []
    original = type(search.searcher)._asked
    monkeypatch.setattr(
        type(search.searcher), "_asked", lambda self, seed: asked.append(seed) or original(self, seed)
    )
    for number in range(11):
        config = search.next()
        assert config is not None
        if number < 10:
            search.finish(list(search.configs)[-1], loss=abs(config["x"] - 0.3))
    assert len(asked) == 3
    restored = search.restored()
    assert search.next() == restored.next()
    assert len(asked) == 5


def test_ax_keeps_to_constraints() -> None:
    """Of the parameters in each configuration, drawn or asked; of a metric once the model knows of it."""
    given = {"parameter_constraints": ["x + 2 * y <= 1", "y <= x"], "outcome_constraints": ["far <= 1.5"]}
    row = Row("ax", lambda **more: AxSearch(n_initial_points=8, **given, **more))
    search = Search(row, {"x": tune.uniform(0, 3), "y": tune.uniform(-1, 1)}, num_samples=9)
    for _ in range(9):
        config = search.next()
        assert config is not None
        assert config["x"] + 2 * config["y"] <= 1 + 1e-6
        assert config["y"] <= config["x"] + 1e-6
        result = {"loss": -config["x"], "far": config["x"], "training_iteration": 1}
        search.tell("result", list(search.configs)[-1], result)
        search.tell("complete", list(search.configs)[-1], result)
    assert config["x"] < 2  # the best without the metric's bound is at 3


@pytest.mark.parametrize("name", ["kind", "z"])
def test_a_parameter_that_no_constraint_can_have_is_named(name: str) -> None:
    row = Row("ax", lambda **given: AxSearch(parameter_constraints=[f"{name} <= 1"], **given))
    with pytest.raises(ConfigError, match=f"names '{name}', which is not a tune.uniform parameter"):
        Search(row, {"kind": tune.choice([1, 2])}, num_samples=1)


@pytest.mark.parametrize("optimizer", ["TwoPointsDE", ng.optimizers.OnePlusOne, "CMA", "PSO"])
def test_an_optimizer_of_nevergrad_comes_near_the_best(optimizer: Any) -> None:
    space = {"x": tune.uniform(-1, 1), "y": tune.loguniform(1e-3, 1e3)}
    search = Search(Row(str(optimizer), lambda **given: NevergradSearch(optimizer, **given)), space, 80)

    def loss(config: dict[str, Any]) -> float:
        return float((config["x"] - 0.3) ** 2 + abs(config["y"] - 1) / 1000)

    assert min(map(loss, search.run(loss=loss))) < 0.02


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NevergradSearch("NoSuch"), "nevergrad.optimizers.registry"),
        (lambda: NevergradSearch("BO"), "BayesOptSearch"),
        (lambda: NevergradSearch("Cobyla"), "waits for each result"),
        (lambda: NevergradSearch(3), "nevergrad.optimizers"),
        (lambda: NevergradSearch(optimizer_kwargs=3), "optimizer_kwargs"),
        (lambda: NevergradSearch(budget=0), "budget"),
        (lambda: SkOptSearch(base_estimator="XX"), "base_estimator"),
        (lambda: SkOptSearch(acq_func="XX"), "acq_func"),
        (lambda: AxSearch(method="best"), "method"),
        (lambda: AxSearch(parameter_constraints=["x + y"]), "has no <= or >="),
        (lambda: AxSearch(outcome_constraints=["x * y <= 1"]), "multiplies parameters"),
        (lambda: SMACSearch(n_initial_points=0), "n_initial_points"),
        (lambda: RustunaSearch(space=[("x", 1)]), "give RustunaSearch domains"),
        (lambda: AxSearch({"x": tune.grid_search([1, 2])}), "grid_search"),
    ],
)
def test_what_is_wrong_is_said(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rustuna", None)
    with pytest.raises(MissingDependencyError, match=r"trainkit-ml\[rustuna\]"):
        RustunaSearch()


@pytest.mark.parametrize(
    "searcher",
    [
        NevergradSearch("CMA", budget=50, seed=3),
        RustunaSearch(multivariate=False),
        SkOptSearch(acq_func="LCB"),
        SMACSearch(n_initial_points=4),
        AxSearch(method="quality", parameter_constraints=["x <= 1"], outcome_constraints=["m >= 2 * n"]),
    ],
    ids=lambda searcher: type(searcher).__name__,
)
def test_a_searcher_is_made_again_from_its_description(searcher: Any) -> None:
    description = describe_searcher(searcher)
    again = described_searcher(description)
    assert type(again) is type(searcher)
    assert describe_searcher(again) == description
    assert type(create_searcher(type(searcher).__name__)) is type(searcher)


def test_a_tuner_searches_by_one(inline: None, fit: Any) -> None:
    results = fit(
        lambda config: tune.report({"loss": (config["x"] - 0.3) ** 2}),
        {"x": tune.uniform(-1, 1)},
        metric="loss",
        num_samples=24,
        search_alg="rustuna",
        seed=0,
    )
    assert results.get_best_result().metrics["loss"] < 0.05
