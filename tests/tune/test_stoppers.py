"""Stoppers: the rules by themselves, and what they end in an experiment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.tune.controller.harness import Play, kinds
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.store.reader import ExperimentReader


def answers(stopper: tune.Stopper, values: list[float], trial_id: str = "a") -> list[bool]:
    return [
        stopper(trial_id, {"loss": value, "training_iteration": count})
        for count, value in enumerate(values, start=1)
    ]


def test_a_timeout_is_of_the_time_that_it_is_told():
    for stopper in (tune.TimeoutStopper(90), tune.TimeoutStopper(timedelta(minutes=1.5))):
        stopper.on_time(89.9)
        assert not stopper("a", {}) and not stopper.stop_all()
        stopper.on_time(90.0)
        assert not stopper("a", {}) and stopper.stop_all()
        assert stopper.deadline_s == 90


def test_each_of_several_sees_every_report():
    seen: list[str] = []
    combined = tune.CombinedStopper(
        tune.FunctionStopper(lambda trial_id, result: bool(seen.append("a")) or len(seen) > 3),
        tune.FunctionStopper(lambda trial_id, result: bool(seen.append("b"))),
        tune.TimeoutStopper(5),
    )
    assert answers(combined, [1, 1]) == [False, False]
    assert seen == ["a", "b"] * 2
    assert answers(combined, [1]) == [True]
    assert seen == ["a", "b"] * 3
    assert combined.reason()["stopper"] == "FunctionStopper"
    combined.on_time(6)
    assert combined.stop_all()
    assert combined.reason() == {"stopper": "TimeoutStopper", "timeout": 5}
    assert combined.deadline_s == 5


def test_a_class_that_only_looks_like_a_stopper_is_refused():
    class Own:
        def __call__(self, trial_id, result):
            return False

        def stop_all(self):
            return True

    with pytest.raises(ConfigError, match=r"extends tune\.Stopper"):
        tune.RunConfig(stop=Own())


# --- in an experiment -----------------------------------------------------------------------------


def test_a_list_takes_all_forms_and_the_reason_names_who_it_was():
    rules = [{"acc": 0.9}, lambda trial_id, result: False, tune.MaximumIterationStopper(2)]
    play = Play(num_samples=1, stop=rules, started=1)
    play.reported(0, {"acc": 0.1})
    play.reported(0, {"acc": 0.2})
    play.finished(0)
    words = "stopped by MaximumIterationStopper: training_iteration 2, max_iter 2"
    assert play.trial(0).reason == words
    assert play.recorded(ev.DecisionMade)[-1].decision.reason == {
        "stop": words,
        "stopper": "MaximumIterationStopper",
        "training_iteration": 2,
        "max_iter": 2,
    }


def test_stop_all_ends_the_experiment_at_that_very_report():
    play = Play(num_samples=9, cpus=2, stop=tune.ExperimentPlateauStopper("loss", top=2), started=2)
    play.reported(0, {"loss": 1.0})
    assert kinds(play.reported(1, {"loss": 1.0})) == ["Stop"]
    assert kinds(play.reported(0, {"loss": 1.0})) == ["Stop"]
    play.finished(0)
    play.finished(1)
    assert play.controller.done
    assert len(play.controller.trials) == 2
    assert "ExperimentPlateauStopper" in play.controller.ending
    assert set(play.statuses()) == {"TERMINATED"}


def test_a_timeout_ends_trials_that_do_not_report():
    play = Play(num_samples=9, cpus=1, stop=tune.TimeoutStopper(10), started=1)
    assert play.controller.deadline == pytest.approx(10)
    play.tick(10)
    assert play.controller.ending == "stopped by TimeoutStopper: timeout 10"
    play.tick(play.plan.grace_s)
    assert play.controller.done
    assert "killed" in play.trial(0).reason


def test_a_stopper_that_raises_ends_the_experiment_in_order():
    class Broken(tune.Stopper):
        def __call__(self, trial_id, result):
            return False

        def stop_all(self):
            raise ZeroDivisionError("no luck")

    play = Play(num_samples=3, stop=Broken())
    assert play.controller.done
    with pytest.raises(ZeroDivisionError):
        play.controller.raise_error()


@pytest.mark.usefixtures("inline")
def test_the_users_stopper_stays_as_it_was_and_every_fit_starts_afresh(fit):
    stopper = tune.ExperimentPlateauStopper("loss", top=3)
    for name in ("a", "b"):
        grid = fit(
            lambda config: {"loss": 1.0},
            num_samples=8,
            max_concurrent_trials=1,
            run={"name": name, "stop": stopper},
        )
        assert len(grid) == 3
    assert stopper._best == []


@pytest.mark.usefixtures("inline")
def test_a_restore_tells_stoppers_the_reports_of_before(fit, restore):
    rules = [{"loss": 99}, tune.ExperimentPlateauStopper("loss", top=8)]
    fit(lambda config: {"loss": 1.0}, {"x": 1}, num_samples=5, max_concurrent_trials=1, run={"stop": rules})
    grid = restore(lambda config: {"loss": 1.0}, num_samples=20)
    assert len(grid) == 8, "made again from the file, and told of the five"
    assert grid[7].reason.startswith("stopped by ExperimentPlateauStopper: metric loss, std 0")


@pytest.mark.usefixtures("inline")
def test_a_timeout_counts_over_restores_but_not_between(fit, restore, tmp_path):
    import time

    def trainable(config):
        time.sleep(0.02)
        return {"loss": 1.0}

    timeout = {"stop": tune.TimeoutStopper(3600)}
    fit(trainable, num_samples=5, run=timeout)
    with ExperimentReader(tmp_path / "e") as reader:
        first = reader.spent_s()
    assert 0.1 <= first < 60
    time.sleep(0.2)
    restore(trainable, num_samples=6)
    with ExperimentReader(tmp_path / "e") as reader:
        assert first + 0.02 <= reader.spent_s()
    grid = restore(trainable, num_samples=9, run={"stop": tune.TimeoutStopper(first / 2)})
    assert len(grid) == 6, "its time was over before it began"


@pytest.mark.usefixtures("inline")
def test_what_the_file_cannot_hold_is_to_be_given_again(fit, tmp_path):
    fit(lambda config: 1.0, run={"stop": [{"a": 1}, tune.FunctionStopper(lambda trial_id, result: True)]})
    with pytest.raises(ConfigError, match="a stopper of your own"):
        tune.Tuner.restore(tmp_path / "e", lambda config: 1.0)
