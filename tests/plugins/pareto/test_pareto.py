"""The scheduler for several objectives: who is stopped at a rung, and what a restore makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from tests.tune.test_objectives import BOTH, SPACE, clouds, trade_off
from trainkit import tune
from trainkit.tune.core.objectives import objectives_of
from trainkit.tune.schedulers import ParetoScheduler, Verdict


def judged(scheduler, trial_id, accuracy, latency, time=1):
    return scheduler.on_result(
        trial_id, {"accuracy": accuracy, "latency": latency, "training_iteration": time}
    )


def scheduler_of(**arguments) -> ParetoScheduler:
    scheduler = ParetoScheduler(**{"max_t": 9, "reduction_factor": 3, **arguments})
    scheduler.set_objectives(objectives_of(BOTH["metric"], BOTH["mode"]))
    scheduler.set_search_properties(None, None, np.random.default_rng(0))
    return scheduler


def test_dominated_trials_are_stopped_at_a_rung():
    scheduler = scheduler_of()
    verdicts = [
        judged(scheduler, "a", 5, 5),
        judged(scheduler, "b", 4, 6),  # a is better in both
        judged(scheduler, "c", 9, 9),  # on the front, but one of three goes on, and a came first
        judged(scheduler, "d", 10, 1),  # better than all
        judged(scheduler, "e", math.nan, 0),
        judged(scheduler, "f", 11, 2),  # two of six go on: d and it
    ]
    assert [each.verdict is Verdict.CONTINUE for each in verdicts] == [True, False, False, True, False, True]
    assert verdicts[1].reason == {"rule": "rung", "rung": 1, "rank": 2, "entries": 2, "places": 1}
    assert judged(scheduler, "a", 0, 0, time=2).reason == {}
    assert judged(scheduler, "a", 0, 0, time=1).reason == {}  # judged once a rung
    assert judged(scheduler, "d", 0, 0, time=9).reason == {"rule": "max_t", "max_t": 9}
    assert scheduler.on_result("z", {"training_iteration": 9}).verdict is Verdict.STOP  # property 11


@given(clouds)
def test_not_all_pass_and_one_always_may(points):
    scheduler = scheduler_of()
    passed = 0
    for number, (accuracy, latency) in enumerate(points):
        decision = judged(scheduler, str(number), accuracy, latency)
        reason = decision.reason
        finite = math.isfinite(accuracy) and math.isfinite(latency)
        assert (decision.verdict is Verdict.CONTINUE) == (finite and reason["rank"] <= reason["places"])
        passed += decision.verdict is Verdict.CONTINUE
    assert passed >= any(math.isfinite(one) and math.isfinite(other) for one, other in points)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_8_what_is_not_finite_stops_though_nobody_came_before(value):  # property 8
    scheduler = scheduler_of()
    assert judged(scheduler, "a", value, 0).verdict is Verdict.STOP
    assert judged(scheduler, "b", 1, value).verdict is Verdict.STOP
    assert judged(scheduler, "c", 1, 1).verdict is Verdict.CONTINUE


def test_6_and_7_signs_and_ties():  # properties 6 and 7
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (40, 2)).tolist()
    negated = ParetoScheduler(max_t=9, reduction_factor=3)
    negated.set_objectives(objectives_of(["accuracy", "latency"], ["min", "max"]))
    scheduler, constant = scheduler_of(), scheduler_of()
    for number, (one, other) in enumerate(scores):
        decision = judged(scheduler, str(number), one, other)
        assert decision == judged(negated, str(number), -one, -other)
        alike = judged(constant, str(number), 1, 1)
        assert (alike.verdict is Verdict.CONTINUE) == (number == 0), "of equals the earlier one is better"


def test_9_and_10_jumps_and_late_reports_leave_rungs_as_they_are():  # properties 9 and 10
    scheduler = scheduler_of()
    assert judged(scheduler, "a", 5, 5, time=4).reason["rung"] == 3
    assert judged(scheduler, "b", 4, 6, time=4).verdict is Verdict.STOP
    late = judged(scheduler, "b", 9, 0, time=5)
    assert (late.verdict, late.reason) == (Verdict.STOP, {"rule": "late report"})
    judged(scheduler, "c", 9, 0, time=20)  # past max_t it is judged by no rung
    assert judged(scheduler, "d", 6, 4, time=3).reason["entries"] == 3
    assert judged(scheduler, "a", 5, 5, time=5).reason == {}
    assert judged(scheduler, "e", 6, 4, time=1).reason["entries"] == 1


@pytest.mark.slow
def test_a_decision_is_cheap_where_many_came_before():
    """Fronts are kept, and not sorted anew: that took hours for so many."""
    rng, scheduler = np.random.default_rng(0), scheduler_of()
    for number, (one, other) in enumerate(rng.random((2000, 2)).tolist()):
        judged(scheduler, str(number), one, other)


def test_it_spends_less_and_keeps_the_front():
    grid = tune.simulate(
        lambda config, training_iteration, rng: trade_off(config),
        param_space=SPACE,
        tune_config=tune.TuneConfig(num_samples=60, scheduler=ParetoScheduler(max_t=9), **BOTH),
        workers=4,
        seed=0,
    )
    iterations = [result.metrics["training_iteration"] for result in grid]
    assert sum(iterations) < 60 * 9 / 2
    assert set(iterations) == {1, 3, 9}
    front = grid.pareto_front()
    assert any(result.metrics["training_iteration"] == 9 for result in front)
