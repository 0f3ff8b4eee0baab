"""The experiment as a state machine, played by hand and by chance."""

from __future__ import annotations

import math

import pytest

from tests.tune.controller.harness import Play, kinds
from trainkit.errors import NodeDiedError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.configs import CheckpointConfig, FailureConfig
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Failure
from trainkit.tune.schedulers import ASHAScheduler, Verdict


def test_as_many_trials_start_as_fit_and_the_next_when_one_ends():
    play = Play(num_samples=3, cpus=2)
    assert kinds(play.begun) == ["Start", "Start"]
    assert kinds(play.started(0)) == ["Advance"]
    assert kinds(play.reported(0, {"loss": 1.0})) == ["Advance"]
    assert kinds(play.finished(0)) == ["Release", "Start"]
    assert play.statuses() == ["TERMINATED", "PENDING", "PENDING"]
    for index in (1, 2):
        play.ends(index, {"loss": 1.0})
    assert play.statuses() == ["TERMINATED"] * 3
    assert play.controller.done


def test_a_trial_that_does_not_fit_now_keeps_its_place():
    sizes = iter([1, 2, 1, 1])
    play = Play(
        num_samples=4, cpus=2, request_of=lambda config: PlacementGroupFactory([{"CPU": next(sizes)}])
    )
    assert kinds(play.begun) == ["Start"]  # the second needs both CPUs: the third must not overtake it
    play.started(0)
    actions = play.reported(0, {"loss": 1}, done=True)
    assert [action.trial.index for action in actions if isinstance(action, ev.Start)] == [1]


def test_a_request_that_never_fits_fails_that_trial_alone():
    sizes = iter([1, 99, 1])
    play = Play(
        num_samples=3, cpus=2, request_of=lambda config: PlacementGroupFactory([{"CPU": next(sizes)}])
    )
    assert [action.trial.index for action in play.begun] == [0, 2]
    assert play.statuses()[1] == "ERROR"
    assert play.trial(1).failure.kind == "InfeasibleError"
    assert "99 CPU" in play.trial(1).failure.message


def test_a_report_is_recorded_before_its_trial_is_advanced():
    play = Play(num_samples=1, metric="loss", started=1)
    play.reported(0, {"loss": 0.5})
    (added,) = play.recorded(ev.ResultAdded)
    assert (added.iteration, added.metrics["loss"], added.result["trial_id"]) == (1, 0.5, "test_00000")
    assert added.result["config"] == play.trial(0).config
    assert added.result["done"] is False


@pytest.mark.parametrize(
    ("stop", "reports", "reason"),
    [
        ({"training_iteration": 2}, [{"a": 1}, {"a": 1}], "training_iteration=2 reached 2"),
        ({"eval/acc": 0.9}, [{"eval": {"acc": 0.5}}, {"eval": {"acc": 0.95}}], "eval/acc=0.95 reached 0.9"),
        (lambda trial_id, result: result["a"] > 1, [{"a": 1}, {"a": 2}], "function"),
    ],
)
def test_stop_rules_end_a_trial_at_that_very_report(stop, reports, reason):
    play = Play(num_samples=1, stop=stop, started=1)
    assert kinds(play.reported(0, reports[0])) == ["Advance"]
    assert kinds(play.reported(0, reports[1])) == ["Stop"]
    assert kinds(play.finished(0)) == ["Release"]
    assert play.trial(0).status == "TERMINATED"
    assert reason in play.trial(0).reason
    assert play.recorded(ev.DecisionMade)[-1].decision.verdict is Verdict.STOP


def test_a_stop_rule_on_a_value_that_is_not_reported_names_those_that_are():
    play = Play(num_samples=1, stop={"acuracy": 0.9}, started=1)
    assert kinds(play.reported(0, {"accuracy": 0.5, "loss": 1.0})) == ["Stop"]  # its clean-up runs
    play.finished(0)
    assert play.trial(0).status == "ERROR"
    message = play.trial(0).failure.message
    assert "'acuracy'" in message
    assert "accuracy, loss" in message
    assert "Did you mean 'accuracy'?" in message


