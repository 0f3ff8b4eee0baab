"""A space as searchers see it: parameters in order, the way back, points, how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune.space.test_conditions import optimizers
from tests.tune.space.test_space import refused, suggestions
from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config, holds_opaque


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
    assert list(space.choices(config).items()) == asked
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
        ({"lr": 0.5, "optimizer": "adam", "momentum": 0.5}, ["momentum=0.5", "only with optimizer='sgd'"]),
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
    refused(lambda: space.choices({"fixed": 1, "computed": 3, **config}), *words)
    assert not space.contains({"fixed": 1, "computed": 3, **config})
    assert space.allows({"fixed": 1, "computed": 7, "optimizer": "adam", "lr": 0.5})


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


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_any_small_space(data):
    try:
        space = Space.of(described(data.draw))
    except SpaceError:  # conditions that can't be, such as on itself: they have their own tests
        assume(False)
    every: dict[str, Any] = {}
    count, draws = space.cardinality(), 0
    # A configuration deep in the branches comes rarely: of few, all are waited for.
    while draws < 200 or (len(every) < count <= 12 and draws < 20_000):
        config = space.configuration(draws % space.grid_size(), suggestion_generator(1, draws))
        every[encode_config(config)] = config
        assert space.allows(config)
        draws += 1
    for config in every.values():
        found = space.choices(config)
        unasked = dict(found)
        assert space.walk(lambda name, _, left=unasked: left.pop(name), suggestion_generator(0, 0)) == config
        assert not unasked
    assert count >= len(every)
    if count <= 12:
        assert count == len(every)
    axes = {parameter.name for parameter in space.parameters if parameter.is_axis}
    if axes == {parameter.name for parameter in space.parameters}:
        assert space.grid_size() == count


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
        ({"momentum": 0.9}, ["momentum=0.9", "only with optimizer='sgd' or 'rmsprop'", "give these too"]),
        ({"optimizer": "adam", "momentum": 0.9}, ["momentum=0.9", "optimizer='sgd'"]),
        ({"net/pool": "max"}, ["net/pool='max'", "category 1"]),
        ({"optimizer": "adam", "lr": 1.0}, ["'lr': 1.0", "forbidden", "optimizer='adam', lr=1.0"]),
        ({"net": {"kind": "mlp", "widht": 3}}, ["'widht': 3", "matches no category", "mlp"]),
        ({"net": {"kind": "mlp", "width": 99}}, ["'width': 99", "matches no category"]),
        ({"widht": 3}, ["widht=3", "net/width"]),
    ],
)
def test_a_point_that_cannot_be_is_refused_at_once(point, words):
    refused(lambda: suggestions(optimizers(), points_to_evaluate=[point]), *words)
