"""The median stopping rule: its worked example, its laws, its options, and runs by the controller."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.tune.controller import events as ev
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


def test_an_early_best_counts_and_an_early_average_does_not():
    scheduler = rule(trials="ABCE", grace_period=3)
    for trial_id in "ABC":
        for t, value in enumerate((100, 100, 5, 5), 1):
            report(scheduler, trial_id, t, value)
    assert report(scheduler, "E", 1, 6.0) == Decision(CONTINUE)
    for t in (2, 3):
        decision = report(scheduler, "E", t, 0.0)
    assert decision.reason == {"rule": "median", "time": 3.0, "best": 6.0, "median": 5.0, "others": 3}


def test_the_pool_may_be_of_completed_trials_alone():
    scheduler = with_others(pool="completed")
    assert report(scheduler, "E", 1, -9.0) == Decision(CONTINUE)  # none has completed
    for trial_id in "ABD":
        scheduler.on_trial_complete(trial_id)
    decision = report(scheduler, "F", 1, 1.9)
    assert (decision.verdict, decision.reason["median"]) == (STOP, 2.0)
    scheduler.on_trial_complete("F")  # which the rule has stopped: it doesn't count
    assert report(scheduler, "E", 2, 2.0).reason["others"] == 3


def test_losers_that_went_on_to_their_end_have_completed():
    scheduler = with_others(pool="completed", hard_stop=False)
    for trial_id in "ABD":
        scheduler.on_trial_complete(trial_id)
    assert report(scheduler, "F", 1, 1.9).verdict == PAUSE
    scheduler.on_trial_resume("F")
    report(scheduler, "F", 2, 1.9)
    scheduler.on_trial_complete("F")
    assert report(scheduler, "E", 2, 2.0).reason["others"] == 4


def test_completed_trials_that_failed_do_not_count():
    scheduler = with_others(pool="completed", min_samples_required=1)
    scheduler.on_trial_error("A")
    scheduler.on_trial_complete("B")
    assert report(scheduler, "E", 1, 1.9).reason["others"] == 1


def test_optunas_median_pruner_decides_the_same():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    scheduler = rule(pool="completed", compare="value", grace_period=2)
    generator = scheduler_generator(5)
    compared = 0
    for number in range(40):
        trial = study.ask()
        scheduler.on_trial_add(str(number))
        for t in range(1, 7):
            value = float(generator.normal()) + t / 4
            trial.report(value, t)
            # Optuna's steps count from 0 and warm up while step < n_warmup_steps.
            stops = t >= 2 and trial.should_prune()
            assert (report(scheduler, str(number), t, value).verdict is STOP) == stops
            compared += stops
            if stops:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, value)
        scheduler.on_trial_complete(str(number))
    assert compared > 5


def test_losers_may_be_paused_and_run_last():
    scheduler = with_others(hard_stop=False)
    assert report(scheduler, "E", 1, 1.9).verdict is PAUSE
    assert report(scheduler, "F", 1, 1.0).verdict is PAUSE
    paused = ["E", "F"]
    assert scheduler.choose_trial_to_run(["A"], paused) == "A"
    assert scheduler.choose_trial_to_run([], paused, new=True) is None
    assert scheduler.choose_trial_to_run([], paused) == "E"
    assert scheduler.choose_trial_to_run([], ["F"]) == "F"  # E is still saving
    assert scheduler.on_trial_resume("E") == {"rule": "losers last"}
    assert report(scheduler, "E", 2, -9.0) == Decision(CONTINUE)  # judged once
    assert scheduler.choose_trial_to_run([], ["F"]) == "F"
    scheduler.on_trial_complete("F")
    assert scheduler.choose_trial_to_run([], ["F"]) is None


def test_a_trial_makes_way_after_its_time_slice_while_there_are_too_few_to_judge_by():
    scheduler = rule(trials="ABCD", min_time_slice=2, grace_period=1, hard_stop=False)
    assert report(scheduler, "A", 1, 1.0) == Decision(CONTINUE)
    first = report(scheduler, "A", 2, 1.0)
    assert first == Decision(PAUSE, {"rule": "time slice", "time": 2.0, "others": 0, "needed": 3})
    report(scheduler, "B", 1, 1.0)
    assert report(scheduler, "B", 2.5, 1.0).verdict is PAUSE
    # In the order in which they made way; what was never run goes first.
    assert scheduler.choose_trial_to_run([], ["B", "A"], new=True) is None
    assert scheduler.choose_trial_to_run([], ["B", "A"]) == "A"
    assert scheduler.on_trial_resume("A") == {"rule": "time slice"}
    assert report(scheduler, "A", 3, 1.0).verdict is CONTINUE  # its next slice is not over
    assert report(scheduler, "A", 4, 1.0).verdict is PAUSE
    for trial_id in "CD":
        report(scheduler, trial_id, 1.5, 1.0)
    assert report(scheduler, "D", 2, -9.0).verdict is PAUSE
    assert scheduler.choose_trial_to_run([], ["A", "B", "D"]) == "B"


def test_losers_go_after_those_that_made_way():
    scheduler = with_others(hard_stop=False, min_time_slice=4)
    assert report(scheduler, "E", 1, 1.0).verdict is PAUSE
    assert report(scheduler, "A", 4, 1.0).reason["rule"] == "time slice"
    assert scheduler.choose_trial_to_run([], ["A", "E"]) == "A"
    scheduler.on_trial_resume("A")
    assert scheduler.choose_trial_to_run([], ["E"]) == "E"


# --- through the controller -----------------------------------------------------------------------


def play(**arguments: Any) -> Play:
    scheduler = MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=2, **arguments)
    return Play(scheduler=scheduler, num_samples=4, cpus=1, metric="m", mode="max")


def test_a_stopped_trial_says_why():
    game = play()
    for index, value in enumerate((3.0, 4.0)):
        game.ends(index, {"m": value})
    game.started(2)
    game.reported(2, {"m": 3.25})
    game.finished(2)
    assert game.trial(2).reason == "stopped by the median rule: best 3.25 at 1, median 3.5 of 2 other trials"


def test_losers_wait_for_the_others_and_end_too():
    game = play(hard_stop=False)
    for index, value in enumerate((3.0, 4.0)):
        game.ends(index, {"m": value})
    game.pauses(2, {"m": 1.0})
    assert game.statuses() == ["TERMINATED", "TERMINATED", "PAUSED", "PENDING"]
    game.ends(3, {"m": 5.0})
    game.ends(2, {"m": 1.0})  # nobody else wants the place
    assert game.controller.done
    assert game.statuses() == ["TERMINATED"] * 4


def test_a_loser_that_nobody_waits_behind_keeps_its_process():
    game = play(hard_stop=False)
    for index, value in enumerate((3.0, 4.0, 5.0)):
        game.ends(index, {"m": value})
    game.started(3)
    (advance,) = game.reported(3, {"m": 1.0})
    assert isinstance(advance, ev.Advance)


def train(config):
    for i in range(6):
        tune.report({"score": config["x"] * (i + 1)})


def test_an_experiment_stops_the_worse_half(inline, fit):
    results = fit(
        train,
        {"x": tune.grid_search([4, 3, 5, 1, 6, 2])},
        metric="score",
        mode="max",
        scheduler=MedianStoppingRule("training_iteration", grace_period=2, min_samples_required=2),
        max_concurrent_trials=1,
    )
    ran = {result.config["x"]: result.metrics["training_iteration"] for result in results}
    assert ran == {4: 6, 3: 6, 5: 6, 1: 2, 6: 6, 2: 2}
