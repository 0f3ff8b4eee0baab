"""Options of the median stopping rule: its pool, what is compared, pauses; and runs by the controller."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugins.median.test_median import CONTINUE, PAUSE, STOP, report, rule, with_others
from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import Decision, MedianStoppingRule


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
