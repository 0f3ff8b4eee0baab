"""Rows of configurations: what is between 0 and 1, what is an index, what is inactive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from trainkit import tune
from trainkit.errors import ConfigError, SpaceError
from trainkit.plugins.gaussian_process.encoding import Encoding, encoding_of
from trainkit.tune.space.search_space import Space

MIXED = {
    "lr": tune.loguniform(1e-5, 1),
    "width": tune.lograndint(1, 1000),
    "steps": tune.quniform(0, 1, 0.1),
    "size": tune.choice([64, 16, 32.0, 8]),
    "kind": tune.choice(["sgd", "adam"]),
    "momentum": tune.when({"kind": "sgd"}, tune.uniform(0, 1)),
    "beta": tune.when({"kind": "adam"}, tune.choice([0.9, 0.99, 0.999])),
    "warm": tune.when({"beta": [0.9, 0.99]}, tune.randint(0, 5)),
    "model": tune.choice(
        [{"name": "tree", "depth": tune.randint(1, 9)}, {"name": "net", "width": tune.randn(0, 1)}]
    ),
}


def encoded(space) -> Encoding:
    return Encoding(Space.of(space))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_a_row_and_its_configuration_belong_together(seed):
    encoding, rng = encoded(MIXED), np.random.default_rng(seed)
    rows = encoding.snapped(encoding.from_unit(rng.random((6, len(encoding)))))
    for row in rows:
        config = encoding.config(row, {}, rng)
        assert encoding.declared.allows(config)
        np.testing.assert_allclose(encoding.row(config), row, atol=1e-12)
        assert encoding.activity(row[None]).sum() == len(encoding.choices(config))
    np.testing.assert_allclose(encoding.snapped(rows), rows, atol=1e-12)


def test_numbers_of_a_list_are_in_order_and_names_are_not():
    encoding = encoded({"size": tune.choice([64, 8, 16]), "kind": tune.choice(["a", "b", "c"])})
    assert encoding.categories.tolist() == [0, 3]
    rows = [encoding.row({"size": size, "kind": "b"}).tolist() for size in (8, 16, 64)]
    assert rows == [[1 / 6, 1], [1 / 2, 1], [5 / 6, 1]]


@pytest.mark.parametrize("values", [[1, 2], [True, False, None], ["1", "2", "3"], [1, 2, "auto"], [0, 1, 2j]])
def test_other_lists_have_no_order(values):
    assert encoded({"x": tune.choice(values)}).categories.tolist() == [len(values)]


def test_equal_values_of_a_list_are_one():
    assert encoded({"x": tune.choice(["a", "b", "a"])}).categories.tolist() == [2]
    assert encoded({"x": tune.choice([3, 1, 2, 3, 3])}).row({"x": 2}).tolist() == [0.5]


def test_different_objects_with_the_same_representation_stay():
    arrays = [np.zeros(5000), np.zeros(5000)]
    arrays[1][2500] = 1
    encoding = encoded({"x": tune.choice([*arrays, "a", "a"])})
    assert repr(arrays[0]) == repr(arrays[1]) and encoding.categories.tolist() == [3]
    rng = np.random.default_rng(0)
    assert [encoding.config(np.array([n]), {}, rng)["x"] is arrays[n] for n in (0, 1)] == [True, True]


def test_an_inactive_parameter_is_in_the_middle():
    space = {"kind": tune.choice(["a", "b"]), "x": tune.when({"kind": "a"}, tune.uniform(0, 1))}
    encoding = encoded(space)
    assert encoding.row({"kind": "b"}).tolist() == [1, 0.5]
    assert encoding.parents.tolist() == [True, False]
    assert encoding.snapped(np.array([[1, 0.25], [0, 0.25]])).tolist() == [[1, 0.5], [0, 0.25]]
    assert 1.3 < encoding.active < 1.7


def test_a_number_may_decide_about_others():
    space = {
        "layers": tune.randint(1, 4),
        "first": tune.when({"layers": tune.randint(2, 4)}, tune.uniform(0, 1)),
        "second": tune.when({"first": tune.uniform(0, 0.5)}, tune.uniform(0, 1)),
    }
    encoding = encoded(space)
    assert encoding.parents.tolist() == [True, True, False]
    rows = np.array([[1 / 6, 0.2, 0.2], [1 / 2, 0.2, 0.2], [5 / 6, 0.8, 0.2]])
    assert encoding.activity(rows).tolist() == [[True, False, False], [True] * 3, [True, True, False]]


def test_what_is_not_of_the_space_has_no_row():
    encoding = encoded(MIXED)
    assert encoding.known_by({"lr": 0.1}) is None
    with pytest.raises(SpaceError):
        encoding.row({"lr": 0.1})


def test_a_space_of_constants_has_no_column():
    encoding = encoded({"a": 1})
    assert len(encoding) == 0 and encoding.active == 0
    assert encoding.config(np.zeros(0), {}, np.random.default_rng(0)) == {"a": 1}


def test_a_grid_and_a_space_of_another_form_are_refused():
    with pytest.raises(ConfigError, match="use choice instead of grid_search"):
        encoded({"x": tune.grid_search([1, 2])})
    with pytest.raises(ConfigError, match="give GaussianProcessSearch domains"):
        encoding_of([1], own=True)
