"""ASHA's published form: laws for every order of events, and one trial that is to train to the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.pausing import Counted, CutShort
from trainkit import tune
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import ASHAScheduler, Decision, Verdict
from trainkit.tune.schedulers.base import words_for

LEVELS = (1, 2, 4, 8)
scores = st.integers(-4, 4) | st.sampled_from([math.nan, math.inf, -math.inf])
tables = st.lists(st.tuples(scores, scores, scores, scores), min_size=1, max_size=30)
"""What each trial reports at each of the levels."""
orders = st.lists(st.integers(0, 1000), max_size=150)
"""Which of the jobs that run ends next."""


def asha(mode: str = "max", seed: int = 0, **arguments) -> ASHAScheduler:
    scheduler = ASHAScheduler(metric="m", mode=mode, type="promotion", **arguments)
    scheduler.set_search_properties("m", mode, scheduler_generator(seed))
    return scheduler


@dataclass
class PromotedTrials:
    """Trials that run one job after another, from a rung to the next, as free workers take them.

    Attributes:
        value: of a trial at a time.
        most: how many trials there may be.
        jobs: (trial, time it is to reach), in the order they began.
    """

    scheduler: ASHAScheduler
    value: Callable[[int, float], float]
    levels: tuple[int, ...]
    most: int
    jobs: list[tuple[int, int]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    paused: dict[str, int] = field(default_factory=dict)  # at which of the levels
    begun: int = 0

    def take(self) -> bool:
        """A free worker looks for a job; False: there is none."""
        new = self.begun < self.most
        chosen = self.scheduler.choose_trial_to_run([], list(self.paused), new=new)
        if chosen is not None:
            at = self.paused.pop(chosen)
            self.decisions.append(Decision(Verdict.RESUME, self.scheduler.on_trial_resume(chosen)))
            self.jobs.append((int(chosen), self.levels[at + 1]))
        elif self.begun < self.most:
            self.scheduler.on_trial_add(str(self.begun))
            self.jobs.append((self.begun, self.levels[0]))
            self.begun += 1
        else:
            return False
        self.running.append(len(self.jobs) - 1)
        return True

    def finish(self, which: int, *, fails: bool = False) -> Decision | None:
        """One of the jobs that run ends."""
        number, time = self.jobs[self.running.pop(which)]
        if fails:
            self.scheduler.on_trial_error(str(number))
            return None
        result = {"training_iteration": time, "m": self.value(number, time)}
        decision = self.scheduler.on_result(str(number), result)
        self.decisions.append(decision)
        if decision.verdict is Verdict.PAUSE:
            self.paused[str(number)] = self.levels.index(time)
        else:
            self.scheduler.on_trial_complete(str(number))
        return decision

    def run(
        self, workers: int = 1, order: Iterable[int] = (), fails: Callable[[], bool] = lambda: False
    ) -> None:
        """Until no job is left; `order` says which of those that run ends next, `fails` whether it fails."""
        order = iter(order)
        while True:
            while len(self.running) < workers and self.take():
                pass
            if not self.running:
                return
            self.finish(next(order, 0) % len(self.running), fails=fails())


def shop_of(table, **arguments) -> PromotedTrials:
    scheduler = asha(max_t=8, reduction_factor=2, **arguments)
    return PromotedTrials(scheduler, lambda n, t: table[n][LEVELS.index(int(t))], LEVELS, len(table))


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
