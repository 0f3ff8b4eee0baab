"""Spaces that are functions of an Optuna trial."""

from __future__ import annotations

import optuna
import pytest

from trainkit.errors import ConfigError
from trainkit.plugins.testing.searcher import Row, Search
from trainkit.tune.search import OptunaSearch

pytestmark = pytest.mark.usefixtures("inline")
optuna.logging.set_verbosity(optuna.logging.WARNING)


def space(trial):
    kind = trial.suggest_categorical("model/kind", ["tree", "net"])
    if kind == "tree":
        trial.suggest_int("model/depth", 1, 9)
    else:
        layers = trial.suggest_int("model/layers", 1, 3)
        for layer in range(layers):
            trial.suggest_float(f"model/width/{layer}", 8, 64)
    trial.suggest_float("lr", 1e-4, 1, log=True)
    return {"data/folds": 5, "version": "a"}


def check(config) -> None:
    assert set(config) == {"model", "lr", "data", "version"}
    assert config["data"] == {"folds": 5}
    model = config["model"]
    if model["kind"] == "tree":
        assert set(model) == {"kind", "depth"}
    else:
        assert set(model) == {"kind", "layers", "width"}
        assert set(model["width"]) == {str(layer) for layer in range(model["layers"])}


# row 1.28
def test_branches_become_nested_configurations(fit):
    search = OptunaSearch(space, metric="loss", mode="min")
    grid = fit(lambda config: {"loss": config["lr"]}, num_samples=25, search_alg=search)
    for result in grid:
        check(result.config)
    assert {result.config["model"]["kind"] for result in grid} == {"tree", "net"}
    best = grid.get_best_result(metric="loss", mode="min")
    assert best.config["lr"] == min(result.config["lr"] for result in grid)


def replacing(trial):
    return {"x": 10 ** trial.suggest_float("x", -3, 0)}


def test_a_function_may_return_another_value_under_the_same_name():
    search = Search(Row("replacing", lambda **given: OptunaSearch(replacing, **given)), {}, num_samples=20)
    for config in search.run(14):
        assert 1e-3 <= config["x"] <= 1
    restored = search.restored()
    assert search.run(3) == restored.run(3)


# row 2.13
def test_what_it_has_drawn_before_is_drawn_anew_until_it_gives_up():
    def small(trial):
        trial.suggest_categorical("x", ["a", "b", "c"])

    search = Search(Row("small", lambda **given: OptunaSearch(small, **given)), {}, num_samples=9)
    assert sorted(config["x"] for config in search.run()) == ["a", "b", "c"]
    assert "no new configuration that is allowed" in search.source.reason


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda trial: 3, "returned 3: return None or a dictionary"),
        (lambda trial: {1: 2}, "return None or a dictionary"),
        (lambda trial: trial.suggest_float("x", 1, 0), "ValueError"),
        (lambda trial: trial.suggest_nothing("x"), "AttributeError"),
    ],
)
def test_a_mistake_is_named(function, words):
    search = Search(Row("wrong", lambda **given: OptunaSearch(function, **given)), {})
    with pytest.raises(ConfigError, match=words):
        search.next()
