"""Losses that stopped and paused trials are expected to have at their ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.plugins.gaussian_process.curves import Curves
from trainkit.tune.schedulers import Decision, Verdict

STOP = Decision(Verdict.STOP, {"rule": "rung"})
PAUSE = Decision(Verdict.PAUSE, {"rule": "rung"})


def curves(reports: dict[str, list[float]], mode: str = "min", ended: str = "") -> Curves:
    """Return the curves of trials; those of `ended` were stopped at their last report."""
    found = Curves("loss", mode)
    for name, losses in reports.items():
        for step, loss in enumerate(losses, 1):
            found.add(name, {"training_iteration": step, "loss": loss})
    for name in ended:
        found.decide(name, STOP)
    return found


def last(reports: dict[str, list[float]]) -> dict[str, float]:
    return {name: losses[-1] for name, losses in reports.items()}


def test_a_stopped_trial_is_expected_to_change_as_the_complete_trials_did():
    reports = {"a": [9.0, 7.0, 4.0], "b": [8.0, 7.0, 5.0], "c": [9.5, 6.0, 1.0], "d": [8.5], "e": [8.0, 6.5]}
    assert curves(reports, ended="de").ends(last(reports)) == [4.0, 5.0, 1.0, 8.5 - 5.0, 6.5 - 3.0]


def test_larger_values_are_better_in_the_other_mode():
    reports = {"a": [0.1, 0.9], "b": [0.2]}
    assert curves(reports, "max", "b").ends({"a": -0.9, "b": -0.2}) == pytest.approx([-0.9, -0.9])


def test_no_stopped_trial_is_expected_to_beat_the_complete_trials():
    reports = {"a": [9.0, 4.0], "b": [5.0]}
    assert curves(reports, ended="b").ends(last(reports)) == [4.0, 4.0]


def test_the_longest_trials_count_while_no_trial_is_complete():
    reports = {"a": [9.0, 7.0], "b": [9.5]}
    assert curves(reports, ended="ab").ends(last(reports)) == [7.0, 7.5]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_paused_trial_that_runs_again_is_complete_at_its_end(mode):
    found = curves({"a": [9.0, 4.0], "b": [5.0]}, mode)
    found.decide("b", PAUSE)
    found.resume("b")
    found.add("b", {"training_iteration": 2, "loss": 4.5})
    assert found.ends({"a": 4.0, "b": 4.5}) == [4.0, 4.5]


def test_a_trial_that_ends_at_max_t_is_complete():
    reports = {"a": [9.0, 4.0], "b": [5.0]}
    found = curves(reports)
    found.decide("b", Decision(Verdict.STOP, {"rule": "max_t"}))
    assert found.ends(last(reports)) == [4.0, 5.0]


def test_reports_after_a_retry_replace_the_reports_before():
    found = curves({"a": [9.0, 8.0, 7.0], "b": [5.0]}, ended="b")
    for step, loss in ((2, 6.0), (3, 2.0)):
        found.add("a", {"training_iteration": step, "loss": loss})
    assert found.ends({"a": 2.0, "b": 9.5}) == [2.0, 2.5]


def test_reports_before_the_end_are_compared_with_results():
    reports = {"a": [9.0, 7.0, 6.0, 4.0], "b": [8.0, 7.0, 6.0, 5.0], "c": [8.5], "d": [7.0, 6.0], "e": [9.0]}
    found = curves(reports, ended="cde").early_reports(last(reports))
    assert found.missing_at_end == [0.0, 0.0, 2.0, 1.0, 2.0]
    assert list(zip(found.trials, found.missing, found.losses, strict=True)) == [
        (0, 2.0, 9.0 - 4.0),
        (1, 2.0, 8.0 - 4.0),
        (3, 2.0, 7.0 - 4.0),
        (0, 1.0, 7.0 - 2.5),
        (1, 1.0, 7.0 - 2.5),
    ]


def test_nothing_is_compared_without_trials_that_ended_early():
    reports = {"a": [9.0, 4.0], "b": [5.0, 4.5]}
    assert curves(reports).early_reports(last(reports)) is None
    assert curves(reports, ended="ab").early_reports(last(reports)) is None


def test_a_stopped_trial_needs_no_longer_trial_with_a_result():
    found = curves({"a": [9.0, 4.0], "b": [5.0]}, ended="b")
    assert not found.early_reports({"a": math.nan, "b": 5.0}).trials
    assert not curves({"a": [9.0], "b": [5.0, 6.0]}, ended="b").early_reports({"a": 9.0, "b": 6.0}).losses


CURVES = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.lists(st.one_of(st.just(math.nan), st.integers(0, 99).map(float)), min_size=1, max_size=5),
)


@given(CURVES, st.text("abcdefgh"))
def test_only_stopped_trials_with_a_result_are_estimated(reports, ended):
    known = last(reports)
    for (name, loss), found in zip(known.items(), curves(reports, ended=ended).ends(known), strict=True):
        if math.isnan(loss):
            assert math.isnan(found)
        elif name not in ended:
            assert found == loss


def slow(config: dict[str, Any], step: int, rng: Any) -> dict[str, Any]:
    """Return a loss that falls by 9 until the end, and is the best at x = 0.7."""
    return {"loss": (config["x"] - 0.7) ** 2 + 9 * (1 - step / 9), "done": step == 9}


@pytest.mark.parametrize("workers", [1, 4])
def test_a_search_with_stopped_trials_finds_the_best_configuration(workers):
    results = tune.simulate(
        slow,
        {"x": tune.uniform(0, 1)},
        tune.TuneConfig(metric="loss", mode="min", num_samples=25, search_alg="gp", scheduler="auto"),
        workers=workers,
        seed=1,
    )
    assert any(result.metrics["training_iteration"] < 9 for result in results)
    assert abs(results.get_best_result().config["x"] - 0.7) < 0.02
