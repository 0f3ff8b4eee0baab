"""BOHB's densities: worked numbers, what a density must be, categories, rows with gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.plugins.searchers.bohb_model import Column, KernelDensity, bandwidths, imputed

LINE = Column(lower=-np.inf, upper=np.inf)
UNIT = Column()
NAN = np.nan


# property 18: the fixtures of algorithms.md 2.1
def test_bandwidth_and_density_of_the_worked_examples():
    one = KernelDensity(np.array([[0.1], [0.2], [0.3]]), [LINE])
    assert one.bandwidths == pytest.approx([0.069476], abs=5e-7)
    assert one.pdf(np.array([[0.2]])) == pytest.approx([3.27273], abs=5e-6)
    two = KernelDensity(np.array([[0.1, 0.5], [0.2, 0.6], [0.3, 0.9]]), [LINE, LINE])
    assert two.bandwidths == pytest.approx([0.072068, 0.150021], abs=5e-7)
    assert two.pdf(np.array([[0.2, 0.6]])) == pytest.approx([6.66111], abs=5e-6)


def rows(columns, least=1, most=8):
    cells = [
        st.floats(0, 1, allow_subnormal=False)
        if column.categories is None
        else st.integers(0, column.categories - 1).map(float)
        for column in columns
    ]
    return st.lists(st.tuples(*cells), min_size=least, max_size=most).map(np.array)


# property 18
@given(data=rows([UNIT, UNIT]), least=st.floats(0.05, 0.5))
def test_a_density_is_one_in_all_on_the_unit_square(data, least):
    density = KernelDensity(data, [UNIT, UNIT], least)
    ticks = (np.arange(80) + 0.5) / 80
    grid = np.array([(x, y) for x in ticks for y in ticks])
    values = density.pdf(grid)
    assert (values >= 0).all()
    assert values.mean() == pytest.approx(1, abs=5e-3)


@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=30), least=st.floats(1e-3, 1))
def test_bandwidths_of_categories_are_bounded(labels, least):
    """Labels 0, 0, 9 have a negative density without, a constant column an infinite one."""
    data = np.array(labels, dtype=float)[:, None]
    (width,) = bandwidths(data, [Column(10)], least)
    assert min(least, 0.9) <= width <= 0.9
    values = KernelDensity(data, [Column(10)], least).pdf(np.arange(10.0)[:, None])
    assert np.isfinite(values).all() and (values >= 0).all()
    assert values.sum() == pytest.approx(1)
    counts = np.bincount(labels, minlength=10)
    assert (values[counts == counts.max()] >= values.max() - 1e-12).all()


def test_samples_follow_the_density():
    data = np.array([[0.02, 1.0], [0.9, 0.0], [0.95, 0.0]])
    density = KernelDensity(data, [UNIT, Column(3)])
    drawn = density.sample(np.random.default_rng(0), 40_000)
    assert ((drawn[:, 0] >= 0) & (drawn[:, 0] <= 1)).all()
    seen, _ = np.histogram(drawn[:, 0], bins=20, range=(0, 1))
    ticks = (np.arange(4000) + 0.5) / 4000
    points = np.array([(x, label) for label in range(3) for x in ticks])
    expected = density.pdf(points).reshape(3, 20, 200).sum(axis=(0, 2)) / 4000
    assert np.abs(seen / 40_000 - expected).max() < 0.01
    # Of a category: kept with 1 - h, otherwise any of the three.
    width = density.bandwidths[1]
    shares = np.bincount(drawn[:, 1].astype(int), minlength=3) / 40_000
    kept = np.array([2, 1, 0]) / 3
    assert shares == pytest.approx((1 - width) * kept + width / 3, abs=0.01)


# property 20
@given(seed=st.integers(0, 99))
def test_gaps_are_filled_from_rows_that_have_the_column(seed):
    columns = [UNIT, Column(3), UNIT, UNIT]
    data = np.array([[NAN, 1, 0.5, 0.4], [0.25, 2, NAN, NAN], [0.75, 0, NAN, NAN], [NAN, 0, 0.1, 0.2]])
    filled = imputed(data, columns, np.random.default_rng(seed))
    assert not np.isnan(filled).any()
    assert (filled[~np.isnan(data)] == data[~np.isnan(data)]).all()
    assert set(filled[[0, 3], 0]) <= {0.25, 0.75}
    # What comes together stays together.
    assert {tuple(pair) for pair in filled[1:3, 2:]} <= {(0.5, 0.4), (0.1, 0.2)}


# property 20
@pytest.mark.parametrize("column", [UNIT, Column(4)])
def test_a_gap_in_column_0_that_no_row_fills_is_drawn(column):
    """Where it is a row's only one, too."""
    drawn = [
        imputed(np.array([[NAN, 0.5]]), [column, UNIT], np.random.default_rng(seed))[0, 0]
        for seed in range(60)
    ]
    assert not np.isnan(drawn).any()
    if column.categories:
        assert set(drawn) == {0, 1, 2, 3}
    else:
        assert min(drawn) < 0.1 and max(drawn) > 0.9
