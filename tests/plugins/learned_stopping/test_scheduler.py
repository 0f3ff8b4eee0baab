"""The scheduler of learned stopping: when it stops trials, when it doesn't, and its reasons."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.schedulers import ASHAScheduler, LearnedStopping, TrialScheduler, Verdict

LAST = 12


def right_from_the_start(config: Any, step: int, rng: Any) -> dict[str, Any]:
    return {"loss": config["x"] + 1 / step, "done": step == LAST}


def crossing(config: Any, step: int, rng: Any) -> dict[str, Any]:
    """Return a loss whose order turns around when two thirds of the training are over."""
    return {"loss": config["x"] if step > 2 * LAST / 3 else 1 - config["x"], "done": step == LAST}


def once(config: Any, step: int, rng: Any) -> dict[str, Any]:
    return {"loss": config["x"], "done": True}


def search(objective: Any, scheduler: Any = "auto", samples: int = 40, **settings: Any) -> tune.Simulation:
    return tune.simulate(
        objective,
        {"x": tune.uniform(0, 1)},
        tune.TuneConfig(
            metric="loss", mode="min", num_samples=samples, search_alg="random", scheduler=scheduler
        ),
        **{"workers": 1, "seed": 3, **settings},
    )


def lengths(results: tune.Simulation) -> list[int]:
    return [result.metrics["training_iteration"] for result in results]


@pytest.mark.parametrize("workers", [1, 4])
def test_it_saves_most_of_the_work_where_early_reports_are_right(workers):
    results = search(right_from_the_start, workers=workers)
    assert results.work < 40 * LAST / 2
    best = min(results, key=lambda result: result.config["x"])
    assert best.metrics["training_iteration"] == LAST


@pytest.mark.parametrize("seed", range(3))
def test_it_keeps_the_best_trial_where_early_reports_are_wrong(seed):
    results = search(crossing, seed=seed)
    best = min(results, key=lambda result: result.config["x"])
    assert best.metrics["training_iteration"] == LAST
    believed = search(crossing, ASHAScheduler(max_t=LAST, reduction_factor=3), seed=seed)
    assert (
        min(r.config["x"] for r, n in zip(believed, lengths(believed), strict=True) if n == LAST)
        > best.config["x"]
    )


def test_the_first_trials_run_to_the_end():
    assert lengths(search(right_from_the_start, LearnedStopping(complete_trials=7)))[:7] == [LAST] * 7


def test_a_trial_that_reports_once_is_never_stopped():
    results = search(once)
    assert lengths(results) == [1] * 40
    assert not results.decisions()


def test_a_stopped_trial_says_why():
    results = search(right_from_the_start)
    reason = next(result.reason for result in results if "stopped" in result.reason)
    assert reason.startswith("stopped by learned stopping: rank ")
    assert "chance of becoming the best" in reason and "complete trials" in reason


def test_asha_with_a_learned_grace_period_decides_the_same():
    asha = search(right_from_the_start, ASHAScheduler(max_t=100, grace_period="learned"))
    auto = search(right_from_the_start, LearnedStopping(max_t=100))
    assert lengths(asha) == lengths(auto) != [LAST] * 40


@pytest.mark.parametrize("more", [{"type": "promotion"}, {"brackets": 2}, {"stop_last_trials": False}])
def test_a_learned_grace_period_refuses_what_it_ignores(more):
    with pytest.raises(ConfigError, match="leave these arguments out"):
        ASHAScheduler(grace_period="learned", **more)


@pytest.mark.parametrize("wrong", [{"max_t": 0}, {"complete_trials": 0}, {"chance": -1}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LearnedStopping(**wrong)


def test_max_t_ends_trials_and_they_count_as_complete():
    results = search(right_from_the_start, LearnedStopping(max_t=6))
    assert max(lengths(results)) == 6
    assert any("learned stopping" in result.reason for result in results)
    assert any(result.reason == "reached max_t=6" for result in results)


REPORTS = st.lists(
    st.lists(st.one_of(st.just(math.nan), st.integers(0, 9)), min_size=1, max_size=6), max_size=12
)


def stops(reports: list[list[float]], scheduler: TrialScheduler) -> list[bool]:
    """Return for each trial, one after the other, whether the scheduler stopped it before its last report."""
    found = []
    for number, scores in enumerate(reports):
        scheduler.on_trial_add(str(number))
        for step, score in enumerate(scores, 1):
            result = {"training_iteration": step, "m": score}
            if scheduler.on_result(str(number), result).verdict is Verdict.STOP:
                break
        else:
            step = len(scores) + 1
        found.append(step <= len(scores))
        scheduler.on_trial_complete(str(number))
    return found


@given(REPORTS)
def test_no_trial_is_stopped_before_three_are_complete(reports):
    scheduler = LearnedStopping(metric="m", mode="max")
    stopped = stops(reports, scheduler)
    first = stopped.index(True) if True in stopped else len(stopped)
    assert first >= min(3, len(stopped))


@given(REPORTS, st.integers(1, 6))
def test_a_trial_better_than_all_complete_trials_is_never_stopped(reports, length):
    scheduler = LearnedStopping(metric="m", mode="max", chance=1e9)
    assert not stops([*reports, [10.0] * length], scheduler)[-1]


def test_a_repeated_report_changes_nothing():
    scheduler = LearnedStopping(metric="m", mode="max", chance=1e9)
    stops([[1.0, 2.0, 3.0, 4.0]] * 4, scheduler)
    scheduler.on_trial_add("again")
    assert scheduler.on_result("again", {"training_iteration": 1, "m": 9}).verdict is Verdict.CONTINUE
    assert scheduler.on_result("again", {"training_iteration": 1, "m": 0}).verdict is Verdict.CONTINUE


def test_trials_of_different_lengths_are_judged_by_the_usual_length():
    scheduler = LearnedStopping(metric="m", mode="max", chance=1e9)
    stops([[1.0] * 3, [2.0] * 9, [3.0] * 9, [4.0] * 30], scheduler)
    scheduler.on_trial_add("new")
    judged = [
        step
        for step in range(1, 10)
        if scheduler.on_result("new", {"training_iteration": step, "m": 4}).verdict is Verdict.STOP
    ]
    assert judged == []  # as good as the best complete trial