@pytest.mark.parametrize("how", ["finished", "done"])
def test_a_trial_that_never_reports_the_metric_is_an_error_that_says_so(how):
    play = Play(num_samples=1, metric="accuracy", started=1)
    if how == "done":
        play.reported(0, {"val_accuracy": 1.0, "eval": {"loss": 2}}, done=True)
    else:
        play.reported(0, {"val_accuracy": 1.0, "eval": {"loss": 2}})
        play.finished(0)
    failure = play.trial(0).failure
    assert failure.kind == "MetricError"
    assert "'accuracy', which was not reported; reported names are eval/loss, val_accuracy" in failure.message
    assert "Did you mean 'val_accuracy'?" in failure.message


def test_a_metric_may_come_late_and_a_trial_may_report_nothing():
    play = Play(num_samples=2, metric="loss", started=1)
    play.reported(0, {"other": 1})
    play.reported(0, {"loss": 1}, done=True)
    play.started(1)
    play.finished(1)
    assert play.statuses() == ["TERMINATED", "TERMINATED"]


def test_a_failed_trial_is_run_again_from_its_last_checkpoint():
    play = Play(num_samples=1, failure=FailureConfig(max_failures=2), started=1)
    play.reported(0, {"a": 1}, "checkpoint_000000")
    play.reported(0, {"a": 1})
    actions = play.failed(0)
    assert kinds(actions) == ["Release", "Start"]
    start = actions[1]
    assert (start.attempt, start.iteration, start.checkpoint.dirname) == (1, 1, "checkpoint_000000")
    assert play.trial(0).reason == "retry 1 of 2 after ValueError"
    play.started(0)
    play.failed(0)
    play.started(0)
    assert kinds(play.failed(0)) == ["Release"]
    assert play.trial(0).status == "ERROR"
    assert play.trial(0).failures == 3
    assert play.controller.done


def test_what_would_fail_again_is_not_retried():
    play = Play(num_samples=1, failure=FailureConfig(max_failures=-1), started=1)
    play.failed(0, "MetricError", retry=False)
    assert play.trial(0).status == "ERROR"


def test_one_failure_leaves_the_others_alone_unless_asked():
    play = Play(num_samples=3, cpus=2, started=2)
    assert kinds(play.failed(0)) == ["Release", "Start"]
    fast = Play(num_samples=3, cpus=2, failure=FailureConfig(fail_fast=True), started=2)
    assert kinds(fast.failed(0)) == ["Release"]
    assert kinds(fast.reported(1, {"a": 1})) == ["Stop"]
    fast.finished(1)
    assert fast.controller.done
    assert fast.statuses() == ["ERROR", "TERMINATED"]
    assert fast.trial(1).reason == "fail fast"


def test_the_time_budget_ends_trials_at_their_next_report():
    play = Play(num_samples=-1, cpus=2, time_budget_s=10.0, grace_s=5.0, started=2)
    assert play.controller.deadline == 10.0
    play.tick(11)
    assert play.controller.ending == "time budget"
    assert kinds(play.reported(0, {"a": 1})) == ["Stop"]
    play.finished(0)
    assert not play.controller.done
    assert kinds(play.tick(5.0)) == ["Kill", "Release"]  # the one that never reported again
    assert play.controller.done
    assert play.statuses() == ["TERMINATED", "TERMINATED"]
    assert play.trial(0).reason == "time budget"
    assert "killed" in play.trial(1).reason


def test_a_trial_that_does_not_report_is_interrupted_in_the_middle_of_its_grace():
    play = Play(num_samples=2, cpus=2, grace_s=5.0, started=2)
    play.interrupt()
    assert play.controller.deadline == play.time + 2.5
    assert play.tick(2) == []
    play.reported(0, {"a": 1})
    assert play.tick(1) == [ev.Interrupt("test_00001")]
    assert play.tick(1) == []
    assert kinds(play.tick(1.5)) == ["Kill", "Release"]
    play.finished(0)
    assert play.statuses() == ["PENDING", "PENDING"]


