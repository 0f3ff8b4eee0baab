"""The median stopping rule: its worked example, and laws that hold for every stream of reports."""

from __future__ import annotations

import math
import statistics
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import Decision, MedianStoppingRule, Verdict

STOP, CONTINUE, PAUSE = Verdict.STOP, Verdict.CONTINUE, Verdict.PAUSE


def rule(mode: str = "max", trials: str = "", **arguments: Any) -> MedianStoppingRule:
    arguments = {"time_attr": "t", "grace_period": 1, **arguments}
    scheduler = MedianStoppingRule(metric="m", mode=mode, **arguments)
    scheduler.set_search_properties("m", mode, scheduler_generator(0))
    for trial_id in trials:
        scheduler.on_trial_add(trial_id)
    return scheduler


def report(scheduler: MedianStoppingRule, trial_id: str, t: float, m: float) -> Decision:
    return scheduler.on_result(trial_id, {"t": t, "m": m})


def with_others(mode: str = "max", **arguments: Any) -> MedianStoppingRule:
    """A reports 1 2 3, B 2 3 4, D 3 4 5 at t = 1 2 3; in mode "min" the same, negated; E and F come next."""
    scheduler = rule(mode, "ABDEF", **arguments)
    for trial_id, first in zip("ABD", (1, 2, 3), strict=True):
        for t in (1, 2, 3):
            value = first + t - 1
            assert report(scheduler, trial_id, t, value if mode == "max" else -value).verdict is CONTINUE
    return scheduler


# --- 21: the worked example -----------------------------------------------------------------------


def test_21_the_worked_example():
    scheduler = with_others()
    first = report(scheduler, "E", 1, 1.9)
    assert first.verdict is STOP
    assert first.reason == {"rule": "median", "time": 1.0, "best": 1.9, "median": 2.0, "others": 3}
    second = report(scheduler, "F", 1, 2.0)
    assert (second.verdict, second.reason["median"], second.reason["others"]) == (CONTINUE, 1.95, 4)
    third = report(scheduler, "F", 2, 2.0)
    assert (third.verdict, third.reason["median"], third.reason["others"]) == (STOP, 2.5, 3)


def test_21_a_completed_trial_counts_once():
    scheduler = with_others()
    for trial_id in "ABD":
        scheduler.on_trial_complete(trial_id)
    # Had the last report of each counted twice, the averages were 2.25, 3.25 and 4.25.
    decision = report(scheduler, "E", 3, 3.0)
    assert (decision.verdict, decision.reason["median"]) == (CONTINUE, 3.0)


# --- the rule, written down plainly ---------------------------------------------------------------

numbers = st.integers(-4, 4).map(float) | st.sampled_from([math.nan, math.inf, -math.inf])
steps = st.sampled_from([0.5, 1.0, 1.0, 1.0, 2.5])
streams = st.lists(st.tuples(st.integers(0, 5), steps, numbers), max_size=60)


def plain_verdicts(stream, grace: float, needed: int, compare: str) -> list[Verdict]:
    """The rule over lists of all that was reported, for mode "max"."""
    told: dict[int, list[tuple[float, float]]] = {number: [] for number in range(6)}
    stopped: set[int] = set()
    verdicts = []
    for number, time, value in timed(stream):
        score = value if math.isfinite(value) else -math.inf
        if number in stopped:
            verdicts.append(STOP)
            continue
        stand = []
        for other, reports in told.items():
            scores = [s for t, s in reports if grace <= t <= time]
            if other != number and reports and reports[-1][0] >= time and scores:
                stand.append(scores[-1] if compare == "value" else statistics.fmean(scores))
        told[number].append((time, score))
        best = max(s for _, s in told[number])
        stops = time >= grace and len(stand) >= needed and best < statistics.median(stand) - 1e-9
        stopped |= {number} if stops else set()
        verdicts.append(STOP if stops else CONTINUE)
    return verdicts


def timed(stream) -> list[tuple[int, float, float]]:
    now = [0.0] * 6
    result = []
    for number, step, value in stream:
        now[number] += step
        result.append((number, now[number], value))
    return result


def verdicts_of(scheduler: MedianStoppingRule, stream, sign: int = 1) -> list[Verdict]:
    for number in range(6):
        scheduler.on_trial_add(str(number))
    return [report(scheduler, str(n), t, sign * value).verdict for n, t, value in timed(stream)]


@given(streams, st.sampled_from([0, 1, 2.5]), st.integers(1, 3), st.sampled_from(["average", "value"]))
@settings(max_examples=examples(150))
def test_the_rule_is_the_one_written_down(stream, grace, needed, compare):
    ours = verdicts_of(rule(grace_period=grace, min_samples_required=needed, compare=compare), stream)
    assert ours == plain_verdicts(stream, grace, needed, compare)


def test_10_a_trial_that_has_ended_reports_in_vain():
    scheduler = with_others()
    scheduler.on_trial_complete("A")
    scheduler.on_trial_error("B")
    for trial_id in "AB":
        assert report(scheduler, trial_id, 4, 100.0) == Decision(CONTINUE)
    assert report(scheduler, "E", 1, 2.0).reason["median"] == 2.0


def test_11_a_report_without_time_or_metric_is_passed_over():
    scheduler = with_others()
    for result in ({"t": 1}, {"m": -9}, {"t": None, "m": -9}, {"t": math.inf, "m": -9}, {"t": 1, "m": None}):
        assert scheduler.on_result("E", result) == Decision(CONTINUE)
    assert report(scheduler, "E", 1, 2.0).verdict is CONTINUE
