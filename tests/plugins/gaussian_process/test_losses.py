"""Losses as a model takes them: outliers, failures, ties, and which trials stay when there are many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.conftest import examples
from trainkit.plugins.gaussian_process.model import filled, representatives, standardized

FINITE = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=30)


@given(losses=FINITE)
@settings(max_examples=examples(200), deadline=None, derandomize=True)
def test_any_losses_keep_their_order_and_have_a_scale(losses):
    found = standardized(filled(losses))
    assert np.isfinite(found).all()
    order = np.argsort(losses, kind="stable")
    assert (np.diff(found[order]) >= -1e-9).all()
    assert abs(found.mean()) < 1e-6 and found.std() < 1 + 1e-6


def test_a_failed_trial_is_as_bad_as_the_worst_and_breaks_no_scale():
    assert filled([1.0, math.nan, 3.0]).tolist() == [1.0, 3.0, 3.0]
    losses = [1.0, 2.0, 3.0, 4.0]
    plain, failed = standardized(filled(losses)), standardized(filled([*losses, math.nan]))
    assert np.ptp(failed[:4]) == pytest.approx(np.ptp(plain), rel=0.35)
    assert failed[4] == failed[3]


def test_an_outlier_leaves_the_others_apart():
    found = standardized(np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1e12]))
    assert np.diff(found[:5]).min() > 0.05 * np.ptp(found)


def test_equal_losses_say_nothing():
    assert standardized(np.full(4, 7.0)).tolist() == [0.0] * 4


def test_the_power_is_about_the_most_likely():
    losses = np.random.default_rng(0).lognormal(0, 1, 200)
    ours = standardized(losses)
    low, middle, high = np.quantile(losses, (0.25, 0.5, 0.75))
    theirs, power = stats.yeojohnson((losses - middle) / (high - low))
    assert np.corrcoef(ours, theirs)[0, 1] > 0.999
    assert abs(stats.skew(ours)) < 0.2 < stats.skew(losses)
    assert -2 < power < 1


def test_few_trials_all_stay():
    rows = np.random.default_rng(0).random((20, 3))
    assert representatives(rows, np.arange(20.0), np.zeros(3, bool), 20).tolist() == list(range(20))


def test_of_many_trials_the_best_the_latest_and_distant_ones_stay():
    rng = np.random.default_rng(0)
    rows, losses = rng.normal(0.5, 0.02, (300, 3)), rng.random(300)
    rows[100] = [0, 0, 0]
    losses[100] = 2.0
    kept = representatives(rows, losses, np.zeros(3, bool), 60)
    assert len(kept) == len(set(kept.tolist())) == 60
    assert set(np.argsort(losses)[:30].tolist()) <= set(kept.tolist())
    assert 100 in kept and 299 in kept


def test_equal_rows_are_kept_once_they_are_needed():
    kept = representatives(np.full((50, 2), 0.5), np.arange(50.0), np.zeros(2, bool), 20)
    assert len(set(kept.tolist())) == 20


def test_distant_trials_differ_in_values_of_lists_without_an_order():
    """The distance of two indices is 1, so a row of other positions is farther away than an other index."""
    rows = np.zeros((30, 2))
    rows[:10, 0], rows[10] = np.arange(10), [1, 1.2]
    kept = representatives(rows, -np.arange(30.0), np.array([True, False]), 6)
    assert 10 in kept and len(kept) == 6


@pytest.mark.parametrize("spread", [0.0, 1e-4, 1e-2])
def test_good_losses_stay_apart_from_each_other_beside_equal_bad_ones(spread):
    bad = 0.9 + spread * np.random.default_rng(0).normal(size=40)
    found = standardized(np.concatenate([bad, [0.31, 0.12, 0.08, 0.05, 0.03]]))[40:]
    assert (np.diff(found) < -1e-3).all() and np.ptp(found) > 0.05
