"""Conditions, branches and forbidden combinations: through the space, and to the end."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tune.test_space import suggestions
from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.tune.seeds import suggestion_generator
from trainkit.tune.values import decode_config, encode_config, holds_opaque
from trainkit.tune.variants import Space


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


# --- what is there, and what is not ---------------------------------------------------------------


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


def test_a_forbidden_combination_is_never_proposed():
    # rows 1.28 and 2.6
    for config in suggestions(optimizers(), num_samples=300):
        assert (config["optimizer"], config["lr"]) != ("adam", 1.0)


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


# --- grids ----------------------------------------------------------------------------------------


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


def test_a_grid_without_its_forbidden_combinations():
    axes = {"a": tune.grid_search([1, 2, 3]), "b": tune.grid_search([1, 2, 3])}
    for rule in ({"a": [1, 2], "b": 3}, lambda config: config["a"] < 3 and config["b"] == 3):
        found = suggestions({**axes, "rules": tune.forbid(rule)})
        assert [(config["a"], config["b"]) for config in found] == [
            (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3),
        ]  # fmt: skip


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
    assert values == [
        (3, 6),
        (4, 6),
        (5, 6),
        (3, 7),
        (4, 7),
        (None, 6),
    ]


def test_a_grid_that_would_take_too_long_to_list_is_refused(monkeypatch):
    monkeypatch.setattr("trainkit.tune.spaces.grid.MAX_LISTED", 100)
    axes = {name: tune.grid_search(range(10)) for name in "abc"}
    assert Space.of(axes).grid_size() == 1000
    with pytest.raises(SpaceError, match=r"more than 100 combinations.*use choice"):
        Space.of({**axes, "rules": tune.forbid({"a": 1, "b": 2})})


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


# --- one interface for every searcher -------------------------------------------------------------


def test_parameters_are_named_and_ordered():
    parameters = Space.of(optimizers()).parameters
    assert [parameter.name for parameter in parameters] == [
        "optimizer", "lr", "net", "net/width", "net[1]/width", "net/pool",
        "momentum", "nesterov", "net/size", "kernel/size",
    ]  # fmt: skip
    by_name = {parameter.name: parameter for parameter in parameters}
    assert by_name["momentum"].is_conditional
    assert str(by_name["momentum"].conditions[0]) == "optimizer='sgd' or 'rmsprop'"
    assert by_name["net[1]/width"].branches == (("net", 1),)
    assert not by_name["optimizer"].is_conditional


@given(st.integers(0, 2**32))
def test_walking_and_the_way_back(seed):
    # row 2.6
    space = Space.of(optimizers())
    rng = suggestion_generator(seed, 0)
    asked = []

    def ask(name, domain):
        asked.append((name, domain.draw(rng)))
        return asked[-1][1]

    config = space.walk(ask, rng)
    names = [name for name, _ in asked]
    assert len(set(names)) == len(names)
    assert set(names) <= {parameter.name for parameter in space.parameters}
    assert space.choices(config) == dict(asked)
    assert space.contains(config)
    again = decode_config(encode_config(config))  # as the store gives it
    found = space.choices(again)
    assert space.walk(lambda name, _: found[name], rng) == config
    assert space.allows(config) == ((config["optimizer"], config["lr"]) != ("adam", 1.0))


def test_an_axis_is_walked_as_a_choice():
    space = Space.of({"a": tune.grid_search([1, 2]), "b": tune.when({"a": 2}, tune.grid_search([3, 4]))})
    assert space.walk(lambda name, domain: domain.categories[0], np.random.default_rng(0)) == {"a": 1}
    assert space.walk(lambda name, domain: domain[1], np.random.default_rng(0)) == {"a": 2, "b": 4}
    assert space.choices({"a": 2, "b": 3}) == {"a": 2, "b": 3}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"lr": 5, "optimizer": "adam"}, ["lr=5", "uniform(0.0, 1.0)"]),
        ({"lr": 0.5, "optimizer": "lion"}, ["optimizer='lion'"]),
        ({"lr": 0.5, "optimizer": "sgd"}, ["momentum is missing"]),
        ({"lr": 0.5, "optimizer": "adam", "momentum": 0.5}, ["momentum=0.5", "only where optimizer='sgd'"]),
        ({"lr": 0.5, "optimizer": "adam", "width": 3}, ["width=3 is not in the space", "momentum"]),
        ({"lr": 0.5, "optimizer": "adam", "fixed": 2}, ["fixed=2", "1"]),
    ],
)
def test_a_configuration_of_another_space_is_told_so(config, words):
    # row 2.7
    space = Space.of(
        {
            "lr": tune.uniform(0, 1),
            "optimizer": tune.choice(["sgd", "adam"]),
            "momentum": tune.when({"optimizer": "sgd"}, tune.uniform(0.5, 1)),
            "fixed": 1,
            "computed": tune.sample_from(lambda spec: 3),
        }
    )
    with pytest.raises(SpaceError) as caught:
        space.choices({"fixed": 1, "computed": 3, **config})
    for word in words:
        assert word in str(caught.value)
    assert not space.contains({"fixed": 1, "computed": 3, **config})
    assert space.allows({"fixed": 1, "computed": 7, "optimizer": "adam", "lr": 0.5})


def test_a_grown_space_takes_the_old_configurations():
    # row 2.7: a category more, and wider bounds
    old = Space.of({"a": tune.choice([1, 2]), "b": tune.uniform(0, 1)})
    new = Space.of({"a": tune.choice([1, 2, 3]), "b": tune.uniform(-1, 1)})
    config = old.configuration(0, suggestion_generator(0, 0))
    assert new.allows(config)
    assert not old.allows({"a": 3, "b": 0.5})


class Plain:
    pass


def test_a_stored_configuration_gets_its_objects_back():
    # row 2.7: what text can't hold is known again by its name
    x = tune.when({"kind": Plain}, tune.uniform(0, 1))
    space = Space.of({"kind": tune.choice([Plain, dict]), "fixed": len, "x": x})
    for n in range(6):
        config = space.configuration(0, suggestion_generator(0, n))
        stored = decode_config(encode_config(config))
        assert holds_opaque(stored)
        assert space.allows(stored)
        found = space.choices(stored)
        assert space.walk(lambda name, _, found=found: found[name], suggestion_generator(0, 0)) == config


def test_how_many_configurations_there_are():
    def count(**space):
        return Space.of(space).cardinality()

    assert count() == 1
    assert count(a=tune.choice([1, 2, 2]), b=tune.randint(0, 5), c=tune.quniform(0, 1, 0.5)) == 30
    assert count(a=tune.choice([1, 2]), b=tune.uniform(0, 1)) is None
    assert count(a=tune.choice([1, 2]), b=tune.sample_from(lambda: 3)) is None
    assert count(a=tune.randint(0, 10**12), b=tune.choice([1, 2])) == 2 * 10**12
    a, b = tune.choice([1, 2]), tune.randint(0, 1000)
    assert count(a=a, b=tune.when({"a": 1}, b)) == 1001
    assert count(a=a, b=tune.when({"a": 1}, tune.uniform(0, 1))) is None
    assert count(a=a, b=b, r=tune.forbid({"a": 1, "b": [0, 1, 2]})) == 1997
    assert count(a=a, b=b, r=tune.forbid(lambda config: config["a"] == 1 and config["b"] < 100)) == 1900
    assert count(a=tune.choice([{"x": a, "y": b}, {"x": b}, 3])) == 3001
    assert count(a=a, b=tune.uniform(0, 1), r=tune.forbid({"a": 1})) is None
    one = count(a=a, b=tune.when({"a": 1}, tune.uniform(0, 1)), r=tune.forbid({"a": 1}))
    assert one == 1  # what has no end is forbidden
    assert count(a=tune.randint(0, 10**6), r=tune.forbid({"a": 3})) is None  # too many to look at each


def described(draw, depth=0, names="abcd"):
    """A small finite space: branches, conditions on what came before or comes after, rules."""
    space = {}
    for name in names[: draw(st.integers(1, len(names)))]:
        kind = draw(st.sampled_from(["choice", "grid", "int", "steps", "constant", "dict", "branch", "list"]))
        if depth and kind == "grid":
            kind = "choice"
        if depth == 2 and kind in ("dict", "branch"):
            kind = "constant"
        space[name] = {
            "choice": lambda: tune.choice([0, 1, 2][: draw(st.integers(1, 3))]),
            "grid": lambda: tune.grid_search([0, 1]),
            "int": lambda: tune.randint(0, draw(st.integers(1, 3))),
            "steps": lambda: tune.quniform(0, 1, 0.5),
            "constant": lambda: draw(st.integers(0, 2)),
            "dict": lambda: described(draw, depth + 1, "ab"),
            "branch": lambda: tune.choice([described(draw, depth + 2, "ab"), described(draw, 2, "xy"), 1]),
            "list": lambda: [tune.randint(0, 2), 7],
        }[kind]()
    plain = [name for name, leaf in space.items() if not isinstance(leaf, (dict, list))]
    for name in list(space):
        if plain and draw(st.integers(0, 3)) == 0:
            space[name] = tune.when({draw(st.sampled_from(plain)): draw(st.integers(0, 1))}, space[name])
    if plain and draw(st.booleans()):
        looked_at = draw(st.lists(st.sampled_from(plain), min_size=1, unique=True))
        space["r"] = tune.forbid({name: draw(st.integers(0, 1)) for name in looked_at})
    return space


@settings(max_examples=40)
@given(st.data())
def test_any_small_space(data):
    try:
        space = Space.of(described(data.draw))
    except SpaceError:  # conditions that can't be, such as on itself: they have their own tests
        assume(False)
    every = {}
    for n in range(200):
        config = space.configuration(n % space.grid_size(), suggestion_generator(1, n))
        every[encode_config(config)] = config
        assert space.allows(config)
    for config in every.values():
        found = space.choices(config)
        unasked = dict(found)
        assert space.walk(lambda name, _, left=unasked: left.pop(name), suggestion_generator(0, 0)) == config
        assert not unasked
    count = space.cardinality()
    assert count >= len(every)
    if count <= 12:
        assert count == len(every)
    axes = {parameter.name for parameter in space.parameters if parameter.is_axis}
    if axes == {parameter.name for parameter in space.parameters}:
        assert space.grid_size() == count


# --- points -----------------------------------------------------------------------------------------


def test_points_in_branches_and_under_conditions():
    space = optimizers()
    points = [
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "net": {"kind": "cnn", "width": 0.5}},
        {"net": {"kind": "mlp"}, "net/width": 2},
        {"optimizer": "adam"},
    ]
    found = suggestions(space, num_samples=5, points_to_evaluate=points)
    assert (found[0]["momentum"], found[0]["nesterov"]) == (0.9, True)
    assert found[0]["net"]["width"] == 0.5
    assert found[0]["net"]["pool"] in ("max", "mean")  # what the point leaves open is drawn
    assert found[1]["net"] == {"kind": "mlp", "width": 2}
    assert found[2]["optimizer"] == "adam"
    assert len(found) == 5
    assert Space.of(space).point(points[0]) == {
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": True,
        "net": Space.of(space).tree["net"].categories[1],
        "net[1]/width": 0.5,
    }


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"momentum": 0.9}, ["momentum=0.9", "only with optimizer='sgd' or 'rmsprop'", "give that too"]),
        ({"optimizer": "adam", "momentum": 0.9}, ["momentum=0.9", "optimizer='sgd'"]),
        ({"net/pool": "max"}, ["net/pool='max'", "category 1"]),
        ({"optimizer": "adam", "lr": 1.0}, ["'lr': 1.0", "forbidden", "optimizer='adam', lr=1.0"]),
        ({"net": {"kind": "mlp", "widht": 3}}, ["'widht': 3", "fits no category", "mlp"]),
        ({"net": {"kind": "mlp", "width": 99}}, ["'width': 99", "fits no category"]),
        ({"widht": 3}, ["widht=3", "net/width"]),
    ],
)
def test_a_point_that_cannot_be_is_refused_at_once(point, words):
    with pytest.raises(SpaceError) as caught:
        suggestions(optimizers(), points_to_evaluate=[point])
    for word in words:
        assert word in str(caught.value)


# --- mistakes ---------------------------------------------------------------------------------------

A = tune.choice([1, 2])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"a": A, "b": tune.when({"c": 1}, 3)}, ["b: when({'c': 1}, 3)", "looks at 'c'", "there is a, b"]),
        ({"optimizer": A, "b": tune.when({"optimiser": 1}, 3)}, ["'optimiser'", "there is optimizer"]),
        ({"a": A, "b": tune.when({"a": 3}, 4)}, ["b: when", "a=3", "never is", "choice([1, 2])"]),
        (
            {"a": tune.choice([{"x": A}, {"b": tune.when({"x": 1}, 3)}])},  # x is in the other branch
            ["a/b: when", "looks at 'x'"],
        ),
        ({"a": A, "b": tune.when({"a": []}, 4)}, ["no value for 'a'"]),
        ({"a": tune.when({"a": 1}, A)}, ["a -> a", "cannot look at what depends on it"]),
        ({"a": tune.when({"b": 1}, A), "b": tune.when({"a": 1}, A)}, ["a -> b -> a"]),
        ({"a": tune.when({"a/b": 1}, {"b": A})}, ["a -> a"]),
        ({"a": tune.sample_from(lambda: 1), "b": tune.when({"a": 1}, A)}, ["'a'", "computed"]),
        ({"a": A, "b": [tune.when({"a": 1}, A)]}, ["b/0", "list"]),
        ({"a": A, "b": tune.choice([tune.when({"a": 1}, A)])}, ["b: when", "dictionary"]),
        ({"a": A, "b": tune.when({"a": 1}, tune.when({"a": 2}, 3))}, ["b: two", "conditions on a"]),
        ({"a": A, "b": tune.when({"a": 1}, tune.grid_search([1]))}, ["b: whether", "a, which is drawn"]),
        ({"a": A, "r": tune.forbid({"b": 1})}, ["r: forbid looks at 'b'", "there is a"]),
        ({"a": A, "r": tune.forbid({"a": 3})}, ["r: forbid", "a=3", "never is"]),
        ({"a": A, "r": tune.forbid({"a": [1, 2]})}, ["every configuration is forbidden: a=1 or 2"]),
        ({"a": A, "r": tune.forbid(lambda config: config["a"] > 0)}, ["every configuration is forbidden"]),
        ({"a": tune.grid_search([1]), "r": tune.forbid({"a": 1})}, ["every configuration is forbidden"]),
        ({"a": A, "r": [tune.forbid({"a": 1})]}, ["r/0", "list"]),
        ({"a": A, "r": tune.when({"a": 1}, tune.forbid({"a": 1}))}, ["r: forbid", "name the conditions"]),
        ({"a": {"b": A}, "a/b": A}, ["two parameters", "'a/b'"]),
        ({"a": tune.choice([{"b": (A,)}])}, ["a/b", "inside a tuple"]),
        ({"a": tune.choice([{"b": tune.grid_search([1])}])}, ["a/b: grid_search([1])", "inside choice"]),
    ],
)
def test_a_mistake_names_its_key_before_anything_starts(space, words):
    with pytest.raises(SpaceError) as caught:
        Space.of(space)
    for word in words:
        assert word in str(caught.value)


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
    with pytest.raises(SpaceError, match="give"):
        make()


def test_rules_that_leave_nothing_end_in_an_error():
    # row 2.6: not in an endless loop, where no one can know beforehand
    space = Space.of({"a": tune.uniform(0, 1), "rules": tune.forbid(lambda config: config["a"] < 2)})
    with pytest.raises(SpaceError, match=r"10000 draws in a row were forbidden by .*lambda"):
        space.configuration(0, suggestion_generator(0, 0))


def test_a_rule_that_raises_is_named():
    def broken(config):
        return config["widht"] > 3

    space = Space.of({"a": tune.uniform(0, 1), "rules": tune.forbid(broken)})
    with pytest.raises(SpaceError, match=r"broken of forbid raised KeyError: 'widht'.*'a': 0\."):
        space.configuration(0, suggestion_generator(0, 0))


def test_conditions_survive_text():
    text = encode_config(Space.of(optimizers()).tree)
    assert not holds_opaque(decode_config(text))
    assert encode_config(decode_config(text)) == text
    assert suggestions(decode_config(text), num_samples=20) == suggestions(optimizers(), num_samples=20)
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
