"""ASHA that promotes and trains one trial to the end, where none would get there by its rank."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.schedulers.promoted_trials import PromotedTrials, asha
from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.schedulers.base import words_for

LEVELS = (1, 2, 4, 8)
scores = st.integers(-4, 4) | st.sampled_from([math.nan, math.inf, -math.inf])
tables = st.lists(st.tuples(scores, scores, scores, scores), min_size=1, max_size=30)
orders = st.lists(st.integers(0, 1000), max_size=150)


def shop_of(table, **arguments) -> PromotedTrials:
    scheduler = asha(max_t=8, reduction_factor=2, **arguments)
    return PromotedTrials(
        scheduler, lambda number, time: table[number][LEVELS.index(int(time))], LEVELS, len(table)
    )


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
    order = iter(order)
    while True:
        while len(shop.running) < workers and shop.take():
            pass
        if not shop.running:
            break
        shop.finish(next(order, 0) % len(shop.running), fails=data.draw(st.integers(0, 3)) == 0)
    assert not shop.paused or trained_to_the_end(shop)


def test_the_best_is_waited_for_while_it_saves():
    scheduler = asha(max_t=8, reduction_factor=4, finish=True)
    for trial_id, score in (("0", 1), ("1", 0)):
        scheduler.on_trial_add(trial_id)
        scheduler.on_result(trial_id, {"training_iteration": 1, "m": score})
    assert scheduler.choose_trial_to_run([], ["1"]) is None
    assert scheduler.choose_trial_to_run([], ["0", "1"]) == "0"


def told(scheduler, trial_id, time, score):
    return scheduler.on_result(trial_id, {"training_iteration": time, "m": score})


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
    scheduler = asha(max_t=20, finish=True)
    for number in range(5):
        scheduler.on_trial_add(str(number))
        told(scheduler, str(number), 1, number)
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3", "4"]) == "4"
    scheduler.on_trial_resume("4")
    told(scheduler, "4", 2, 9.0)
    told(scheduler, "4", time, score)
    scheduler.on_trial_complete("4")
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3"]) == next_one


def test_one_that_a_stop_rule_ends_at_its_first_report_does_not_count():
    scheduler = asha(max_t=20, finish=True)
    for number in range(3):
        scheduler.on_trial_add(str(number))
        told(scheduler, str(number), 1, number)
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


class Falling(tune.Trainable):
    def setup(self, config):
        self.steps = 0

    def step(self):
        self.steps += 1
        return {"loss": self.config["x"] / self.steps}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "steps").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint):
        self.steps = int(Path(checkpoint, "steps").read_text())


@pytest.mark.parametrize("finish", [False, True])
def test_a_small_search(fit, inline, finish):
    scheduler = ASHAScheduler(max_t=20, type="promotion", finish=finish)
    grid = fit(Falling, {"x": tune.grid_search(list(range(1, 11)))}, metric="loss", scheduler=scheduler)
    steps = sorted(result.metrics["training_iteration"] for result in grid)
    assert steps == [1] * 8 + ([4, 20] if finish else [4, 4])
    assert grid.get_best_result().config == {"x": 1}


class Faulty(Falling):
    def step(self):
        if self.config["x"] == 1 and self.steps == 4:
            raise ValueError("worn out")
        return super().step()


class CutShort(tune.Callback):
    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0

    def on_step_end(self, iteration, trials, **info):
        self.seen += 1
        if self.seen == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [24])
@pytest.mark.parametrize("errored", [False, True])
def test_a_trial_that_a_restore_leaves_as_it_was_holds_nobody_up(after, errored, inline, results):
    tuner = tune.Tuner(
        Faulty,
        param_space={"x": tune.grid_search([2, 1, 3, 4, 5])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=ASHAScheduler(max_t=20, type="promotion", finish=True),
            max_concurrent_trials=1,
        ),
        run_config=tune.RunConfig(name="e", storage_path=results, verbose=0, callbacks=[CutShort(after)]),
    )
    with pytest.raises(KeyboardInterrupt):
        tuner.fit()
    run = tune.RunConfig(callbacks=[CutShort(0)])
    grid = tune.Tuner.restore(results / "e", Faulty, run_config=run, resume_errored=errored).fit()
    reached = {result.config["x"]: result.metrics["training_iteration"] for result in grid}
    assert reached == {1: 4, 2: 20, 3: 1, 4: 1, 5: 1}
    assert [result.config["x"] for result in grid if result.error] == [1]
