"""Stoppers that end what has become stable."""

from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from tests.tune.test_stoppers import answers
from trainkit import tune


def test_a_trial_plateau_needs_the_grace_the_window_and_the_threshold():
    at_rest = [1.0] * 6
    assert answers(tune.TrialPlateauStopper("loss"), at_rest).index(True) == 3
    assert answers(tune.TrialPlateauStopper("loss", grace_period=6), at_rest).index(True) == 5
    assert answers(tune.TrialPlateauStopper("loss", num_results=5), at_rest).index(True) == 4
    assert not any(answers(tune.TrialPlateauStopper("loss", metric_threshold=0.5, mode="min"), at_rest))
    assert any(answers(tune.TrialPlateauStopper("loss", metric_threshold=0.5, mode="max"), at_rest))
    assert not any(answers(tune.TrialPlateauStopper("loss"), [1.0, 2.0] * 5))
    assert not any(answers(tune.TrialPlateauStopper("loss"), [math.nan] * 9))
    assert not any(answers(tune.TrialPlateauStopper("loss"), [1e300, -1e300] * 4))


def test_a_retry_that_repeats_its_reports_is_no_plateau():
    stopper = tune.TrialPlateauStopper("loss")
    for _ in range(5):  # each attempt gets to its second report
        assert answers(stopper, [1.0, 1.0]) == [False, False]
    assert answers(stopper, [1.0] * 4)[-1]


def test_an_experiment_plateau_ends_all_after_its_patience():
    stopper = tune.ExperimentPlateauStopper("loss", top=3, patience=2)
    values = [5.0, 1.0, math.nan, 1.0, 9.0, 1.0, 8.0, 7.0]
    told = [(stopper("a", {"loss": value}), stopper.stop_all()) for value in values]
    # The best three are 1, 1, 1 from the sixth report on; with the next that is so twice in a row.
    assert [both for both, _ in told] == [both for _, both in told] == [False] * 6 + [True, True]
    assert stopper.reason() == {"metric": "loss", "std": 0.0, "at_most": 0.001, "top": 3, "reports": 3}
    worse = tune.ExperimentPlateauStopper("loss", top=2, mode="max")
    assert [worse("a", {"loss": value}) for value in [1.0, 2.0, 2.0]] == [False, False, True]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(1, 6), st.floats(0.01, 10))
def test_a_plateau_is_a_small_deviation_of_the_last_reports(values, num_results, std):
    given = answers(tune.TrialPlateauStopper("loss", std=std, num_results=num_results), values)
    for count, answer in enumerate(given, start=1):
        last = values[max(0, count - num_results) : count]
        deviation = statistics.pstdev(last)
        if abs(deviation - std) > 1e-9:
            assert answer == (count >= 4 and len(last) == num_results and deviation < std)
