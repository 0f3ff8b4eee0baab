"""HyperOptSearch: hyperopt's TPE over our spaces and its own."""

from __future__ import annotations

import itertools
import math

import hyperopt
import numpy as np
import pytest
from hyperopt import hp

from tests.tune.search.domains import ALL_DOMAINS
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.testing.searcher import TREE, Row, Search
from trainkit.tune.search import HyperOptSearch
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config

pytestmark = pytest.mark.usefixtures("inline")

ROW = Row("hyperopt", HyperOptSearch)
PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}
OWN = {
    "lr": hp.loguniform("lr", -9, 0),
    "steps": hp.uniformint("steps", 1, 9),
    "layers": [hp.quniform("first", 8, 64, 8), 32],
    "model": hp.choice(
        "model",
        [
            {"kind": "tree", "depth": hp.randint("depth", 2, 10)},
            {"kind": "net", "act": hp.choice("act", ["relu", "tanh"]), "p": hp.uniform("p", 0, 1)},
        ],
    ),
}


def test_suggestions_are_hyperopts_own():
    """Its own suggest function, with the same trials and seed, comes to the same."""
    from trainkit.tune.core.seeds import suggestion_words

    search = Search(ROW, PLANE, num_samples=30)
    configs = search.run()
    space = {name: hp.uniform(name, -10, 10) for name in "xy"}
    domain = hyperopt.Domain(lambda config: 0, space)
    documents = []
    for number, config in enumerate(configs):
        trials = hyperopt.base.trials_from_docs(documents, validate=False)
        seed = suggestion_words(0, number, 0, 1)[0] % 2**31
        (document,) = hyperopt.tpe.suggest([number], domain, trials, seed, verbose=False)
        assert {name: value[0] for name, value in document["misc"]["vals"].items()} == config
        loss = sum(math.sin(value) for value in config.values())
        documents.append({**document, "state": 2, "result": {"status": "ok", "loss": loss}})


# rows 1.5, 1.28, 2.6
def test_all_domains_are_searched_and_restored():
    search = Search(ROW, ALL_DOMAINS, num_samples=60)
    search.run(30)
    restored = search.restored()
    assert search.run(3) == restored.run(3)
    for config in search.configs.values():
        for name, domain in ALL_DOMAINS.items():
            if name not in ("list", "computed", "objects"):
                assert domain.contains(config[name]), (name, config[name])
        assert config["computed"] == 2 * config["randint"]
    assert {config["qrandint"] % 5 for config in search.configs.values()} == {0}


def test_ends_of_whole_numbers_are_as_likely_as_their_neighbours():
    row = Row("random", lambda **given: HyperOptSearch(n_initial_points=10**6, **given))
    search = Search(row, {"n": tune.randint(0, 4), "z": tune.uniform(0, 1)}, num_samples=400)
    counts = np.bincount([config["n"] for config in search.run()])
    assert len(counts) == 4
    assert counts.min() > 70  # of 100 expected; half of it at the ends, were they rounded to


def test_a_conditional_parameter_is_modelled_by_the_trials_that_have_it():
    def loss(config):
        model = config["model"]
        return 1.0 if model["name"] == "tree" else abs(model["width"] - 0.3)

    late = [config["model"] for config in Search(ROW, TREE, num_samples=100).run(loss=loss)[60:]]
    nets = [model["width"] for model in late if model["name"] == "net"]
    assert len(nets) > 20
    assert np.median(np.abs(np.array(nets) - 0.3)) < 0.15


