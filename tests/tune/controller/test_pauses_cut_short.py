"""Pauses that something cuts short: an end that was asked for, a lost process, a restore by other rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tune.controller.harness import Play
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
    game = play(scheduler=promotion())
    game.started(0)
    game.order("stop", trial=game.trial(0).trial_id)
    game.reported(0, {"m": 9.0})
    game.finished(0, checkpoint="checkpoint_000000")
    assert (game.trial(0).status, game.trial(0).reason) == ("TERMINATED", "stopped by ann")


def out_of_memory(game: Play, index: int) -> None:
    game.started(index)
    game.send(ev.Failed(*game._who(index), Failure("MemoryError", "", out_of_memory=True)))


def pauses(game: Play, index: int, value: float) -> None:
    game.started(index)
    game.reported(index, {"m": value})
    game.finished(index, checkpoint="checkpoint_000000")


def alone(**arguments) -> Play:
    """Trial 0 is to run alone."""
    policy = tune.FailureConfig(out_of_memory="retry_alone")
    game = play(scheduler=promotion(), failure=policy, **arguments)
    out_of_memory(game, 0)
    return game


def test_a_trial_that_runs_alone_is_promoted_as_any():
    game = alone()
    pauses(game, 1, 1.0)
    pauses(game, 2, 2.0)
    assert game.calls == {"test_00000": "setup"}
    game.started(0)
    game.reported(0, {"m": 9.0})
    assert game.calls == {"test_00000": "advance"}


def test_a_pause_of_one_that_runs_alone_ends_and_it_runs_once_nothing_else_does():
    game = alone(num_samples=-1, cpus=2)
    pauses(game, 1, 1.0)
    assert game.calls == {"test_00000": "setup"}, "without end of trials it is its turn as soon as may be"
    pauses(game, 0, 9.0)
    assert game.statuses() == ["PAUSED", "PAUSED", "PENDING", "PENDING"]
    game.started(3)
    pauses(game, 2, 2.0)
    assert (game.trial(0).status, game.trial(0).reason[:15]) == ("PENDING", "resumed by ASHA")
    assert game.calls == {"test_00003": "advance"}
    game.reported(3, {"m": 0.0})
    game.finished(3, checkpoint="checkpoint_000000")
    assert game.calls == {"test_00000": "setup"}
    game.started(0)
    game.reported(0, {"m": 9.0})
    assert game.calls == {"test_00000": "advance"}


def lost_as_it_saved(max_failures: int) -> Play:
    game = play(scheduler=promotion(), failure=tune.FailureConfig(max_failures=max_failures))
    game.started(0)
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
    pauses(game, 0, 1.0)
    assert game.statuses()[0] == "PAUSED"


class Counting(tune.Trainable):
    def setup(self, config):
        self.x, self.number = config["x"], 0

    def step(self):
        self.number += 1
        return {"m": self.x * self.number, "done": self.number == 20}

    def save_checkpoint(self, path):
        Path(path, "number").write_text(str(self.number))

    def load_checkpoint(self, path):
        self.number = int(Path(path, "number").read_text())


class CutShort(tune.Callback):
    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0

    def on_step_end(self, iteration, trials, **info):
        self.seen += 1
        if self.seen == self.after:
            raise KeyboardInterrupt


class Heard(SearcherWrapper):
    """Notes which of its trials are paused."""

    def __init__(self, searcher):
        super().__init__(searcher)
        self.resting = set()

    def on_pause(self, trial_id):
        self.resting.add(trial_id)

    def on_unpause(self, trial_id):
        self.resting.remove(trial_id)


def cut_short(folder: Path, after: int, **settings) -> None:
    config = tune.TuneConfig(metric="m", mode="max", seed=1, num_samples=12, **settings)
    run = tune.RunConfig(name="e", storage_path=folder, verbose=0, callbacks=[CutShort(after)])
    with pytest.raises(KeyboardInterrupt):
        tune.Tuner(Counting, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=run).fit()


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        (promotion(grace_period=3), {3, 9}),
        (HyperBandScheduler(max_t=27, narrow_first=True), {3, 9, 20}),
        (MedianStoppingRule("training_iteration", grace_period=30), {20}),
    ],
)
def test_a_restore_with_another_scheduler_forgets_no_paused_trial(inline, tmp_path, other, ends):
    """What it has not paused itself it would never choose."""
    cut_short(tmp_path, 25, scheduler=promotion(), max_concurrent_trials=2)
    config, run = tune.TuneConfig(scheduler=other), tune.RunConfig(callbacks=[CutShort(0)])
    grid = tune.Tuner.restore(tmp_path / "e", Counting, tune_config=config, run_config=run).fit()
    assert grid.num_terminated == 12
    assert {result.metrics["training_iteration"] for result in grid} <= ends


def test_a_scheduler_of_later_ends_what_it_would_have_stopped(inline, tmp_path):
    cut_short(tmp_path, 40, scheduler=promotion(), max_concurrent_trials=1)
    config, run = (
        tune.TuneConfig(scheduler=HyperBandScheduler(max_t=9)),
        tune.RunConfig(callbacks=[CutShort(0)]),
    )
    grid = tune.Tuner.restore(tmp_path / "e", Counting, tune_config=config, run_config=run).fit()
    reasons = Counter(result.reason[:33] for result in grid if result.metrics["training_iteration"] == 1)
    assert reasons["stopped by HyperBand: rung 1 of b"] == reasons.total() > 0


def test_a_searcher_hears_that_a_paused_trial_begins_anew(inline, tmp_path):
    cut_short(tmp_path, 12, scheduler=promotion(), search_alg=Heard(BasicVariantGenerator()))
    heard = Heard(BasicVariantGenerator())
    again = tune.Tuner.restore(
        tmp_path / "e",
        Counting,
        resume_config=tune.ResumeConfig(unfinished=tune.ResumeConfig.ResumeType.RESTART),
        tune_config=tune.TuneConfig(search_alg=heard),
        run_config=tune.RunConfig(callbacks=[CutShort(2)]),
    )
    with pytest.raises(KeyboardInterrupt):
        again.fit()
    assert not heard.resting


def test_a_report_that_pauses_a_trial_is_not_its_last():
    game = play(scheduler=promotion())
    pauses(game, 0, 1.0)
    assert game.recorded(ev.ResultAdded)[0].result["done"] is False
