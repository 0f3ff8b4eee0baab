"""Explore: frequencies, ranges and types, and what is refused."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.schedulers.pbt.explore import (
    changes,
    completed,
    explored,
    explored_value,
    multiplied,
)
from trainkit.tune.schedulers.pbt.scheduler import checked_mutations
from trainkit.tune.space.domains import Categorical, place_of
from trainkit.tune.space.search_space import Space

FACTORS = (1.2, 0.8)


def frequencies(value, mutation, draws: int = 4000) -> dict:
    rng = np.random.default_rng(7)
    found: dict = {}
    for _ in range(draws):
        new, _ = explored_value(value, mutation, rng, 0.25, FACTORS)
        found[new] = found.get(new, 0) + 1 / draws
    return found


# --- property 23 ----------------------------------------------------------------------------------


def test_a_list_moves_by_one_place_or_is_drawn_anew():  # property 23
    found = frequencies(10, [1, 10, 100])
    for value, share in ((10, 0.083), (1, 0.458), (100, 0.458)):
        assert found[value] == pytest.approx(share, abs=4 * math.sqrt(share / 4000))


@pytest.mark.parametrize("coin", [tune.choice([True, False]), tune.choice(["heads", "tails"])])
def test_a_choice_keeps_its_value_unless_it_is_drawn_anew(coin):  # property 23
    found = frequencies(coin.categories[0], coin)
    assert found[coin.categories[0]] == pytest.approx(0.875, abs=0.02)


ranges = st.tuples(st.integers(-50, 50), st.integers(1, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(ranges, st.data(), st.sampled_from([1, 2, 5]), st.sampled_from([0.1, 0.8, 0.99, 1.01, 1.2, 3.0]))
def test_a_whole_number_moves_unless_the_range_ends_there(bounds, data, q, factor):  # property 23
    lower, upper = bounds
    domain = tune.randint(lower, upper) if q == 1 else tune.qrandint(lower - q, upper + q, q)
    value = data.draw(st.sampled_from(list(domain.values())))
    new = multiplied(value, factor, domain)
    assert type(new) is int and domain.contains(new)
    low, high = domain.bounds
    up = (factor > 1) == (value >= 0)
    if new == value:
        assert value == (high if up else low)
    else:
        assert (new > value) == up


@given(
    st.sampled_from(
        [
            tune.uniform(-1, 2),
            tune.uniform(0, 1),
            tune.loguniform(1e-5, 1e-1),
            tune.quniform(-1, 1, 0.1),
            tune.qloguniform(0.01, 1, 0.01),
            tune.randint(0, 5),
            tune.lograndint(1, 1000),
            tune.qrandint(0, 60, 5),
            tune.randn(0, 1),
            tune.qrandn(0, 1, 0.5),
            tune.choice(["a", 1, None]),
        ]
    ),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_what_is_explored_stays_in_range_and_of_its_type(domain, seed, resample):  # property 23, row 1.13
    rng = np.random.default_rng(seed)
    value = domain.draw(rng)
    kind = type(value)
    for _ in range(20):
        value, _ = explored_value(value, domain, rng, resample, FACTORS)
        assert domain.contains(value)
        if not isinstance(domain, Categorical):
            assert type(value) is kind


def test_steps_are_exact():
    assert multiplied(0.2, 1.2, tune.quniform(0, 1, 0.1)) == 0.3


def test_a_start_outside_the_range_comes_inside():
    rng = np.random.default_rng(0)
    assert explored_value(5.0, tune.uniform(0, 1), rng, 0.0, FACTORS)[0] == 1.0
    assert place_of(explored_value(7, [1, 2], rng, 0.0, FACTORS)[0], [1, 2]) is not None


@pytest.mark.parametrize("zero", [0, 0.0])
def test_zero_of_a_function_stays_zero_until_it_is_drawn_anew(zero):
    rng = np.random.default_rng(0)

    def draw():
        return random.choice([zero, 1e-4, 1e-3])

    assert {explored_value(zero, draw, rng, 0.0, FACTORS)[0] for _ in range(50)} == {zero}
    assert {explored_value(zero, draw, rng, 1.0, FACTORS)[0] for _ in range(50)} == {zero, 1e-4, 1e-3}


def test_a_tuple_of_two_numbers_may_mean_two_things():
    with pytest.raises(ConfigError, match=r"tune\.uniform\(0, 1\), or a list \[0, 1\] of choices"):
        checked_mutations({"x": (0, 1)})
    assert checked_mutations({"x": ("a", "b"), "y": (1, 2, 3)}) == {"x": ["a", "b"], "y": [1, 2, 3]}


@pytest.mark.parametrize(
    ("space", "mutated", "meant"),
    [
        ({"x": 1.0}, {"X": 1}, "'x'"),
        ({"momentum": 1.0}, {"momentun": 1}, "'momentum'"),
        ({"net": {"width": 4}}, {"net": {"widht": 1}}, "'width'"),
        ({"h1": 1.0}, {"h2": 1}, None),
        ({"beta1": 1.0}, {"beta2": 1}, None),
        ({"lr": 1.0}, {"dropout": 1}, None),
        ({"lr": 1.0, 3: 1.0}, {"lrs": 1, "lr": 1}, None),
    ],
)
def test_a_name_much_like_one_of_the_space_is_refused(space, mutated, meant):
    def filled(tree):
        return {name: filled(each) if isinstance(each, dict) else [1, 2] for name, each in tree.items()}

    mutations = checked_mutations(filled(mutated))
    if meant is None:
        assert set(completed(space, mutations)) == {*space, *mutated}
    else:
        with pytest.raises(ConfigError, match=f"Did you mean {meant}"):
            completed(space, mutations)


def test_functions_draw_what_the_seed_says():
    values = [explored_value(0.5, random.random, np.random.default_rng(3), 1.0, FACTORS)[0] for _ in range(2)]
    values += [
        explored_value(0.5, lambda: np.random.rand(), np.random.default_rng(3), 1.0, FACTORS)[0]
        for _ in range(2)
    ]
    assert values[0] == values[1] and values[2] == values[3]
    assert all(type(value) is float for value in values)


def test_nested_values_are_explored_and_others_are_left_alone():
    config = {"net": {"lr": 0.1, "width": 8}, "name": "a", "drop": 0.5}
    mutations = checked_mutations({"net": {"lr": tune.uniform(0, 1)}, "drop": [0.1, 0.5], "absent": [1, 2]})
    new, operations = explored(config, mutations, np.random.default_rng(0), 0.0, FACTORS)
    assert new == {"net": {"lr": pytest.approx(0.1, rel=0.21), "width": 8}, "name": "a", "drop": new["drop"]}
    assert config["net"]["lr"] == 0.1 and "absent" not in new
    assert set(operations) == {"net/lr", "drop"}
    facts = changes(config, new, mutations, operations)
    assert facts["net/lr"] == {"old": 0.1, "new": new["net"]["lr"], "how": operations["net/lr"]}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mutation", "words"),
    [
        ([], "empty"),
        ({}, "empty"),
        (3, "must be a domain"),
        ("text", "must be a domain"),
        (tune.grid_search([1, 2]), "not supported as a mutation"),
        ({"grid_search": [1, 2]}, "grid"),
        (tune.sample_from(lambda spec: 1), "not supported as a mutation"),
    ],
)
def test_what_is_no_mutation_is_refused(mutation, words):
    with pytest.raises(ConfigError, match=words) as error:
        checked_mutations({"net": {"lr": mutation}})
    assert "lr" in str(error.value)


def test_a_space_is_completed_by_what_only_the_mutations_name():
    space = completed(
        {"x": 1, "net": {"lr": 0.1}},
        checked_mutations(
            {
                "x": tune.randint(0, 5),
                "lr": tune.uniform(0, 1),
                "size": [1, 2, 4],
                "drawn": random.random,
                "net": {"lr": tune.uniform(0, 1), "width": [8, 16]},
                "deep": {"down": {"flag": tune.choice([True, False])}},
            }
        ),
    )
    config = Space.of(space).configuration(0, np.random.default_rng(0))
    assert config["x"] == 1 and config["net"]["lr"] == 0.1
    assert 0 <= config["lr"] < 1 and config["size"] in (1, 2, 4) and 0 <= config["drawn"] < 1
    assert config["net"]["width"] in (8, 16) and type(config["deep"]["down"]["flag"]) is bool


@pytest.mark.parametrize(
    ("start", "mutation"),
    [
        ("adam", tune.uniform(0, 1)),
        (tune.choice(["a", "b"]), tune.randint(0, 5)),
        (True, tune.uniform(0, 1)),
        (1, {"inner": [1, 2]}),
    ],
)
def test_a_start_that_its_mutation_cannot_change_is_refused(start, mutation):
    with pytest.raises(ConfigError, match="'x'"):
        completed({"x": start}, checked_mutations({"x": mutation}))
