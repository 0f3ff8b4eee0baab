"""Hyperband where trials fail, end early, come late or don't come: no round waits in vain."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune.schedulers.simulated_workers import SimulatedWorkers, replayed
from tests.tune.schedulers.test_hyperband import BOTH, CONTINUE, PAUSE, STOP, hyperband, nine, report, went_on
from trainkit.tune.schedulers.halving import bracket_plans, places, shared_levels

SIZES = st.integers(2, 100), st.integers(2, 5), st.integers(1, 40), st.integers(1, 32)


def fallen(scheduler) -> list[int]:
    return [int(trial_id) for trial_id, _ in scheduler.verdicts()]


# --- 15: partial and partly failed brackets -------------------------------------------------------


@pytest.mark.parametrize(("came", "go_on"), [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (8, 2), (9, 3)])
def test_15_a_bracket_that_stays_partial_is_halved_by_those_that_came(came, go_on):
    scheduler = hyperband()
    for number in range(came):
        scheduler.on_trial_add(str(number))
    answers = [report(scheduler, number, 1, number).verdict for number in range(came)]
    if came < 9:
        assert set(answers) == {PAUSE}
        assert went_on(scheduler) == []
        scheduler.on_no_more_trials()
    assert went_on(scheduler) == [str(number) for number in range(came - 1, came - 1 - go_on, -1)]
    assert len(fallen(scheduler)) == came - go_on


@given(*SIZES, st.integers(0, 2**32), st.sampled_from([0, 0.01]))
def test_15_every_round_lets_the_best_of_those_there_go_on(max_t, eta, samples, workers, seed, fail_rate):
    chance = random.Random(seed)
    scheduler = hyperband(max_t, eta)
    crew = SimulatedWorkers(
        scheduler, samples=samples, workers=workers, chance=chance, fail_rate=fail_rate
    ).run()
    rounds: dict[tuple[int, float], list[tuple[int, bool]]] = {}
    facts = {}
    judged = [(who, each.reason, False) for who, _, each in crew.decisions]
    for _, reason, went in judged + [(who, reason, True) for who, reason in crew.resumed]:
        if reason["rule"] == "rung":
            key = (reason["bracket"], reason["rung"])
            rounds.setdefault(key, []).append((reason["rank"], went))
            facts[key] = reason["entries"], reason["places"]
    for key, ranks in rounds.items():
        entries, open_places = facts[key]
        assert open_places == places(entries, eta)
        assert len(ranks) <= entries  # those that failed count, but nothing is decided on them
        verdicts = [went for _, went in sorted(ranks)]
        assert verdicts == sorted(verdicts, reverse=True)  # best first
        assert sum(verdicts) <= open_places
        if not fail_rate:
            assert (sum(verdicts), len(verdicts)) == (open_places, entries)


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
    for number in range(8):
        report(scheduler, number, 1, number)
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
    for number in range(8):
        report(scheduler, number, 1, number)
    scheduler.on_trial_error("7")
    assert report(scheduler, 8, 1, 0.5).reason["rank"] == 7  # 7 is behind it now, and 0
    assert went_on(scheduler) == ["6", "5", "4"]


def test_a_trial_that_ends_early_keeps_its_score_and_gives_its_place_up():
    scheduler = nine()
    assert report(scheduler, 0, 1, 100.0).verdict is PAUSE
    scheduler.on_trial_complete("0")  # stopped from outside, say
    scheduler.on_trial_complete("1")  # before it came to the level
    for number in range(2, 8):
        report(scheduler, number, 1, number)
    last = report(scheduler, 8, 1, 2.5)
    assert (last.verdict, last.reason["rank"], last.reason["entries"]) == (STOP, 7, 9)
    assert went_on(scheduler) == ["7", "6", "5"]


def test_all_trials_failing_leaves_nothing_waiting():
    scheduler = nine()
    for number in range(9):
        scheduler.on_trial_error(str(number))
    scheduler.on_no_more_trials()
    assert fallen(scheduler) == went_on(scheduler) == []


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
    for number in range(9):
        report(scheduler, number, 1, number)
    scheduler.on_trial_add("9")
    paused = [str(number) for number in range(8)]
    assert scheduler.choose_trial_to_run(["8"], paused) == "8"
    assert scheduler.choose_trial_to_run(["9"], paused) == "7"
    assert scheduler.choose_trial_to_run(["9"], []) == "9"


# --- reports that come again, or late -------------------------------------------------------------


def test_10_a_trial_that_failed_in_its_pause_may_run_again():
    """It waits at its level as before, whatever it reports there now."""
    scheduler = nine()
    for number in range(7):
        report(scheduler, number, 1, number)
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
    for number in (8, 7, 6, 0, 1, 2, 3, 4, 5):
        report(scheduler, number, 1, number)
    assert len(fallen(scheduler)) == 5
    assert report(scheduler, 8, 1, 8.0) == report(scheduler, 8, 2, 8.0)
    assert report(scheduler, 8, 3, 8.0).verdict is PAUSE
    assert went_on(scheduler) == ["7", "6"]


@given(*SIZES, st.integers(0, 2**32), st.integers(-3, 0))
def test_10_repeated_and_backward_reports_change_nothing(max_t, eta, samples, workers, seed, back):
    class Stutters(SimulatedWorkers):
        def _hear_verdicts(self) -> None:
            super()._hear_verdicts()
            name, arguments, answer = self.calls[-1]
            if name == "on_result" and self.trials[arguments[0]].status == "RUNNING":
                trial_id, result = arguments
                earlier = {"training_iteration": result["training_iteration"] + back, "m": 1e9}
                again = self.scheduler.on_result(trial_id, earlier)
                assert "budget" not in again.reason or answer.reason.get("budget") is None
                assert again.verdict in (answer.verdict, CONTINUE)

    def play(cls: type[SimulatedWorkers]) -> list[object]:
        chance = random.Random(seed)
        value = [chance.random() for _ in range(samples)]
        scheduler = hyperband(max_t, eta)
        return (
            cls(
                scheduler,
                samples=samples,
                workers=workers,
                value=lambda n, t: value[n] + t % 3,
                chance=chance,
            )
            .run()
            .decisions
        )

    assert play(Stutters) == play(SimulatedWorkers)


@pytest.mark.parametrize("more", [True, False])
def test_a_trial_that_a_restore_runs_again_after_its_end_joins_like_a_new_one(more):
    scheduler = nine()
    scheduler.on_trial_error("0")
    for number in range(1, 9):
        report(scheduler, number, 1, number)
    if not more:
        scheduler.on_no_more_trials()
    decision = report(scheduler, 0, 3, 0.0)
    assert scheduler.bracket_of("0") == 1
    assert decision.reason["awaits"] == 4 * more
    assert went_on(scheduler)[-1:] == (["6"] if more else ["0"])  # alone in its bracket, it goes on
    assert (report(scheduler, 0, 9, 1.0).verdict) is STOP


# --- 16, 17, 28: whole experiments ----------------------------------------------------------------


@settings(max_examples=examples(300))
@given(
    *SIZES, st.integers(0, 2**32), st.sampled_from([0, 0.01, 0.2]), st.sampled_from([0, 0.02]), st.booleans()
)
@example(100, 5, 40, 32, 0, 0.2, 0.02, True)
def test_16_no_trial_is_left_waiting(max_t, eta, samples, workers, seed, fail_rate, end_rate, narrow):
    """Row 1.15; with the scheduler alone, so that nobody else ends what it forgets."""
    chance = random.Random(seed)
    crew = SimulatedWorkers(
        hyperband(max_t, eta, cls=chance.choice(BOTH), narrow_first=narrow),
        samples=samples,
        workers=workers,
        value=lambda trial, time: chance.choice([chance.random(), math.nan]),
        chance=chance,
        fail_rate=fail_rate,
        end_rate=end_rate,
    ).run()
    assert len(crew.trials) == samples
    assert {trial.status for trial in crew.trials.values()} <= {"TERMINATED", "ERROR"}


@given(*SIZES, st.integers(0, 2**32))
def test_17_each_level_that_a_trial_passes_is_told_once_with_its_budget(max_t, eta, samples, workers, seed):
    chance = random.Random(seed)
    crew = SimulatedWorkers(
        hyperband(max_t, eta), samples=samples, workers=workers, chance=chance, fail_rate=0.02
    ).run()
    levels, plans = shared_levels(max_t, eta), bracket_plans(max_t, eta)
    told = Counter()
    furthest = dict.fromkeys(crew.trials, 0)
    for name, arguments, answer in crew.calls:
        if name == "on_result":
            trial_id, time = arguments[0], arguments[1]["training_iteration"]
            furthest[trial_id] = max(furthest[trial_id], time)
            if "budget" in answer.reason:
                assert levels[answer.reason["budget"]] == time
                told[trial_id, time] += 1
    expected = Counter(
        (trial_id, level)
        for trial_id, time in furthest.items()
        for level in plans[crew.scheduler.bracket_of(trial_id) % len(plans)].levels
        if level <= time
    )
    assert told == expected


@given(*SIZES, st.integers(0, 2**32), st.sampled_from(BOTH))
def test_28_the_same_calls_give_the_same_answers(max_t, eta, samples, workers, seed, cls):
    """So what is replayed up to any call goes on as it would have."""
    chance = random.Random(seed)
    crew = SimulatedWorkers(
        hyperband(max_t, eta, cls=cls),
        samples=samples,
        workers=workers,
        value=lambda trial, time: chance.random(),
        chance=chance,
        fail_rate=0.02,
        end_rate=0.01,
    ).run()
    assert replayed(crew.scheduler, crew) == [answer for _, _, answer in crew.calls]
