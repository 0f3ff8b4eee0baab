"""Trials whose nodes are about to end: they move to another node without a loss, or run on."""

from __future__ import annotations

from tests.tune.controller.harness import Play, kinds, outcome
from trainkit.tune.controller import events as ev


def warn(play: Play, index: int) -> list[ev.Action]:
    """Let the controller know that the trial's node is about to end."""
    trial = play.trial(index)
    play.time += 0.001
    return play._take(play.controller.handle([ev.NodeEnding(trial.trial_id, trial.attempt, play.time)]))


def test_a_trial_that_can_save_moves_at_its_next_report() -> None:
    play = Play(num_samples=1, saves=True, started=1)
    play.reported(0, {"m": 1})
    assert warn(play, 0) == warn(play, 0) == []
    assert play.reported(0, {"m": 2}) == [ev.Stop(play.trial(0).trial_id, True)]
    assert warn(play, 0) == []
    actions = play.finished(0, "checkpoint_000000")
    assert kinds(actions) == ["Release", "Start"]
    assert actions[-1].iteration == 2  # type: ignore[union-attr]
    play.started(0)
    play.reported(0, {"m": 3}, done=True)
    assert play.statuses() == ["TERMINATED"]
    assert (play.trial(0).attempt, play.trial(0).failures) == (1, 0)
    assert play.controller.done


def test_a_trial_that_can_not_save_runs_on_until_a_report_with_a_checkpoint() -> None:
    play = Play(num_samples=1, started=1)
    warn(play, 0)
    assert kinds(play.reported(0, {"m": 1})) == ["Advance"]
    assert kinds(play.reported(0, {"m": 2}, "checkpoint_000000")) == ["Stop"]
    assert kinds(play.finished(0)) == ["Release", "Start"]
    play.started(0)
    assert kinds(play.reported(0, {"m": 3})) == ["Advance"], "the warning was for the former process"


def test_a_trial_that_has_not_begun_moves_at_once() -> None:
    play = Play(num_samples=1)
    warn(play, 0)
    assert kinds(play.started(0)) == ["Stop"]
    assert kinds(play.finished(0)) == ["Release", "Start"]


def test_a_move_gives_way_to_a_stop_and_to_the_end_of_the_process() -> None:
    play = Play(num_samples=2, saves=True, started=2)
    for index in (0, 1):
        warn(play, index)
        play.reported(index, {"m": 1})
    play.order("stop", trial=play.trial(0).trial_id)
    assert outcome(play)
    assert kinds(play.finished(0)) == ["Release"]
    assert play.statuses()[0] == "TERMINATED"
    assert kinds(play.finished(1, problem="the node died")) == ["Release", "Start"]
    assert play.trial(1).failures == 0


def test_a_paused_trial_that_moves_waits_for_the_command_to_resume() -> None:
    play = Play(num_samples=1, saves=True, started=1)
    warn(play, 0)
    play.reported(0, {"m": 1})
    play.order("pause", trial=play.trial(0).trial_id)
    assert kinds(play.finished(0, "checkpoint_000000")) == ["Release"]
    assert kinds(play.order("resume", trial=play.trial(0).trial_id)) == ["Start"]
