"""Hyperband: its brackets to the digit, the rule of each round, trials that fail, end early or come late."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import (
    Decision,
    HyperBandForBOHB,
    HyperBandScheduler,
    TrialScheduler,
    Verdict,
)
from trainkit.tune.schedulers.halving import bracket_plans, places, shared_levels

STOP, CONTINUE, PAUSE = Verdict.STOP, Verdict.CONTINUE, Verdict.PAUSE
BOTH = [HyperBandScheduler, HyperBandForBOHB]


def hyperband(
    max_t=9, eta=3, mode="max", cls=HyperBandScheduler, trials: int = 0, **arguments
) -> HyperBandScheduler:
    """With trials "0", "1", ... that have come."""
    scheduler = cls(metric="m", mode=mode, max_t=max_t, reduction_factor=eta, **arguments)
    scheduler.set_search_properties("m", mode, scheduler_generator(0))
    for number in range(trials):
        scheduler.on_trial_add(str(number))
    return scheduler


def report(scheduler: TrialScheduler, trial: object, t: float, m: float | None = None):
    result = {"training_iteration": t} if m is None else {"training_iteration": t, "m": m}
    return scheduler.on_result(str(trial), result)


def nine(**arguments) -> HyperBandScheduler:
    """With the widest bracket of 9/3 full: 9 trials, judged at 1 and 3."""
    return hyperband(trials=9, **arguments)


def all_report(scheduler: TrialScheduler, *numbers: int) -> Decision:
    """Each reports its number at the first level; return what was decided on the last."""
    for number in numbers:
        decision = report(scheduler, number, 1, number)
    return decision


def went_on(scheduler: TrialScheduler) -> list[str]:
    """Those that go on, in the order they do."""
    found = []
    while (trial_id := scheduler.choose_trial_to_run([], [str(n) for n in range(99)])) is not None:
        scheduler.on_trial_resume(trial_id)
        found.append(trial_id)
    return found


# --- 14: tables and totals ------------------------------------------------------------------------

TOTALS = {  # (R, eta): trials, units from scratch, units with resume
    (81, 3): (143, 1902, 1581),
    (9, 3): (17, 78, 69),
    (27, 3): (49, 423, 357),
    (16, 2): (43, 372, 278),
    (64, 4): (98, 1000, 884),
    (256, 4): (378, 6000, 5232),
}


@pytest.mark.parametrize(
    ("pair", "levels"),
    [
        ((60, 3), [2, 7, 20, 60]),
        ((100, 3), [1, 4, 11, 33, 100]),
        ((729, 3), [1, 3, 9, 27, 81, 243, 729]),  # int(729 * 3**-6) is 0: a bracket would be lost
        ((243, 3), [1, 3, 9, 27, 81, 243]),  # log(243) / log(3) is 4.999...
        ((1000, 10), [1, 10, 100, 1000]),
        ((5, 2), [1, 3, 5]),  # 2.5 is rounded up
        ((2.5, 2.5), [1, 2.5]),
        ((2, 3), [2]),  # less than one level: a bracket of one trial that nobody judges
        ((0.5, 3), [0.5]),
    ],
)
def test_14_levels_are_shared_and_end_at_the_maximum(pair, levels):
    assert list(shared_levels(*pair)) == levels
    plans = bracket_plans(*pair)
    assert [list(plan.levels) for plan in plans] == [levels[skipped:] for skipped in range(len(levels))]
    assert [plan.lowest for plan in plans] == list(range(len(levels)))


@given(st.floats(0.1, 3000) | st.integers(1, 3000), st.integers(2, 10) | st.floats(2, 10))
def test_levels_rise_and_every_round_has_a_trial(max_t, eta):
    for plan in bracket_plans(max_t, eta):
        assert plan.levels[-1] == max_t
        assert all(lower < upper for lower, upper in itertools.pairwise(plan.levels))
        entries = plan.size
        for _ in plan.levels:
            assert entries >= 1
            entries = places(entries, eta)


# --- brackets fill one after another --------------------------------------------------------------


@pytest.mark.parametrize("cls", BOTH)
def test_the_widest_bracket_comes_first_and_the_turn_begins_again(cls):
    scheduler = hyperband(cls=cls, trials=19)
    assert [scheduler.bracket_of(str(n)) for n in range(19)] == [0] * 9 + [1] * 5 + [2] * 3 + [3] * 2


def test_the_narrow_bracket_first_if_asked_for():
    scheduler = hyperband(narrow_first=True, trials=18)
    assert [scheduler.bracket_of(str(n)) for n in range(18)] == [0] * 3 + [1] * 5 + [2] * 9 + [3]


def test_a_full_bracket_leaves_no_worker_idle():
    """While the trials of a bracket wait for the slowest one, those of the next begin."""
    scheduler = nine()
    for number in range(8):
        assert report(scheduler, number, 1, number).verdict is PAUSE
    paused = [str(number) for number in range(8)]
    assert scheduler.choose_trial_to_run([], paused, new=True) is None  # so a new trial starts
    scheduler.on_trial_add("9")
    assert scheduler.bracket_of("9") == 1
    assert report(scheduler, 8, 1, 8.0).reason["awaits"] == 0
    assert (
        scheduler.choose_trial_to_run([], [*paused, "8"], new=True) == "8"
    )  # so it need not end its process
    assert scheduler.choose_trial_to_run([], paused, new=True) == "7"  # before any new trial


# --- one round ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_round_is_judged_when_its_last_trial_arrives(mode):
    sign = -1 if mode == "min" else 1
    scheduler = nine(mode=mode)
    for number, waits in zip(range(9), range(8, -1, -1), strict=True):
        assert scheduler.verdicts() == []
        decision = report(scheduler, number, 1, sign * (6.5 if number == 8 else number))
        assert decision.verdict is PAUSE
        place = {"bracket": 0, "rung": 1, "budget": 0}
        assert decision.reason == {"rule": "milestone", **place, "awaits": waits}
    facts = {"rule": "rung", **place, "entries": 9, "places": 3}
    cutoff = {"cutoff": sign * 6}
    verdicts = scheduler.verdicts()
    assert [each for each, _ in verdicts] == ["5", "4", "3", "2", "1", "0"]
    assert [decision.reason["rank"] for _, decision in verdicts] == [4, 5, 6, 7, 8, 9]
    assert all(decision.verdict is STOP for _, decision in verdicts)
    assert scheduler.verdicts() == []  # once each
    paused = [str(number) for number in range(9)]
    for name, rank in {"8": 2, "7": 1, "6": 3}.items():  # the one that has a process, then the best first
        assert scheduler.choose_trial_to_run([], paused) == name
        assert scheduler.choose_trial_to_run([], paused) == name  # a question changes nothing
        assert scheduler.on_trial_resume(name) == facts | cutoff | {"rank": rank}
    assert scheduler.choose_trial_to_run([], paused) is None


def test_11_without_the_metric_a_trial_stays_on_its_way_but_ends_at_max_t():
    scheduler = nine()
    all_report(scheduler, *range(8))
    assert report(scheduler, 8, 1).verdict is CONTINUE
    assert scheduler.on_result("8", {"m": 1.0}).verdict is CONTINUE  # no time: nothing to judge
    assert scheduler.verdicts() == []
    other = report(scheduler, 8, 50)
    assert (other.verdict, other.reason) == (STOP, {"rule": "max_t", "max_t": 9, "bracket": 0})
    assert len(scheduler.verdicts()) == 5  # 9 entries, so 3 of those that are left went on


def test_a_value_that_comes_late_is_taken_at_the_level():
    scheduler = nine()
    all_report(scheduler, *range(8))
    report(scheduler, 8, 1)
    decision = report(scheduler, 8, 2, 100.0)
    assert (decision.verdict, decision.reason["rung"], decision.reason["awaits"]) == (PAUSE, 1, 0)
    assert scheduler.on_trial_resume("8")["rank"] == 1


def test_9_a_jump_is_judged_at_the_level_that_was_awaited_and_the_next_counts_from_the_plan():
    scheduler = nine()
    assert report(scheduler, 0, 8, 100.0).reason["rung"] == 1
    all_report(scheduler, *range(1, 9))
    scheduler.on_trial_resume("0")
    assert report(scheduler, 0, 8, 100.0) == report(scheduler, 7, 2, 0.0)  # the same report again
    assert report(scheduler, 0, 8.5, 100.0).reason["rung"] == 3


def test_a_jump_to_the_end_counts_where_the_trial_was_awaited():
    scheduler = nine()
    assert report(scheduler, 0, 9, 100.0).reason == {"rule": "max_t", "max_t": 9, "bracket": 0, "budget": 2}
    scheduler.on_trial_complete("0")
    all_report(scheduler, *range(1, 9))
    assert len(scheduler.verdicts()) == 5
    reason = scheduler.on_trial_resume("8")
    assert (reason["rank"], reason["cutoff"]) == (2, 6)
    assert went_on(scheduler) == ["7", "6"]  # the place of the first went to the next


@pytest.mark.parametrize("cls", BOTH)
def test_without_a_last_stop_trials_run_on(cls):
    scheduler = hyperband(max_t=2, eta=3, stop_last_trials=False, cls=cls, trials=1)
    assert report(scheduler, 0, 1, 1.0).reason == {}
    end = report(scheduler, 0, 2, 1.0)
    assert (end.verdict, end.reason["budget"]) == (CONTINUE, 0)
    assert report(scheduler, 0, 3, 1.0).reason == {}
    wide = nine(stop_last_trials=False)
    assert report(wide, 0, 50, 1.0).verdict is PAUSE


def fallen(scheduler) -> list[int]:
    return [int(trial_id) for trial_id, _ in scheduler.verdicts()]


def test_a_trial_that_ends_early_keeps_its_score_and_gives_its_place_up():
    scheduler = nine()
    assert report(scheduler, 0, 1, 100.0).verdict is PAUSE
    scheduler.on_trial_complete("0")  # stopped from outside, say
    scheduler.on_trial_complete("1")  # before it came to the level
    all_report(scheduler, *range(2, 8))
    last = report(scheduler, 8, 1, 2.5)
    assert (last.verdict, last.reason["rank"], last.reason["entries"]) == (STOP, 7, 9)
    assert went_on(scheduler) == ["7", "6", "5"]


def test_a_trial_that_is_tried_again_goes_before_those_that_wait_for_it():
    scheduler = nine()
    all_report(scheduler, *range(9))
    scheduler.on_trial_add("9")
    paused = [str(number) for number in range(8)]
    assert scheduler.choose_trial_to_run(["8"], paused) == "8"
    assert scheduler.choose_trial_to_run(["9"], paused) == "7"
    assert scheduler.choose_trial_to_run(["9"], []) == "9"


# --- reports that come again, or late -------------------------------------------------------------


def test_10_a_trial_that_failed_in_its_pause_may_run_again():
    """It waits at its level as before, whatever it reports there now."""
    scheduler = nine()
    all_report(scheduler, *range(7))
    assert report(scheduler, 0, 0.5, 9.0) == report(scheduler, 7, 0.5, 9.0)
    again = report(scheduler, 0, 1, 100.0)
    assert (again.verdict, again.reason) == (PAUSE, {"rule": "waits", "bracket": 0, "rung": 1})
    assert report(scheduler, 7, 1, 7.0).reason["awaits"] == 1
    report(scheduler, 8, 1, 8.0)
    assert 0 in fallen(scheduler)
    late = report(scheduler, 0, 2, 100.0)
    assert (late.verdict, late.reason) == (STOP, {"rule": "late report"})
    assert scheduler.late_reports == 2


def test_10_one_that_goes_on_without_a_word_is_resumed_only_at_its_next_pause():
    """Judged while it ran again after a failure in its pause: it just goes on."""
    scheduler = nine()
    all_report(scheduler, 8, 7, 6, 0, 1, 2, 3, 4, 5)
    assert len(fallen(scheduler)) == 5
    assert report(scheduler, 8, 1, 8.0) == report(scheduler, 8, 2, 8.0)
    assert report(scheduler, 8, 3, 8.0).verdict is PAUSE
    assert went_on(scheduler) == ["7", "6"]


@pytest.mark.parametrize("more", [True, False])
def test_a_trial_that_a_restore_runs_again_after_its_end_joins_like_a_new_one(more):
    scheduler = nine()
    scheduler.on_trial_error("0")
    all_report(scheduler, *range(1, 9))
    if not more:
        scheduler.on_no_more_trials()
    decision = report(scheduler, 0, 3, 0.0)
    assert scheduler.bracket_of("0") == 1
    assert decision.reason["awaits"] == 4 * more
    assert went_on(scheduler)[-1:] == (["6"] if more else ["0"])  # alone in its bracket, it goes on
    assert (report(scheduler, 0, 9, 1.0).verdict) is STOP