def test_what_sigterm_has_ended_in_a_trial_is_no_failure_of_it():
    play = Play(num_samples=1, started=1)
    play.send(ev.Interrupted(play.time, True), ev.Failed(*play._who(0), Failure("OSError", "gone", "")))
    assert play.controller.done
    assert play.statuses() == ["PENDING"]


def test_an_interrupted_trial_is_pending_again_with_its_state_saved():
    play = Play(num_samples=3, cpus=2, started=2)
    play.reported(1, {"a": 1})
    play.interrupt()
    (stop,) = play.reported(0, {"a": 1})
    assert stop == ev.Stop("test_00000", save=True)
    play.finished(0, checkpoint="checkpoint_000000")
    play.tick(100)
    assert play.controller.done
    assert play.statuses() == ["PENDING", "PENDING"]
    assert [trial.attempt for trial in play.controller.trials] == [1, 1]
    assert play.trial(0).checkpoint.dirname == "checkpoint_000000"


def test_a_stop_decided_on_the_last_report_before_an_end_stays_decided():
    play = Play(
        num_samples=2, cpus=2, metric="loss", scheduler=ASHAScheduler(max_t=4, reduction_factor=2), started=2
    )
    play.reported(0, {"loss": 1.0})
    play.interrupt()
    assert kinds(play.reported(1, {"loss": 2.0})) == ["Stop"]
    play.finished(1)
    assert play.trial(1).status == "TERMINATED"
    assert "stopped by ASHA" in play.trial(1).reason
    assert play.reported(0, {"loss": 1.0}, done=True)
    assert play.trial(0).status == "TERMINATED"


def test_a_trial_that_hangs_in_its_cleanup_is_killed_in_time():
    play = Play(num_samples=1, stop={"training_iteration": 1}, cleanup_s=60.0, started=1)
    assert kinds(play.reported(0, {"a": 1})) == ["Stop"]
    assert play.controller.deadline == pytest.approx(60, abs=1)
    assert kinds(play.tick(61)) == ["Kill", "Release"]
    assert play.trial(0).status == "TERMINATED"
    assert play.trial(0).reason == "training_iteration=1 reached 1; killed, because it did not end in time"


def test_news_of_an_attempt_that_is_over_is_dropped():
    play = Play(num_samples=1, failure=FailureConfig(max_failures=1), started=1)
    old = play.report(0, {"a": 1})
    play.failed(0)
    before = len(play.records)
    assert play.controller.handle([old]).records == []
    assert len(play.records) == before


def test_only_the_best_checkpoints_stay_and_the_latest_while_it_runs():
    policy = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc")
    play = Play(num_samples=1, checkpoints=policy, started=1)
    deleted = []
    for number, acc in enumerate([0.9, 0.1, 0.8, 0.2, math.nan]):
        actions = play.reported(0, {"acc": acc}, f"checkpoint_{number:06d}")
        deleted += [action.checkpoint.number for action in actions if isinstance(action, ev.DeleteCheckpoint)]
        assert len(play.trial(0).checkpoints) <= 3
    actions = play.finished(0)
    deleted += [action.checkpoint.number for action in actions if isinstance(action, ev.DeleteCheckpoint)]
    assert [checkpoint.number for checkpoint in play.trial(0).checkpoints] == [0, 2]
    assert sorted(deleted) == [1, 3, 4]
    assert [record.checkpoint.number for record in play.recorded(ev.CheckpointDropped)] == deleted


def test_a_trial_that_waits_for_a_retry_as_the_experiment_ends_keeps_no_more_than_the_best():
    policy = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="acc")
    retried = FailureConfig(max_failures=1)
    play = Play(num_samples=1, checkpoints=policy, failure=retried, time_budget_s=10, started=1)
    for number, acc in enumerate([0.9, 0.1]):
        play.reported(0, {"acc": acc}, f"checkpoint_{number:06d}")
    play.time = 11
    play.failed(0)
    assert play.controller.done
    step = play.controller.close(play.time)
    assert play.statuses() == ["TERMINATED"]
    assert [action.checkpoint.number for action in step.actions] == [1]
    assert [checkpoint.number for checkpoint in play.trial(0).checkpoints] == [0]


