"""ASHA that promotes and trains one trial to the end, where none would get there by its rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.pausing import Counted, CutShort
from tests.tune.schedulers.promoted_trials import LEVELS, PromotedTrials, asha, orders, shop_of, tables
from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.schedulers.base import words_for


def trained_to_the_end(shop: PromotedTrials) -> list[int]:
    return [number for number, time in shop.jobs if time == LEVELS[-1]]


@given(tables, orders, st.integers(1, 8))
def test_all_goes_as_without_and_then_the_best_go_on_alone_until_one_is_through(table, order, workers):
    usual, shop = shop_of(table), shop_of(table, finish=True)
    usual.run(workers, order)
    shop.run(workers, order)
    assert shop.jobs[: len(usual.jobs)] == usual.jobs
    tail = shop.jobs[len(usual.jobs) :]
    if trained_to_the_end(usual):
        assert not tail
        return
    waiting = {number: LEVELS[at] for number, at in ((int(n), at) for n, at in usual.paused.items())}
    for number, time in tail:
        highest = max(waiting.values())
        assert waiting[number] == highest == time // 2, "from the highest rung where one waits"
        best = max(table[each][LEVELS.index(highest)] for each in waiting if waiting[each] == highest)
        assert table[number][LEVELS.index(highest)] == best
        del waiting[number]
        if time < LEVELS[-1] and math.isfinite(table[number][LEVELS.index(time)]):
            waiting[number] = time
    assert len(trained_to_the_end(shop)) == 1 or not waiting, "one is through, or none was left"


@given(tables, orders, st.integers(1, 8), st.data())
def test_where_one_fails_another_takes_its_place(table, order, workers, data):
    shop = shop_of(table, finish=True)
    shop.run(workers, order, lambda: data.draw(st.integers(0, 3)) == 0)
    assert not shop.paused or trained_to_the_end(shop)


def told(scheduler, trial_id, time, score):
    return scheduler.on_result(trial_id, {"training_iteration": time, "m": score})


def reported(trials: int, **arguments) -> ASHAScheduler:
    """So many trials have come to the first rung, each with its number for a score."""
    scheduler = asha(reduction_factor=4, finish=True, **arguments)
    for number in range(trials):
        scheduler.on_trial_add(str(number))
        told(scheduler, str(number), 1, number)
    return scheduler


def test_the_best_is_waited_for_while_it_saves():
    scheduler = reported(2, max_t=8)
    assert scheduler.choose_trial_to_run([], ["0"]) is None
    assert scheduler.choose_trial_to_run([], ["0", "1"]) == "1"


@pytest.mark.parametrize(
    ("time", "score", "next_one"),
    [
        (3, math.nan, "3"),  # it has failed, as an estimator that raises later on
        (3, 9.0, None),  # it has ended by itself, or by a stop rule, further than all that wait
        (4, 9.0, None),
        (20, math.nan, None),
    ],
)
def test_one_that_is_promoted_and_ends_counts_if_it_came_further_in_order(time, score, next_one):
    scheduler = reported(5, max_t=20)
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3", "4"]) == "4"
    scheduler.on_trial_resume("4")
    told(scheduler, "4", 2, 9.0)
    told(scheduler, "4", time, score)
    scheduler.on_trial_complete("4")
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3"]) == next_one


def test_one_that_a_stop_rule_ends_at_its_first_report_does_not_count():
    scheduler = reported(3, max_t=20)
    scheduler.on_trial_complete("0")
    assert scheduler.choose_trial_to_run([], ["1", "2"]) == "2"


def test_of_several_brackets_the_best_of_all_rungs_at_the_highest_level_goes_on():
    scheduler = asha(max_t=16, brackets=2, finish=True)
    ids = [str(number) for number in range(12)]
    for trial_id in ids:
        scheduler.on_trial_add(trial_id)
    low, high = ([each for each in ids if scheduler.bracket_of(each) == bracket] for bracket in (0, 1))
    assert len(low) >= 4
    assert high
    for trial_id in low:
        told(scheduler, trial_id, 1, 0.0)
    while (chosen := scheduler.choose_trial_to_run([], low)) is not None:
        scheduler.on_trial_resume(chosen)
        told(scheduler, chosen, 4, 0.0)
    for number, trial_id in enumerate(high[:3]):
        told(scheduler, trial_id, 4, 1.0 + number)
    for trial_id in high[3:]:
        scheduler.on_trial_error(trial_id)
    assert scheduler.choose_trial_to_run([], [*low, *high[:3]]) == high[:3][-1]


def test_why_it_goes_on_is_said():
    shop = shop_of([(1, 1, 1, 1)], finish=True)
    shop.run()
    assert [words_for(decision, "ASHA") for decision in shop.decisions] == [
        "paused by ASHA: rung 1, rank 1 of 1, 0 continue",
        "resumed by ASHA: rung 1, rank 1 of 1, to train one trial to the end",
        "paused by ASHA: rung 2, rank 1 of 1, 0 continue",
        "resumed by ASHA: rung 2, rank 1 of 1, to train one trial to the end",
        "paused by ASHA: rung 4, rank 1 of 1, 0 continue",
        "resumed by ASHA: rung 4, rank 1 of 1, to train one trial to the end",
        "reached max_t=8",
    ]


class Falling(Counted):
    def reports(self, number):
        return {"loss": self.config["x"] / number}


@pytest.mark.parametrize("finish", [False, True])
def test_a_small_search(fit, inline, finish):
    scheduler = ASHAScheduler(max_t=20, type="promotion", finish=finish)
    grid = fit(Falling, {"x": tune.grid_search(list(range(1, 11)))}, metric="loss", scheduler=scheduler)
    steps = sorted(result.metrics["training_iteration"] for result in grid)
    assert steps == [1] * 8 + ([4, 20] if finish else [4, 4])
    assert grid.get_best_result().config == {"x": 1}


class Faulty(Falling):
    def step(self):
        if self.config["x"] == 1 and self.number == 4:
            raise ValueError("worn out")
        return super().step()


@pytest.mark.parametrize("errored", [False, True])
def test_a_trial_that_a_restore_leaves_as_it_was_holds_nobody_up(errored, inline, fit, restore):
    space, run = {"x": tune.grid_search([2, 1, 3, 4, 5])}, {"callbacks": [CutShort(24)]}
    scheduler = ASHAScheduler(max_t=20, type="promotion", finish=True)
    with pytest.raises(KeyboardInterrupt):
        fit(Faulty, space, metric="loss", scheduler=scheduler, max_concurrent_trials=1, run=run)
    grid = restore(Faulty, run={"callbacks": [CutShort(0)]}, resume_errored=errored)
    reached = {result.config["x"]: result.metrics["training_iteration"] for result in grid}
    assert reached == {1: 4, 2: 20, 3: 1, 4: 1, 5: 1}
    assert [result.config["x"] for result in grid if result.error] == [1]
