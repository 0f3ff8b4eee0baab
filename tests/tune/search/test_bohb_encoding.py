"""Configurations as rows for BOHB's densities, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.search.domains import ALL_DOMAINS
from trainkit import tune
from trainkit.tune.search.bohb_model import Encoding
from trainkit.tune.space.search_space import Space

DOMAINS = {
    name: each for name, each in ALL_DOMAINS.items() if name not in ("objects", "list", "computed")
} | {
    "large": tune.randint(0, 2**62),
    "wide": tune.uniform(-1e308, 1e308),
    "twice": tune.choice(["a", "b", "a"]),
}


@pytest.mark.parametrize("name", DOMAINS)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_value_is_told_by_its_number(name, seed):
    space = Space.of({name: DOMAINS[name]})
    encoding, rng = Encoding(space), np.random.default_rng(seed)
    config = space.configuration(0, rng)
    row = encoding.row(config)
    if encoding.columns[0].categories is None:
        assert 0 <= row[0] <= 1
    back = encoding.config(row, rng)
    if isinstance(config[name], (float, int)) and not isinstance(config[name], bool):
        assert back[name] == pytest.approx(config[name], rel=1e-9, abs=1e-9)
        assert space.contains(back)
    else:
        assert back == config
    assert encoding.snapped(row[None]) == pytest.approx(row[None])


@pytest.mark.parametrize("name", DOMAINS)
def test_the_whole_column_is_values_of_the_domain(name):
    space = Space.of({name: DOMAINS[name]})
    encoding, rng = Encoding(space), np.random.default_rng(0)
    count = encoding.columns[0].categories
    for number in np.linspace(0, 1, 101) if count is None else range(count):
        assert space.contains(encoding.config(np.array([float(number)]), rng))


def test_whole_numbers_own_half_a_step_to_either_side():
    encoding = Encoding(Space.of({"k": tune.randint(3, 7)}))
    assert [encoding.row({"k": k})[0] for k in (3, 4, 5, 6)] == [0.125, 0.375, 0.625, 0.875]
    numbers = np.linspace(0, 1, 4001)[:-1]
    values = [encoding.config(np.array([x]), np.random.default_rng(0))["k"] for x in numbers]
    assert [values.count(k) for k in (3, 4, 5, 6)] == [1000] * 4


# property 20
def test_what_is_not_active_has_no_number_and_none_comes_of_it():
    space = Space.of(
        {
            "momentum": tune.when({"kind": "sgd"}, tune.uniform(0, 1)),
            "kind": tune.choice(["sgd", "adam"]),
            "net": tune.choice([{"name": "flat"}, {"name": "deep", "layers": tune.randint(2, 9)}]),
        }
    )
    encoding, rng = Encoding(space), np.random.default_rng(0)
    names = [parameter.name for parameter in space.parameters]
    row = encoding.row({"kind": "adam", "net": {"name": "flat"}})
    assert {name for name, number in zip(names, row, strict=True) if np.isnan(number)} == {
        "momentum",
        "net/layers",
    }
    filled = np.where(np.isnan(row), 0.5, row)
    assert encoding.config(filled, rng) == {"kind": "adam", "net": {"name": "flat"}}
