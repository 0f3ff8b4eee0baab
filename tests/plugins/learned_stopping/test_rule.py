"""Laws of the rule of learned stopping, on plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.plugins.learned_stopping.rule import (
    chance_of_best,
    chance_of_new,
    improvement,
    normal_scores,
    rung_times,
)

SCORES = st.one_of(st.just(-math.inf), st.integers(-9, 9).map(float), st.floats(-1e9, 1e9))
TRIALS = st.integers(1, 12).flatmap(
    lambda complete: st.tuples(
        st.lists(SCORES, min_size=complete + 1, max_size=complete + 12),
        st.lists(SCORES, min_size=complete, max_size=complete),
    )
)


def chance(scores: list[float], final: list[float], improvements: list[float] | None = None) -> float:
    """Return the chance of the last of `scores`; the first trials are the complete trials."""
    return chance_of_best(scores, improvements or [0.0] * len(scores), range(len(final)), final)


@given(TRIALS)
def test_a_chance_is_a_probability(trials):
    assert 0 <= chance(*trials) <= 1


@given(TRIALS, st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_scale_of_the_metric_is_of_no_importance(trials, factor):
    scores, final = trials
    scaled = chance([factor * each for each in scores], [factor * each for each in final])
    # A product may be too small to differ from its neighbour, so the numbers are compared by their order.
    if len({factor * each for each in scores + final}) == len(set(scores + final)):
        assert scaled == pytest.approx(chance(scores, final), abs=1e-12)


@given(st.permutations(range(8)), st.integers(0, 7))
def test_a_better_trial_has_a_better_chance_where_early_scores_are_right(order, place):
    known = [float(each) for each in order]
    worse, better = sorted((place - 0.5, 7.5))
    assert chance([*known, worse], known) <= chance([*known, better], known) + 1e-12


def test_early_scores_that_are_right_make_a_bad_trial_hopeless():
    known = [float(each) for each in range(12)]
    assert chance([*known, 0.5], known) < 0.01 * chance_of_new(12)
    assert chance([*known, 11.5], known) > 2 * chance_of_new(12)


def test_early_scores_without_a_meaning_leave_every_chance():
    known = [float(each) for each in range(12)]
    final = [5.0, 0.0, 11.0, 2.0, 7.0, 9.0, 1.0, 8.0, 3.0, 10.0, 4.0, 6.0]
    assert all(chance([*known, each + 0.5], final) > 0.3 * chance_of_new(12) for each in known)


def test_early_scores_that_are_wrong_are_noticed():
    known = [float(each) for each in range(12)]
    assert chance([*known, 0.5], known[::-1]) > chance([*known, 11.5], known[::-1])


def test_a_trial_that_still_improves_is_given_time_where_this_counted_before():
    known, slopes = [0.0] * 12, [float(each) for each in range(12)]
    assert chance([0.0] * 13, slopes, [*slopes, 11.5]) > 5 * chance([0.0] * 13, slopes, [*slopes, 0.5])
    assert known == [0.0] * 12


@given(st.lists(SCORES, min_size=1, max_size=30))
def test_normal_scores_keep_the_order_and_have_no_bias(values):
    among = np.array(values)
    found = normal_scores(among, among)
    assert all(
        (a < b) == (x < y)
        for a, x in zip(values, found, strict=True)
        for b, y in zip(values, found, strict=True)
    )
    assert abs(normal_scores(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])).sum()) < 1e-12


def test_times_of_rungs_double_up_to_two_thirds():
    assert rung_times(24) == [0.5, 1, 2, 4, 8, 16]


def test_improvements_of_scores_that_are_not_numbers():
    assert improvement(None, 3.0) == 0
    assert improvement(1.0, 3.0) == 2
    assert improvement(1.0, -math.inf) == improvement(-math.inf, -math.inf) == -math.inf
    assert improvement(-math.inf, 1.0) == math.inf
