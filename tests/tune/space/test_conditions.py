"""Conditions, branches and forbidden combinations: through the space, and to the end."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import pytest

from tests.tune.space.test_space import refused, suggestions
from trainkit import tune
from trainkit.errors import SpaceError
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
