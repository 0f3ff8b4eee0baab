"""ASHA's rungs, brackets and stopping form: worked traces, edge rows, laws for every stream of reports."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.errors import ConfigError
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import (
    ASHAScheduler,
    Decision,
    FIFOScheduler,
    TrialScheduler,
    Verdict,
)
from trainkit.tune.schedulers.halving import bracket_count, rung_levels

STOP, CONTINUE = Verdict.STOP, Verdict.CONTINUE


def asha(seed: int = 0, mode: str = "max", **arguments) -> ASHAScheduler:
    scheduler = ASHAScheduler(metric="m", mode=mode, **arguments)
    scheduler.set_search_properties("m", mode, scheduler_generator(seed))
    return scheduler


def add(scheduler: TrialScheduler, *trial_ids: str) -> None:
    for trial_id in trial_ids:
        scheduler.on_trial_add(trial_id)


def report(scheduler: TrialScheduler, trial_id: str, **result) -> Verdict:
    return scheduler.on_result(trial_id, {"training_iteration": result.pop("t", 1), **result}).verdict


def one_rung(values, eta: int = 3, mode: str = "max") -> str:
    """C or S for each value, arriving at the first rung of one bracket."""
    scheduler = asha(mode=mode, max_t=1000, reduction_factor=eta)
    letters = []
    for number, value in enumerate(values):
        scheduler.on_trial_add(str(number))
        letters.append("C" if report(scheduler, str(number), m=value) is CONTINUE else "S")
    return "".join(letters)


# --- 1: rung arithmetic ---------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(2, 10), st.integers(0, 10), st.data())
def test_levels_end_exactly_at_the_maximum(r, eta, k, data):
    bracket = data.draw(st.integers(0, k))
    maximum = r * eta**k
    levels = rung_levels(r, maximum, eta, bracket)
    assert levels == [r * eta ** (bracket + i) for i in range(k - bracket + 1)]
    assert bracket_count(r, maximum, eta) == k + 1


@pytest.mark.parametrize(
    ("row", "levels"),
    [
        ((1, 9, 3, 0), [1, 3, 9]),
        ((1, 100, 4, 0), [1, 4, 16, 64, 100]),
        ((1, 100, 4, 1), [4, 16, 64, 100]),
        ((1, 100, 4, 2), [16, 64, 100]),
        ((3, 50, 3, 0), [3, 9, 27, 50]),
        # Logarithms in floating point lose the top rung of these.
        ((1, 243, 3, 0), [1, 3, 9, 27, 81, 243]),
        ((1, 1000, 10, 0), [1, 10, 100, 1000]),
        ((3, 729, 3, 0), [3, 9, 27, 81, 243, 729]),
        ((5, 5, 4, 0), [5]),
        ((0.7, 2.1, 3, 0), [0.7, 2.1]),  # in floating point 0.7 * 3 is a little less than 2.1
    ],
)
def test_levels_of_the_worked_rows(row, levels):
    assert rung_levels(*row) == levels
    minimum, maximum, factor, bracket = row
    assert bracket_count(minimum, maximum, factor) >= len(levels) + bracket - 1


# --- 5: decisions ---------------------------------------------------------------------------------


@given(st.lists(st.integers(-10, 10), max_size=60), st.integers(2, 5))
def test_the_rule_is_the_one_written_down(values, eta):
    expected = ""
    for n, value in enumerate(values, 1):
        ahead = sum(earlier >= value for earlier in values[: n - 1])
        expected += "C" if ahead < max(1, n // eta) else "S"
    assert one_rung(values, eta) == expected
    assert one_rung([-value for value in values], eta, mode="min") == expected


# --- streams of reports over several rungs --------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_8_no_infinity_passes_a_rung_even_alone(value, mode):
    assert one_rung([value], mode=mode) == "S"
    assert one_rung([value, 1, 2 if mode == "max" else 0], mode=mode) == "SCC"


def test_9_a_jump_is_judged_once_on_the_highest_level():
    scheduler = asha(max_t=1000, reduction_factor=4)
    add(scheduler, "slow", "jumper")
    decision = scheduler.on_result("jumper", {"training_iteration": 20, "m": 1.0})
    facts = {"rule": "rung", "rung": 16, "rank": 1, "entries": 1, "places": 1, "cutoff": 1.0, "budget": 2}
    assert decision.reason == facts | {"skipped": 2}
    assert scheduler.on_result("jumper", {"training_iteration": 21, "m": -9.0}).reason == {}
    # The lower rungs were left untouched: the first to reach them is alone there.
    assert scheduler.on_result("slow", {"training_iteration": 1, "m": 0.0}).reason["entries"] == 1
    assert scheduler.on_result("slow", {"training_iteration": 4, "m": 0.0}).reason["entries"] == 1


def test_10_what_comes_after_a_restore_or_a_crash_is_not_judged_again():
    scheduler = asha(max_t=27, reduction_factor=3)
    add(scheduler, "lost", "other", "never")
    for t in (1, 2, 3, 4):
        report(scheduler, "lost", t=t, m=1.0)
    # From its checkpoint of t=1, and worse: no rung that it has passed takes notice.
    assert [scheduler.on_result("lost", {"training_iteration": t, "m": 0.0}) for t in (2, 3, 4)] == [
        Decision(CONTINUE)
    ] * 3
    # A crash before a rung leaves no entry; entries of before stay.
    scheduler.on_trial_error("never")
    scheduler.on_trial_error("lost")
    reason = scheduler.on_result("other", {"training_iteration": 1, "m": 0.5}).reason
    assert (reason["rank"], reason["entries"]) == (2, 2)
    assert scheduler.late_reports == 0


def test_11_a_result_without_the_metric_still_ends_at_max_t():
    scheduler = asha(max_t=10)
    scheduler.on_trial_add("a")
    assert report(scheduler, "a", t=4) is CONTINUE
    assert report(scheduler, "a", t=9, m=None) is CONTINUE
    assert report(scheduler, "a", t=50) is STOP
    scheduler.on_trial_add("b")
    assert scheduler.on_result("b", {"m": 1.0}).verdict is CONTINUE  # no time either: nothing to judge
    lasting = asha(max_t=10, stop_last_trials=False)
    lasting.on_trial_add("a")
    assert report(lasting, "a", t=50, m=1.0) is CONTINUE


def test_13_brackets_are_drawn_by_size_from_the_seed_alone():
    sizes = np.array([81, 34, 15, 8, 5])

    def draw(seed: int) -> list[int]:
        scheduler = asha(seed, max_t=81, reduction_factor=3, brackets=5)
        add(scheduler, *map(str, range(4000)))
        return [scheduler.bracket_of(str(number)) for number in range(4000)]

    np.random.seed(0)
    first = draw(1)
    np.random.seed(1)
    assert draw(1) == first
    assert draw(2) != first
    share = sizes / sizes.sum()
    counts = np.array([Counter(first)[bracket] for bracket in range(5)])
    assert np.all(np.abs(counts - 4000 * share) < 4 * np.sqrt(4000 * share * (1 - share)))


def test_a_later_bracket_is_judged_later():
    scheduler = asha(max_t=9, reduction_factor=3, brackets=3)
    add(scheduler, *map(str, range(60)))
    first = {b: next(str(n) for n in range(60) if scheduler.bracket_of(str(n)) == b) for b in range(3)}
    for (bracket, trial), judged in zip(first.items(), ([1, 3], [3], []), strict=True):
        reasons = [scheduler.on_result(trial, {"training_iteration": t, "m": 1}).reason for t in range(1, 9)]
        assert [t for t, reason in enumerate(reasons, 1) if reason] == judged, bracket


def test_the_metric_is_given_once_and_somewhere():
    with pytest.raises(ConfigError, match=r"'loss'.*'error'"):
        ASHAScheduler(metric="loss", mode="min").set_search_properties("error", "min", scheduler_generator(0))
    with pytest.raises(ConfigError, match="TuneConfig"):
        ASHAScheduler().set_search_properties(None, None, scheduler_generator(0))
    FIFOScheduler().set_search_properties(None, None, scheduler_generator(0))


def test_fifo_stops_nobody_and_starts_the_first():
    fifo = FIFOScheduler()
    fifo.on_trial_add("a")
    assert report(fifo, "a", m=math.nan, t=10**9) is CONTINUE
    assert fifo.choose_trial_to_run(["b", "a"]) == "b"
    assert fifo.choose_trial_to_run([]) is None
