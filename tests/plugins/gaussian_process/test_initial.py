"""The first configurations: the centre, then an even spread, with each branch early."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import qmc

from trainkit import tune
from trainkit.plugins.gaussian_process import initial
from trainkit.plugins.gaussian_process.encoding import Encoding
from trainkit.tune.core.seeds import initial_generator, suggestion_generator
from trainkit.tune.space.search_space import Space


def encoded(space) -> Encoding:
    return Encoding(Space.of(space))


def test_direction_numbers_are_those_of_joe_and_kuo():
    chosen = np.arange(256)[:, None] >> np.arange(initial.BITS) & 1
    digits = np.einsum("nk,dkb->ndb", chosen, initial.directions()) % 2
    ours = digits @ 0.5 ** np.arange(1, initial.BITS + 1)
    theirs = qmc.Sobol(len(initial.directions()), scramble=False).random(256)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))


@pytest.mark.parametrize("dimensions", [1, 5, 21, 50])
@pytest.mark.parametrize("seed", [0, 7])
def test_each_power_of_two_points_is_even_in_each_dimension(dimensions, seed):
    points = np.array([initial.sobol(number, dimensions, seed) for number in range(32)])
    for number in (16, 32):
        strata = np.sort(np.floor(points[:number] * number), axis=0)
        assert (strata == np.arange(number)[:, None]).all()
    assert len({tuple(column) for column in points.T}) == dimensions


def test_pairs_of_dimensions_are_even():
    scrambled = [
        qmc.discrepancy(np.array([initial.sobol(n, 6, seed) for n in range(16)])) for seed in range(20)
    ]
    drawn = [qmc.discrepancy(np.random.default_rng(seed).random((16, 6))) for seed in range(20)]
    assert np.mean(scrambled) < 0.6 * np.mean(drawn)


def test_another_seed_gives_other_points():
    assert not np.allclose(initial.sobol(1, 3, 0), initial.sobol(1, 3, 1))
    assert np.array_equal(initial.sobol(5, 3, 1), initial.sobol(5, 3, 1))


def test_the_first_is_the_centre_of_what_is_ordered():
    encoding = encoded(
        {"lr": tune.loguniform(1e-4, 1), "n": tune.randint(1, 12), "size": tune.choice([1, 2, 4, 8, 16])}
    )
    config = encoding.config(initial.initial_row(encoding, 0, 3), {}, np.random.default_rng(0))
    assert config["lr"] == pytest.approx(1e-2) and config["n"] == 6 and config["size"] == 4


def test_each_branch_of_a_condition_comes_early():
    learners = [f"l{number}" for number in range(7)]
    space = {
        "learner": tune.choice(learners),
        **{f"x{each}": tune.when({"learner": each}, tune.uniform(0, 1)) for each in learners},
    }
    encoding = encoded(space)
    assert initial.initial_size(encoding) == 8
    for seed in range(5):
        rows = [initial.initial_row(encoding, number, seed) for number in range(7)]
        assert {int(row[0]) for row in rows} == set(range(7))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (2, 3), (4, 2), (2, 4), (2, 6), (4, 6)])
def test_two_lists_that_decide_are_tried_in_all_combinations(sizes, seed):
    def pairs(first: int, second: int, number: int) -> int:
        lists = {"one": list("abcd")[:first], "two": list("uvwxyz")[:second]}
        space = {name: tune.choice(values) for name, values in lists.items()}
        for name, values in lists.items():
            space |= {f"{name}_{value}": tune.when({name: value}, tune.uniform(0, 1)) for value in values}
        encoding = encoded(space)
        rows = [initial.initial_row(encoding, n, seed) for n in range(number)]
        columns = np.flatnonzero(encoding.parents)
        return len({tuple(row[columns]) for row in rows})

    number = math.prod(sizes)
    assert pairs(*sizes, number) == number


@pytest.mark.parametrize("seed", range(5))
def test_each_branch_of_a_nested_condition_comes_early(seed):
    space = {
        "kind": tune.choice(["net", "tree"]),
        "solver": tune.when({"kind": "net"}, tune.choice(["sgd", "adam"])),
        "momentum": tune.when({"solver": "sgd"}, tune.uniform(0, 1)),
    }
    encoding = encoded(space)
    rows = [initial.initial_row(encoding, n, seed) for n in range(4)]
    configs = [encoding.config(row, {}, np.random.default_rng(0)) for row in rows]
    assert {config.get("solver") for config in configs} == {"sgd", "adam", None}


def test_the_numbers_are_not_those_of_a_suggestion():
    draws = suggestion_generator(3, 8).random(4)
    assert not np.allclose(initial_generator(3, 0).random(4), draws)


def test_the_number_grows_with_the_parameters():
    def size(number: int) -> int:
        return initial.initial_size(encoded({f"x{n}": tune.uniform(0, 1) for n in range(number)}))

    assert [size(number) for number in (1, 4, 10, 40)] == [4, 4, 7, 10]


def test_the_model_begins_after_the_first_ones_or_with_results_from_elsewhere():
    encoding = encoded({"x": tune.uniform(0, 1)})
    assert initial.is_initial(encoding, 3, [1.0, 2.0, 3.0])
    assert not initial.is_initial(encoding, 4, [1.0, 2.0, 3.0])
    assert initial.is_initial(encoding, 9, [1.0, 2.0, math.nan, math.nan, math.nan])
    assert not initial.is_initial(encoding, 0, [1.0] * 8)
