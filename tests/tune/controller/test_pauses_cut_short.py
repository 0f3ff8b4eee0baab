"""Pauses that something cuts short: an end that was asked for, a lost process, a restore by other rules."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.tune.controller.harness import Play
from tests.tune.pausing import Counted, CutShort
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Failure
from trainkit.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule
from trainkit.tune.search import BasicVariantGenerator
from trainkit.tune.search.base import SearcherWrapper


def promotion(**arguments) -> ASHAScheduler:
    return ASHAScheduler(**{"max_t": 9, "reduction_factor": 3, "type": "promotion", **arguments})


def play(**arguments) -> Play:
    return Play(**{"num_samples": 3, "cpus": 1, "metric": "m", "mode": "max", **arguments})


def test_who_was_told_to_stop_is_not_paused_by_its_next_report():
    game = play(scheduler=promotion(), started=1)
    game.order("stop", trial=game.trial(0).trial_id)
    game.reported(0, {"m": 9.0})
    game.finished(0, checkpoint="checkpoint_000000")
    assert (game.trial(0).status, game.trial(0).reason) == ("TERMINATED", "stopped by ann")


def out_of_memory(game: Play, index: int) -> None:
    game.started(index)
    game.send(ev.Failed(*game._who(index), Failure("MemoryError", "", out_of_memory=True)))


def alone(**arguments) -> Play:
    """Trial 0 is to run alone."""
    policy = tune.FailureConfig(out_of_memory="retry_alone")
    game = play(scheduler=promotion(), failure=policy, **arguments)
    out_of_memory(game, 0)
    return game


def test_a_trial_that_runs_alone_is_promoted_as_any():
    game = alone()
    game.pauses(1, {"m": 1.0})
    game.pauses(2, {"m": 2.0})
    assert game.calls == {"test_00000": "setup"}
    game.started(0)
    game.reported(0, {"m": 9.0})
    assert game.calls == {"test_00000": "advance"}


def test_a_pause_of_one_that_runs_alone_ends_and_it_runs_once_nothing_else_does():
    game = alone(num_samples=-1, cpus=2)
    game.pauses(1, {"m": 1.0})
    assert game.calls == {"test_00000": "setup"}, "without end of trials it is its turn as soon as may be"
    game.pauses(0, {"m": 9.0})
    assert game.statuses() == ["PAUSED", "PAUSED", "PENDING", "PENDING"]
    game.started(3)
    game.pauses(2, {"m": 2.0})
    assert (game.trial(0).status, game.trial(0).reason[:15]) == ("PENDING", "resumed by ASHA")
    assert game.calls == {"test_00003": "advance"}
    game.reported(3, {"m": 0.0})
    game.finished(3, checkpoint="checkpoint_000000")
    assert game.calls == {"test_00000": "setup"}
    game.started(0)
    game.reported(0, {"m": 9.0})
    assert game.calls == {"test_00000": "advance"}


def lost_as_it_saved(max_failures: int) -> Play:
    game = play(scheduler=promotion(), failure=tune.FailureConfig(max_failures=max_failures), started=1)
    game.reported(0, {"m": 1.0})
    game.finished(0, checkpoint=None, problem="f_00000 (pid 12) was killed by SIGKILL")
    return game


def test_a_kill_while_a_pause_saves_is_a_failure_like_any_other():
    failure = lost_as_it_saved(max_failures=0).trial(0).failure
    assert (failure.kind, failure.message) == (
        "CheckpointError",
        "ASHA paused the trial, which left no checkpoint to resume from: "
        "f_00000 (pid 12) was killed by SIGKILL",
    )
    game = lost_as_it_saved(max_failures=1)
    assert game.statuses()[0] == "PENDING"
    game.pauses(0, {"m": 1.0})
    assert game.statuses()[0] == "PAUSED"


class Counting(Counted):
    def reports(self, number):
        return {"m": self.config["x"] * number, "done": number == 20}


class Heard(SearcherWrapper):
    """Notes which of its trials are paused."""

    def __init__(self, searcher):
        super().__init__(searcher)
        self.resting = set()

    def on_pause(self, trial_id):
        self.resting.add(trial_id)

    def on_unpause(self, trial_id):
        self.resting.remove(trial_id)


def cut_short(fit, after: int, **settings) -> None:
    settings = {"metric": "m", "mode": "max", "seed": 1, "num_samples": 12, **settings}
    with pytest.raises(KeyboardInterrupt):
        fit(Counting, {"x": tune.uniform(0, 1)}, run={"callbacks": [CutShort(after)]}, **settings)


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        (promotion(grace_period=3), {3, 9}),
        (HyperBandScheduler(max_t=27, narrow_first=True), {3, 9, 20}),
        (MedianStoppingRule("training_iteration", grace_period=30), {20}),
    ],
)
def test_a_restore_with_another_scheduler_forgets_no_paused_trial(inline, fit, restore, other, ends):
    """What it has not paused itself it would never choose."""
    cut_short(fit, 25, scheduler=promotion(), max_concurrent_trials=2)
    grid = restore(Counting, scheduler=other, run={"callbacks": [CutShort(0)]})
    assert grid.num_terminated == 12
    assert {result.metrics["training_iteration"] for result in grid} <= ends


def test_a_scheduler_of_later_ends_what_it_would_have_stopped(inline, fit, restore):
    cut_short(fit, 40, scheduler=promotion(), max_concurrent_trials=1)
    grid = restore(Counting, scheduler=HyperBandScheduler(max_t=9), run={"callbacks": [CutShort(0)]})
    reasons = Counter(result.reason[:33] for result in grid if result.metrics["training_iteration"] == 1)
    assert reasons["stopped by HyperBand: rung 1 of b"] == reasons.total() > 0


def test_a_searcher_hears_that_a_paused_trial_begins_anew(inline, fit, restore):
    cut_short(fit, 12, scheduler=promotion(), search_alg=Heard(BasicVariantGenerator()))
    heard = Heard(BasicVariantGenerator())
    anew = tune.ResumeConfig(unfinished=tune.ResumeConfig.ResumeType.RESTART)
    with pytest.raises(KeyboardInterrupt):
        restore(Counting, resume_config=anew, search_alg=heard, run={"callbacks": [CutShort(2)]})
    assert not heard.resting


def test_a_report_that_pauses_a_trial_is_not_its_last():
    game = play(scheduler=promotion())
    game.pauses(0, {"m": 1.0})
    assert game.recorded(ev.ResultAdded)[0].result["done"] is False