def test_running_trials_and_nan_are_taken_for_bad_and_failures_are_left_out():
    bad = itertools.cycle([math.inf, -math.inf, math.nan])
    search = Search(ROW, {"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)}, num_samples=120)
    configs = search.run(loss=lambda config: next(bad) if config["x"] < 0.7 else config["y"])
    assert sum(config["x"] > 0.7 for config in configs[60:]) > 30  # of 60; by chance it would be 18
    failing = Search(ROW, PLANE, num_samples=50)
    while failing.next() is not None:
        failing.finish(list(failing.configs)[-1], error=True)
    assert len(failing.configs) == 50


# --- hyperopt's own spaces ------------------------------------------------------------------------


def test_a_space_of_hyperopts(fit):
    def loss(config):
        model = config["model"]
        return {"loss": abs(math.log(config["lr"]) + 3) + model.get("p", 1) + config["extra"]}

    points = [
        {"lr": 0.5, "steps": 2, "layers": [8.0, 32], "model": {"kind": "net", "act": "tanh", "p": 0.25}},
        {"lr": 0.25, "model": {"kind": "tree"}},
    ]
    search = HyperOptSearch(OWN, metric="loss", mode="min", points_to_evaluate=points)
    grid = fit(loss, {"extra": 0}, num_samples=40, search_alg=search)
    configs = [result.config for result in grid]
    assert {key: configs[0][key] for key in points[0]} == points[0]
    assert (configs[1]["lr"], configs[1]["model"]["kind"]) == (0.25, "tree")
    for config in configs:
        assert set(config) == {"lr", "steps", "layers", "model", "extra"}
        assert isinstance(config["steps"], int)
        assert config["layers"][0] % 8 == 0
        assert config["layers"][1] == 32
        expected = {"tree": {"kind", "depth"}, "net": {"kind", "act", "p"}}[config["model"]["kind"]]
        assert set(config["model"]) == expected
    assert {config["model"]["kind"] for config in configs} == {"tree", "net"}


# rows 1.5, 2.9
def test_a_space_of_hyperopts_is_restored_without_asking(monkeypatch):
    search = Search(Row("own", lambda **given: HyperOptSearch(OWN, **given)), {"c": 1}, num_samples=40)
    search.run(28)
    asked = []
    suggest = hyperopt.tpe.suggest
    monkeypatch.setattr(
        hyperopt.tpe, "suggest", lambda *given, **more: asked.append(1) or suggest(*given, **more)
    )
    restored = search.restored()
    assert not asked
    assert search.run(3) == restored.run(3)


def test_a_choice_of_dictionaries_is_a_space():
    space = hp.choice("kind", [{"a": hp.uniform("a", 0, 1)}, {"b": hp.normal("b", 0, 1), "c": (1, 2)}])
    search = Search(Row("own", lambda **given: HyperOptSearch(space, **given)), {}, num_samples=25)
    search.run(22)
    restored = search.restored()
    assert search.run(3) == restored.run(3)
    assert {tuple(sorted(config)) for config in search.configs.values()} == {("a",), ("b", "c")}


def test_what_text_cannot_hold_is_asked_for_again():
    space = {"f": hp.choice("f", [math.sin, math.cos]), "x": hp.uniform("x", 0, 1)}
    search = HyperOptSearch(space, metric="loss", mode="min")
    search.begin(Space.of({}), metric=None, mode=None, num_samples=9, seed=0)
    config = search.suggest("t")
    assert config["f"] in (math.sin, math.cos)
    assert search.replay("u", decode_config(encode_config(config))) is None


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "space", "words"),
    [
        ({"mode": "least"}, PLANE, "'least'"),
        ({"n_initial_points": 0}, PLANE, "n_initial_points=0"),
        ({"gamma": -1}, PLANE, "gamma=-1"),
        ({"random_state_seed": 1.5}, PLANE, "random_state_seed=1.5"),
        ({"points_to_evaluate": [{"z": 3}]}, PLANE, "z=3"),
        ({"points_to_evaluate": [{"x": 30}]}, PLANE, "x=30"),
        ({"space": 3}, {}, "space=3"),
        ({"space": {"a": hp.uniform("x", 0, 1), "b": hp.uniform("x", 0, 2)}}, {}, "the label 'x'"),
        ({"space": [hp.uniform("x", 0, 1)]}, {}, "space="),
        ({"space": hp.uniform("x", 0, 1)}, {}, "dictionary"),
        ({"space": {"a": hp.uniform("a", 0, 1)}, "points_to_evaluate": [{"b": 1}]}, {}, "'b': 1"),
        ({}, {"x": tune.grid_search([1, 2])}, "x: HyperOptSearch samples"),
        ({"metric": ["a", "b"]}, PLANE, r"\['a', 'b'\]"),
    ],
)
def test_a_mistake_is_named(arguments, space, words):
    with pytest.raises(ConfigError, match=words):
        Search(Row("r", HyperOptSearch), space, arguments=arguments)
