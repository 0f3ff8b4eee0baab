"""ASHA's published form: the worked trace, and laws that hold for every order of events."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.schedulers.promoted_trials import (
    LEVELS,
    PromotedTrials,
    asha,
    orders,
    shop_of,
    tables,
)
from trainkit.tune.schedulers import ASHAScheduler, Decision, Verdict
from trainkit.tune.schedulers.base import words_for

PAUSE, STOP, CONTINUE = Verdict.PAUSE, Verdict.STOP, Verdict.CONTINUE


# --- 4: the worked trace --------------------------------------------------------------------------

LOSSES = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6]


@pytest.fixture
def toy() -> PromotedTrials:
    """The worked trace, played to its end."""
    scheduler = asha("min", max_t=9, reduction_factor=3)
    shop = PromotedTrials(scheduler, lambda number, time: LOSSES[number], (1, 3, 9), len(LOSSES))
    shop.run()
    return shop


def test_reasons_name_rung_rank_and_cutoff(toy):
    texts = [words_for(decision, "ASHA") for decision in toy.decisions]
    assert texts[:4] == [
        "paused by ASHA: rung 1, rank 1 of 1, 0 continue",
        "paused by ASHA: rung 1, rank 1 of 2, 0 continue",
        "paused by ASHA: rung 1, rank 3 of 3, 1 continues, cutoff 0.1",
        "resumed by ASHA: rung 1, rank 1 of 3, 1 continues, cutoff 0.1",
    ]
    assert texts[-2:] == [
        "resumed by ASHA: rung 3, rank 1 of 3, 1 continues, cutoff 0.1",
        "reached max_t=9",
    ]
    facts = {"rule": "rung", "rung": 1, "rank": 1, "entries": 3, "places": 1, "cutoff": 0.1, "budget": 0}
    assert toy.decisions[3].reason == facts


# --- 5: one rung ----------------------------------------------------------------------------------


def promotions(arrivals: Iterable[float], eta: int = 3, mode: str = "max") -> list[list[int]]:
    """After each arrival at the first rung, who is promoted then, as places of arrival from 0."""
    scheduler = asha(mode, max_t=1000, reduction_factor=eta)
    paused: dict[str, None] = {}
    promoted = []
    for number, value in enumerate(arrivals):
        scheduler.on_trial_add(str(number))
        if scheduler.on_result(str(number), {"training_iteration": 1, "m": value}).verdict is PAUSE:
            paused[str(number)] = None
        now = []
        while (chosen := scheduler.choose_trial_to_run([], list(paused))) is not None:
            del paused[chosen]
            scheduler.on_trial_resume(chosen)
            now.append(int(chosen))
        promoted.append(now)
    return promoted


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_a_promotion_goes_to_the_best_and_of_equals_to_the_first(mode, sign):
    falling = [sign * value for value in range(9, 0, -1)]
    assert promotions(falling, mode=mode) == [[], [], [0], [], [], [1], [], [], [2]]
    mixed = [sign * value for value in [5, 1, 9, 3, 7, 2, 8, 4, 6]]
    assert promotions(mixed, mode=mode) == [[], [], [2], [], [], [4], [6], [], []]
    assert promotions([sign] * 6, mode=mode) == [[], [], [0], [], [], [1]]


# --- laws -----------------------------------------------------------------------------------------


@given(tables, orders, st.integers(1, 8), st.data())
def test_2_and_3_who_is_promoted_and_when_a_new_one_starts(table, order, workers, data):
    """Against the rule written out: each time, all entries of each rung are gone through."""
    shop = shop_of(table)
    entries: list[list[tuple[float, int, int]]] = [[], [], []]  # by rung: score, negated arrival, trial
    promoted: list[set[int]] = [set(), set(), set()]

    def promotable(rung: int) -> list[int]:
        best = sorted(entries[rung], reverse=True)[: len(entries[rung]) // 2]
        waiting = {int(trial) for trial, at in shop.paused.items() if at == rung}
        return [number for _, _, number in best if number not in promoted[rung] and number in waiting]

    order = iter(order)
    while True:
        while len(shop.running) < workers:
            expected = next(((rung, numbers[0]) for rung in (2, 1, 0) if (numbers := promotable(rung))), None)
            if not shop.take():
                assert expected is None
                break
            number, time = shop.jobs[-1]
            if time == 1:
                assert expected is None, "a new one, though one could be promoted"
            else:
                rung = LEVELS.index(time) - 1
                assert (rung, number) == expected
                assert number not in promoted[rung], "left a rung twice"
                promoted[rung].add(number)
        if not shop.running:
            break
        which = next(order, 0) % len(shop.running)
        number, time = shop.jobs[shop.running[which]]
        decision = shop.finish(which, fails=data.draw(st.integers(0, 9)) == 0)
        if decision is not None and time < 8:
            value = shop.value(number, time)
            score = value if math.isfinite(value) else -math.inf
            entries[LEVELS.index(time)].append((score, -len(entries[LEVELS.index(time)]), number))
            assert decision.verdict is (STOP if score == -math.inf else PAUSE)


def test_10_a_trial_that_runs_again_while_it_waits_stops_where_it_waited():
    scheduler = asha(max_t=27, reduction_factor=3)
    for name in "abc":
        scheduler.on_trial_add(name)
        assert scheduler.on_result(name, {"training_iteration": 1, "m": 1.0}).verdict is PAUSE
    scheduler.on_trial_resume("a")
    assert scheduler.on_result("a", {"training_iteration": 3, "m": 1.0}).verdict is PAUSE
    # Its process died before it had saved; it goes on from the checkpoint of before.
    assert scheduler.on_result("a", {"training_iteration": 1, "m": 0.0}) == Decision(CONTINUE)
    assert scheduler.on_result("a", {"training_iteration": 2, "m": 0.0}) == Decision(CONTINUE)
    again = scheduler.on_result("a", {"training_iteration": 3, "m": 0.0})
    assert again == Decision(PAUSE, {"rule": "waits", "rung": 3})
    assert words_for(again, "ASHA") == "paused by ASHA: waits for promotion from rung 3"
    # Once it is promoted, what it has passed is behind it.
    for name in "de":
        scheduler.on_trial_add(name)
        assert scheduler.on_result(name, {"training_iteration": 3, "m": 0.0}).verdict is PAUSE
    assert scheduler.choose_trial_to_run([], ["a", "b", "c", "d", "e"]) == "a"
    scheduler.on_trial_resume("a")
    assert scheduler.on_result("a", {"training_iteration": 3, "m": 0.0}) == Decision(CONTINUE)


@pytest.mark.parametrize(("eta", "k"), [(2, 4), (3, 3), (4, 2)])
def test_12_with_all_reports_before_any_decision_it_is_synchronous_halving(eta, k):
    n = eta**k
    values = np.random.default_rng(k).permutation(n).tolist()
    levels = tuple(eta**at for at in range(k + 1))
    shop = PromotedTrials(asha(max_t=n, reduction_factor=eta), lambda number, time: values[number], levels, n)
    while shop.take():
        while shop.take():
            pass
        while shop.running:
            shop.finish(0)
    for rung, level in enumerate(levels):
        there = {number for number, time in shop.jobs if time == level}
        assert there == {number for number in range(n) if values[number] >= n - n // eta**rung}


def test_13_each_bracket_promotes_within_itself():
    scheduler = asha(max_t=27, reduction_factor=3, brackets=2)
    for number in range(60):
        scheduler.on_trial_add(str(number))
    by_bracket = [[str(n) for n in range(60) if scheduler.bracket_of(str(n)) == b] for b in range(2)]
    paused = []
    for bracket, level in ((0, 1), (1, 3)):
        for value, trial in enumerate(by_bracket[bracket][:3]):
            decision = scheduler.on_result(trial, {"training_iteration": level, "m": value})
            assert decision.reason["rung"] == level
            assert decision.reason.get("bracket", 0) == bracket
            assert decision.reason["budget"] == bracket  # the level's place among those of all brackets
            paused.append(trial)
    # The higher level goes first, whichever bracket it is of.
    for bracket in (1, 0):
        chosen = scheduler.choose_trial_to_run([], paused)
        assert chosen == by_bracket[bracket][2]
        scheduler.on_trial_resume(chosen)
        paused.remove(chosen)
    assert scheduler.choose_trial_to_run([], paused) is None


# --- who can go on --------------------------------------------------------------------------------


def three_at_the_first_rung(values=(1.0, 3.0, 2.0)) -> ASHAScheduler:
    scheduler = asha(max_t=27, reduction_factor=3)
    for number, value in enumerate(values):
        scheduler.on_trial_add(str(number))
        scheduler.on_result(str(number), {"training_iteration": 1, "m": value})
    return scheduler


def test_one_that_still_saves_is_passed_over():
    scheduler = three_at_the_first_rung((1.0, 3.0, 2.0, 5.0, 4.0, 0.0))
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "4", "5"]) == "4"  # "3" is the best, "4" second
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "5"]) is None  # no other is among the best two
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3", "4", "5"]) == "3"


def test_a_promotion_goes_before_what_waits_to_run():
    scheduler = three_at_the_first_rung()
    scheduler.on_trial_add("new")
    assert scheduler.choose_trial_to_run(["new"], ["0", "1", "2"]) == "1"
    scheduler.on_trial_resume("1")
    assert scheduler.choose_trial_to_run(["new"], ["0", "2"]) == "new"
    assert scheduler.choose_trial_to_run([], ["0", "2"], new=True) is None
    assert scheduler.choose_trial_to_run([], ["0", "2"], new=False) is None


@pytest.mark.parametrize("ends", ["on_trial_complete", "on_trial_error"])
def test_one_that_has_ended_is_not_promoted_and_stays_an_entry(ends):
    scheduler = three_at_the_first_rung()
    getattr(scheduler, ends)("1")
    assert scheduler.choose_trial_to_run([], ["0", "1", "2"]) is None
    scheduler.on_trial_add("3")
    reason = scheduler.on_result("3", {"training_iteration": 1, "m": 2.5}).reason
    assert (reason["rank"], reason["entries"], reason["cutoff"]) == (2, 4, 3.0)
    # Run once more, it waits again.
    assert scheduler.on_result("1", {"training_iteration": 1, "m": 0.0}).verdict is PAUSE
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3"]) == "1"


def test_a_trial_that_nobody_judged_has_no_reason_to_go_on():
    scheduler = three_at_the_first_rung()
    scheduler.on_trial_add("odd")
    assert scheduler.on_trial_resume("odd") == {}


def test_the_stopping_form_lets_paused_trials_go_on_in_order():
    scheduler = ASHAScheduler(metric="m", mode="max")
    assert scheduler.choose_trial_to_run([], ["b", "a"]) == "b"
    assert scheduler.choose_trial_to_run(["c"], ["b", "a"]) == "c"
