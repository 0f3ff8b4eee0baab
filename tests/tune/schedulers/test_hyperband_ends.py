"""Hyperband where trials fail, end early, come late or don't come: no round waits in vain."""

from __future__ import annotations

import pytest

from tests.tune.schedulers.test_hyperband import PAUSE, STOP, all_report, hyperband, nine, report, went_on


def fallen(scheduler) -> list[int]:
    return [int(trial_id) for trial_id, _ in scheduler.verdicts()]


# --- 15: partial and partly failed brackets -------------------------------------------------------


@pytest.mark.parametrize(("came", "go_on"), [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (8, 2), (9, 3)])
def test_15_a_bracket_that_stays_partial_is_halved_by_those_that_came(came, go_on):
    scheduler = hyperband(trials=came)
    answers = [report(scheduler, number, 1, number).verdict for number in range(came)]
    if came < 9:
        assert set(answers) == {PAUSE}
        assert went_on(scheduler) == []
        scheduler.on_no_more_trials()
    assert went_on(scheduler) == [str(number) for number in range(came - 1, came - 1 - go_on, -1)]
    assert len(fallen(scheduler)) == came - go_on


def test_15_failed_trials_count_as_the_worst_and_are_not_waited_for():
    scheduler = nine()
    for number in range(4):
        scheduler.on_trial_error(str(number))
    for number in range(4, 8):
        assert report(scheduler, number, 1, number).verdict is PAUSE
    report(scheduler, 8, 1, 8.0)
    assert fallen(scheduler) == [5, 4]
    reason = scheduler.on_trial_resume("8")
    assert (reason["entries"], reason["places"], reason["rank"]) == (9, 3, 1)


def test_15_the_last_failure_completes_the_round():
    scheduler = nine()
    all_report(scheduler, *range(8))
    assert went_on(scheduler) == []
    scheduler.on_trial_error("8")
    assert fallen(scheduler) == [4, 3, 2, 1, 0]
    assert went_on(scheduler) == ["7", "6", "5"]
    scheduler.on_trial_error("7")
    report(scheduler, 6, 3, 6.0)
    assert report(scheduler, 5, 3, 5.0).verdict is STOP
    assert went_on(scheduler) == ["6"]


def test_a_trial_that_fails_while_paused_gives_its_place_up():
    scheduler = nine()
    all_report(scheduler, *range(8))
    scheduler.on_trial_error("7")
    assert report(scheduler, 8, 1, 0.5).reason["rank"] == 7  # 7 is behind it now, and 0
    assert went_on(scheduler) == ["6", "5", "4"]


def test_a_trial_that_ends_early_keeps_its_score_and_gives_its_place_up():
    scheduler = nine()
    assert report(scheduler, 0, 1, 100.0).verdict is PAUSE
    scheduler.on_trial_complete("0")  # stopped from outside, say
    scheduler.on_trial_complete("1")  # before it came to the level
    all_report(scheduler, *range(2, 8))
    last = report(scheduler, 8, 1, 2.5)
    assert (last.verdict, last.reason["rank"], last.reason["entries"]) == (STOP, 7, 9)
    assert went_on(scheduler) == ["7", "6", "5"]


# --- brackets that close --------------------------------------------------------------------------


def test_trials_that_come_after_all_open_a_new_bracket():
    scheduler = hyperband()
    for number in range(2):
        scheduler.on_trial_add(str(number))
        report(scheduler, number, 1, number)
    scheduler.on_no_more_trials()
    assert fallen(scheduler) == [0]
    scheduler.on_trial_add("2")
    assert scheduler.bracket_of("2") == 1
    assert report(scheduler, 2, 3, 5.0).reason["awaits"] == 4  # a bracket of 5, which waits for the others
    scheduler.on_no_more_trials()
    scheduler.on_no_more_trials()
    assert went_on(scheduler) == ["1", "2"]  # the earlier bracket first, whoever is better


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
