"""Grids under conditions, and combinations that are never proposed."""

from __future__ import annotations

import pytest

from tests.tune.space.test_space import suggestions
from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import encode_config


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
