"""Conditions, branches and forbidden combinations: through the space, in grids, and to the end."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import pytest

from tests.tune.space.test_space import refused, suggestions
from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config, holds_opaque


def optimizers():
    return {
        "nesterov": tune.when({"momentum": tune.uniform(0.7, 1)}, tune.choice([True, False])),
        "optimizer": tune.choice(["sgd", "adam", "rmsprop"]),
        "momentum": tune.when({"optimizer": ["sgd", "rmsprop"]}, tune.uniform(0.5, 0.99)),
        "lr": tune.choice([0.001, 1.0]),
        "net": tune.choice(
            [
                {"kind": "mlp", "width": tune.randint(1, 4)},
                {
                    "kind": "cnn",
                    "width": tune.uniform(0, 1),
                    "pool": tune.choice(["max", "mean"]),
                    "size": tune.when({"pool": "max"}, tune.randint(2, 4)),
                },
            ]
        ),
        "kernel": tune.when({"net/kind": "cnn"}, {"size": tune.qrandint(3, 7, 2), "bias": True}),
        "rules": tune.forbid({"optimizer": "adam", "lr": 1.0}),
    }


def test_inactive_parameters_are_absent():
    # row 1.28
    seen = set()
    for config in suggestions(optimizers(), num_samples=200):
        seen.add((config["optimizer"], config["net"]["kind"], config["net"].get("pool")))
        assert ("momentum" in config) == (config["optimizer"] != "adam")
        assert ("nesterov" in config) == (config.get("momentum", 0) >= 0.7)
        cnn = config["net"]["kind"] == "cnn"
        assert ("kernel" in config) == ("pool" in config["net"]) == cnn
        assert isinstance(config["net"]["width"], float) == cnn
        assert ("size" in config["net"]) == (config["net"].get("pool") == "max")
        assert "rules" not in config
        assert list(config) == [key for key in optimizers() if key in config]
    assert len(seen) == 9


def test_a_condition_may_look_at_constants_numbers_and_the_root():
    space = {
        "depth": tune.randint(1, 4),
        "mode": "fast",
        "net": {
            "second": tune.when({"depth": [2, 3]}, tune.uniform(0, 1)),
            "third": tune.when({"depth": tune.randint(3, 9), "mode": "fast"}, {"width": tune.choice([8])}),
            "fourth": tune.when({"net/width": 1}, 3),
            "fifth": tune.when({"mode": ["slow", "fast"]}, 3),
            "width": 2,
        },
    }
    for config in suggestions(space, num_samples=30):
        assert ("second" in config["net"]) == (config["depth"] >= 2)
        assert ("third" in config["net"]) == (config["depth"] == 3)
        assert "fourth" not in config["net"]
        assert config["net"]["fifth"] == 3


def test_a_condition_on_a_category_that_is_a_list():
    space = {
        "layers": tune.choice([[8], [8, 8]]),
        "skip": tune.when({"layers": [8, 8]}, True),
        "any": tune.when({"layers": [[8], [8, 8]]}, True),
    }
    for config in suggestions(space, num_samples=10):
        assert ("skip" in config) == (config["layers"] == [8, 8])
        assert config["any"]


def test_what_is_computed_may_stand_under_a_condition_and_in_a_branch():
    space = {
        "a": tune.choice([1, 2]),
        "b": tune.when({"a": 2}, tune.sample_from(lambda spec: spec.config.a * 10)),
        "c": tune.choice([{"d": tune.sample_from(lambda spec: spec.config.get("b", 0))}]),
    }
    for config in suggestions(space, num_samples=10):
        assert config.get("b") == (20 if config["a"] == 2 else None)
        assert config["c"]["d"] == (20 if config["a"] == 2 else 0)


# --- mistakes ---------------------------------------------------------------------------------------

A = tune.choice([1, 2])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"a": A, "b": tune.when({"c": 1}, 3)}, ["b: when({'c': 1}, 3)", "reads 'c'", "the space has a, b"]),
        ({"optimizer": A, "b": tune.when({"optimiser": 1}, 3)}, ["'optimiser'", "the space has optimizer"]),
        ({"a": A, "b": tune.when({"a": 3}, 4)}, ["b: when", "a=3", "impossible", "choice([1, 2])"]),
        (
            {"a": tune.choice([{"x": A}, {"b": tune.when({"x": 1}, 3)}])},  # x is in the other branch
            ["a/b: when", "reads 'x'"],
        ),
        ({"a": A, "b": tune.when({"a": []}, 4)}, ["no value for 'a'"]),
        ({"a": tune.when({"a": 1}, A)}, ["a -> a", "depend on each other in a circle"]),
        ({"a": tune.when({"b": 1}, A), "b": tune.when({"a": 1}, A)}, ["a -> b -> a"]),
        ({"a": tune.when({"a/b": 1}, {"b": A})}, ["a -> a"]),
        ({"a": tune.sample_from(lambda: 1), "b": tune.when({"a": 1}, A)}, ["'a'", "computed"]),
        ({"a": A, "b": [tune.when({"a": 1}, A)]}, ["b/0", "list"]),
        ({"a": A, "b": tune.choice([tune.when({"a": 1}, A)])}, ["b: when", "dictionary"]),
        ({"a": A, "b": tune.when({"a": 1}, tune.when({"a": 2}, 3))}, ["b: two", "conditions on a"]),
        ({"a": A, "b": tune.when({"a": 1}, tune.grid_search([1]))}, ["grid axis b", "a, which is sampled"]),
        ({"a": A, "r": tune.forbid({"b": 1})}, ["r: forbid reads 'b'", "the space has a"]),
        ({"a": A, "r": tune.forbid({"a": 3})}, ["r: forbid", "a=3", "impossible"]),
        ({"a": A, "r": tune.forbid({"a": [1, 2]})}, ["is forbidden by the rules a=1 or 2"]),
        ({"a": A, "r": tune.forbid(lambda config: config["a"] > 0)}, ["every configuration is forbidden"]),
        ({"a": tune.grid_search([1]), "r": tune.forbid({"a": 1})}, ["every configuration is forbidden"]),
        ({"a": A, "r": [tune.forbid({"a": 1})]}, ["r/0", "list"]),
        ({"a": A, "r": tune.when({"a": 1}, tune.forbid({"a": 1}))}, ["forbid(", "add the conditions"]),
        ({"a": {"b": A}, "a/b": A}, ["two parameters", "'a/b'"]),
        ({"a": tune.choice([{"b": (A,)}])}, ["a/b", "a tuple can't contain domains"]),
        ({"a": tune.choice([tune.grid_search([1])])}, ["a: grid_search([1])", "inside choice"]),
        ({"a": tune.choice([{"b": tune.grid_search([1])}])}, ["a/b: grid_search([1])", "inside choice"]),
    ],
)
def test_a_mistake_names_its_key_before_anything_starts(space, words):
    refused(lambda: Space.of(space), *words)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tune.when({}, 3),
        lambda: tune.when("a", 3),
        lambda: tune.when({1: 2}, 3),
        lambda: tune.forbid(),
        lambda: tune.forbid({}),
        lambda: tune.forbid("a"),
        lambda: tune.forbid({1: 2}),
    ],
)
def test_a_malformed_condition_is_refused(make):
    with pytest.raises(SpaceError, match=r"(when|forbid)\(\) needs"):
        make()


LISTS = {
    "a": tune.loguniform(1e-5, 0.1),
    "b": [tune.randint(1, 5), {"c": tune.choice([1, "x", (2, 3), {"d": tune.uniform(0, 1)}])}],
    "g": tune.grid_search([None, True]),
}


@pytest.mark.parametrize("space", [optimizers(), LISTS])
def test_a_space_survives_text(space):
    text = encode_config(Space.of(space).tree)
    assert not holds_opaque(decode_config(text))
    assert encode_config(decode_config(text)) == text
    assert suggestions(decode_config(text), num_samples=20) == suggestions(space, num_samples=20)
    with_function = {"a": A, "rules": tune.forbid(lambda config: config["a"] == 1)}
    assert holds_opaque(decode_config(encode_config(Space.of(with_function).tree)))


# --- to the end -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("inline")
def test_inactive_parameters_are_in_no_table_and_no_file(fit, tmp_path):
    # rows 1.28 and 2.6
    def objective(config):
        tune.report({"loss": config["lr"] + config.get("momentum", 0)})

    space = {
        "optimizer": tune.grid_search(["sgd", "adam"]),
        "momentum": tune.when({"optimizer": "sgd"}, tune.uniform(0.5, 0.99)),
        "lr": tune.choice([0.001, 1.0]),
        "net": tune.choice([{"kind": "mlp", "width": tune.randint(1, 9)}, {"kind": "linear"}]),
        "rules": tune.forbid({"optimizer": "adam", "lr": 1.0}),
    }
    results = fit(objective, space, metric="loss", num_samples=6, seed=5)
    assert len(results) == 12
    (folder,) = tmp_path.iterdir()
    rows = sqlite3.connect(folder / "experiment.sqlite").execute("SELECT config, tag FROM trials").fetchall()
    for result, (stored, tag) in zip(results, rows, strict=True):
        config = result.config
        assert json.loads(stored) == config
        logged = [config, json.loads(Path(result.path, "params.json").read_text())]
        logged += [
            json.loads(line)["config"] for line in Path(result.path, "result.json").read_text().splitlines()
        ]
        for each in logged:
            assert each == config
            assert ("momentum" in each) == (each["optimizer"] == "sgd")
            assert ("width" in each["net"]) == (each["net"]["kind"] == "mlp")
            assert "rules" not in each
            assert (each["optimizer"], each["lr"]) != ("adam", 1.0)
        with open(Path(result.path, "progress.csv")) as file:
            header = next(csv.reader(file))
        assert ("config/momentum" in header) == ("momentum" in config)
        assert ("momentum=" in tag) == ("momentum" in config)
        assert ("width=" in tag) == ("width" in config["net"])
        assert "kind=" in tag
    restored = tune.Tuner.restore(str(folder), objective).fit()
    assert [result.config for result in restored] == [result.config for result in results]
    # row 2.7: the space grows while the study stands
    grown = {
        **space,
        "momentum": tune.when({"optimizer": "sgd"}, tune.uniform(0.5, 1)),
        "decay": tune.when({"optimizer": "adam"}, tune.choice([0.1])),
    }
    more = tune.TuneConfig(metric="loss", mode="min", num_samples=8)
    longer = tune.Tuner.restore(str(folder), objective, param_space=grown, tune_config=more).fit()
    assert [result.config for result in longer][:12] == [result.config for result in results]
    assert len(longer) > 12
    for result in list(longer)[12:]:
        assert ("decay" in result.config) == (result.config["optimizer"] == "adam")


def test_an_inactive_axis_multiplies_nothing():
    space = {
        "optimizer": tune.grid_search(["sgd", "adam", "lion"]),
        "momentum": tune.when({"optimizer": ["sgd", "lion"]}, tune.grid_search([0.5, 0.9])),
        "beta": tune.when({"momentum": 0.9, "optimizer": "lion"}, tune.grid_search([1, 2, 3])),
        "width": tune.grid_search([8, 16]),
        "lr": tune.uniform(0, 1),
    }
    found = suggestions(space, num_samples=2)
    combinations = [tuple((key, value) for key, value in config.items() if key != "lr") for config in found]
    # sgd: 2 momenta; adam: 1; lion: one momentum alone, one with 3 betas; each with 2 widths
    assert len(set(combinations)) == (2 + 1 + 1 + 3) * 2
    assert len(combinations) == 2 * len(set(combinations))
    assert Space.of({**space, "lr": 1}).cardinality() == 14


def test_the_branches_of_an_axis():
    space = {
        "net": tune.grid_search([{"kind": "mlp", "width": tune.grid_search([1, 2])}, {"kind": "linear"}]),
        "seed": tune.grid_search([0, 1]),
    }
    found = suggestions(space)
    assert len(found) == 6
    assert {encode_config(config) for config in found} == {
        encode_config({"net": net, "seed": seed})
        for seed in (0, 1)
        for net in ({"kind": "mlp", "width": 1}, {"kind": "mlp", "width": 2}, {"kind": "linear"})
    }


def test_a_point_leaves_the_rest_of_a_grid_open():
    space = {
        "a": tune.grid_search([1, 2]),
        "b": tune.when({"a": 1}, tune.grid_search([3, 4, 5])),
        "c": tune.grid_search([6, 7]),
        "rules": tune.forbid({"b": 5, "c": 7}),
    }
    found = suggestions(space, num_samples=2, points_to_evaluate=[{"a": 1}, {"c": 6, "a": 2}])
    # An axis under a condition comes last, so it varies fastest.
    values = [(config.get("b"), config["c"]) for config in found]
    assert values == [(3, 6), (4, 6), (5, 6), (3, 7), (4, 7), (None, 6)]


def test_a_grid_that_would_take_too_long_to_list_is_refused(monkeypatch):
    monkeypatch.setattr("trainkit.tune.space.parameters.MAX_LISTED", 100)
    axes = {name: tune.grid_search(range(10)) for name in "abc"}
    assert Space.of(axes).grid_size() == 1000
    with pytest.raises(SpaceError, match=r"more than 100 combinations.*use choice"):
        Space.of({**axes, "rules": tune.forbid({"a": 1, "b": 2})})


def test_a_grid_without_its_forbidden_combinations():
    axes = {"a": tune.grid_search([1, 2, 3]), "b": tune.grid_search([1, 2, 3])}
    for rule in ({"a": [1, 2], "b": 3}, lambda config: config["a"] < 3 and config["b"] == 3):
        found = suggestions({**axes, "rules": tune.forbid(rule)})
        assert [(config["a"], config["b"]) for config in found] == [
            (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3),
        ]  # fmt: skip


def test_rules_between_axes_and_draws():
    space = {
        "a": tune.grid_search([1, 2, 3]),
        "b": tune.choice([1, 2]),
        "c": tune.uniform(0, 1),
        "rules": tune.forbid(
            {"a": 1, "b": [1, 2]},  # nothing is left of a=1
            {"a": 2, "b": 1},
            lambda config: config["a"] == 3 and config["c"] < 0.5,
        ),
    }
    found = suggestions(space, num_samples=20)
    assert [config["a"] for config in found] == [2, 3] * 20
    assert all(config["b"] == 2 for config in found if config["a"] == 2)
    assert all(config["c"] >= 0.5 for config in found if config["a"] == 3)


def test_a_rule_is_not_judged_by_what_is_not_drawn_yet():
    space = {
        "a": tune.grid_search([1, 2]),
        "b": tune.choice([1, 2]),
        "net": {"c": tune.when({"b": 2}, 5)},
        "double": tune.sample_from(lambda spec: spec.config.b * 2),
        "rules": tune.forbid(
            lambda config: config["net"].get("c") is None and config["a"] == 1,
            lambda config: config["double"] != 4 and config["a"] == 2,
            {"double": 2, "a": 1},
        ),
    }
    found = suggestions(space, num_samples=5)
    assert [config["a"] for config in found] == [1, 2] * 5
    assert all(config["b"] == 2 and config["net"] == {"c": 5} for config in found)


def test_rules_that_leave_nothing_end_in_an_error():
    # row 2.6: not in an endless loop, where no one can know beforehand
    space = Space.of({"a": tune.uniform(0, 1), "rules": tune.forbid(lambda config: config["a"] < 2)})
    with pytest.raises(SpaceError, match=r"10000 random configurations in a row are forbidden by .*lambda"):
        space.configuration(0, suggestion_generator(0, 0))


def test_a_rule_that_raises_is_named():
    def broken(config):
        return config["widht"] > 3

    space = Space.of({"a": tune.uniform(0, 1), "rules": tune.forbid(broken)})
    with pytest.raises(SpaceError, match=r"forbid\(.*broken\) raised KeyError: 'widht'.*'a': 0\."):
        space.configuration(0, suggestion_generator(0, 0))