# --- a lost session -------------------------------------------------------------------------------


def test_a_lost_session_is_no_trials_failure_and_draws_no_suggestion():
    play = Play(num_samples=4, cpus=2, failure=FailureConfig(max_failures=1), started=1)
    play.reported(0, {"loss": 1.0}, checkpoint="checkpoint_000000")
    actions = play.lost()
    assert kinds(actions) == ["Renew", "Start", "Start"]
    assert [(action.trial.index, action.iteration) for action in actions[1:]] == [(0, 1), (1, 0)]
    assert len(play.controller.trials) == 2
    assert [trial.failures for trial in play.controller.trials] == [0, 0]
    assert [trial.attempt for trial in play.controller.trials] == [1, 1]
    assert [record.detail for record in play.recorded(ev.Noted)][-1] == "the node died"


def test_what_was_decided_before_a_loss_stands():
    play = Play(
        num_samples=2, cpus=2, metric="loss", scheduler=ASHAScheduler(max_t=4, reduction_factor=2), started=2
    )
    play.reported(0, {"loss": 1.0})
    assert kinds(play.reported(1, {"loss": 2.0})) == ["Stop"]
    assert kinds(play.lost()) == ["Renew", "Start"]
    assert play.trial(1).status == "TERMINATED"
    assert play.trial(1).reason == "stopped by ASHA: rung 1, rank 2 of 2, 1 continues, cutoff 1"


def test_what_was_reported_in_the_same_batch_counts_and_no_process_is_told_more():
    play = Play(num_samples=1, started=1)
    report = play.report(0, {"loss": 1.0}, "checkpoint_000000")
    play.calls.clear()
    actions = play.send(report, ev.SessionLost(play.time, "the node died"))
    assert kinds(actions) == ["Renew", "Start"]
    assert actions[1].iteration == 1


def test_a_trial_whose_machine_is_lost_runs_again_and_fails_only_without_progress():
    play = Play(num_samples=1)

    def lose() -> list[str]:
        return kinds(play.send(ev.Failed(*play._who(0), Failure("ActorDiedError", "", ""), preempted=True)))

    for number in range(5):
        play.started(0)
        play.reported(0, {"loss": 1.0}, checkpoint=f"checkpoint_{number:06}")
        assert lose() == ["Release", "Start"]
        assert play.trial(0).checkpoint.iteration == number + 1
    for _ in range(2):
        assert lose() == ["Release", "Start"]
        assert play.trial(0).failures == 0
    assert "Start" not in lose()
    assert play.statuses() == ["ERROR"]


def test_a_session_that_is_lost_again_and_again_ends_the_experiment_unless_trials_get_further():
    play = Play(num_samples=1)
    for _ in range(10):
        play.started(0)
        play.reported(0, {"loss": 1.0}, checkpoint=f"checkpoint_{play.trial(0).next_checkpoint:06}")
        assert kinds(play.lost()) == ["Renew", "Start"]
    for _ in range(2):
        assert kinds(play.lost()) == ["Renew", "Start"]
    assert kinds(play.lost()) == []
    assert play.controller.done
    assert play.statuses() == ["PENDING"]
    with pytest.raises(NodeDiedError, match="the node died, for the 4th time in a row"):
        play.controller.raise_error()


def test_a_session_that_somebody_ended_ends_the_experiment_as_a_wish_to_stop_does():
    play = Play(num_samples=2, cpus=1, started=1)
    assert kinds(play.lost(by="root@vm (pid 1)")) == []
    assert play.controller.ending == "stopped by root@vm (pid 1)"
    assert play.statuses() == ["PENDING"]
    assert play.trial(0).failures == 0
