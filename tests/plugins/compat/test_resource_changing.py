"""Trials that are given more or less of the machine as they run: who gets what, and how they go on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tune.controller.harness import Play
from tests.tune.pausing import CutShort
from tests.tune.schedulers.pbt.test_pbt_runs import Toy, pbt
from tests.tune.schedulers.test_resource_allocation import seen
from trainkit import tune
from trainkit.errors import ConfigError, InfeasibleError
from trainkit.plugins.compat.resource_changing import (
    DistributeResources,
    DistributeResourcesToTopJob,
    evenly_distribute_cpus_gpus,
)
from trainkit.tune.controller import events as ev
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    ResourceChangingScheduler,
    TrialScheduler,
    described_scheduler,
)
from trainkit.tune.store.reader import ExperimentReader


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DistributeResources(increase_by={"CPU": 0}), "needs resources"),
        (lambda: DistributeResources(increase_by={"CPU": -1}), "negative"),
        (lambda: DistributeResources(increase_by_times=1.5), "increase_by_times=1.5"),
        (lambda: DistributeResourcesToTopJob(mode="up"), "mode='up'"),
        (lambda: ResourceChangingScheduler("asha"), "base_scheduler='asha': give a scheduler"),
        (lambda: ResourceChangingScheduler(ResourceChangingScheduler()), "base_scheduler="),
        (lambda: ResourceChangingScheduler(None, 3), "resources_allocation_function=3 is not callable"),
        (
            lambda: ResourceChangingScheduler(None, DistributeResources),
            "DistributeResources'> is not callable",
        ),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


# --- through the controller -----------------------------------------------------------------------


def play(
    allocate: Any = evenly_distribute_cpus_gpus, base: TrialScheduler | None = None, **rest: Any
) -> Play:
    scheduler = ResourceChangingScheduler(base, allocate)
    arguments = {"num_samples": 2, "cpus": 4, "metric": "m", "mode": "max", **rest}
    return Play(scheduler=scheduler, **arguments)


def test_a_trial_that_is_alone_goes_on_with_all():
    game = play(num_samples=1)
    game.started(0)
    (stop,) = game.reported(0, {"m": 1.0})
    assert stop == ev.Stop(game.trial(0).trial_id, save=True)
    game.finished(0, checkpoint="checkpoint_000000")
    trial = game.trial(0)
    assert trial.request == PlacementGroupFactory([{"CPU": 4}])
    assert (str(trial.status), trial.attempt, game.iterations[trial.trial_id]) == ("PENDING", 1, 1)
    assert game.controller.ledger.used() == {"CPU": 4}
    game.started(0)
    (advance,) = game.reported(0, {"m": 2.0})  # nothing more to give
    assert isinstance(advance, ev.Advance)
    decisions = [each.decision for each in game.recorded(ev.DecisionMade)]
    assert decisions[0].reason == {"rule": "resources", "before": "1 CPU", "after": "4 CPU"}
    assert [str(each.verdict) for each in decisions] == ["PAUSE", "RESUME"]


def test_trials_that_end_leave_theirs_to_the_others():
    game = play()
    for index in range(2):
        game.started(index)
        game.reported(index, {"m": 1.0})
        game.finished(index, checkpoint="checkpoint_000000")
    assert [trial.request.required_resources["CPU"] for trial in game.controller.trials] == [2, 2]
    game.started(0)
    game.started(1)
    game.reported(0, {"m": 2.0}, done=True)
    game.reported(1, {"m": 2.0})
    game.finished(1, checkpoint="checkpoint_000001")
    assert game.trial(1).request.required_resources == {"CPU": 4}
    game.started(1)
    game.reported(1, {"m": 2.0}, done=True)
    assert game.controller.done
    assert game.statuses() == ["TERMINATED"] * 2


@pytest.mark.parametrize(("unit", "there", "sizes"), [({"CPU": 2}, 4, [3, 1]), (None, 3, [2, 1])])
def test_what_one_is_being_paused_for_is_given_to_no_other(unit, there, sizes):
    game = play(DistributeResources(increase_by=unit), cpus=there)
    game.started(0)
    game.started(1)
    assert isinstance(game.reported(0, {"m": 1.0})[0], ev.Stop)
    assert isinstance(game.reported(1, {"m": 1.0})[0], ev.Advance)
    game.finished(0, checkpoint="checkpoint_000000")
    game.started(0)
    for index in (0, 1, 0, 1):
        assert isinstance(game.reported(index, {"m": 1.0})[0], ev.Advance), "what was given stays"
    assert [trial.request.required_resources["CPU"] for trial in game.controller.trials] == sizes


def test_the_other_scheduler_stops_and_promotes_as_before():
    game = play(base=ASHAScheduler(max_t=9, reduction_factor=3), num_samples=1)
    game.started(0)
    game.reported(0, {"m": float("nan")})
    game.finished(0)
    assert game.trial(0).reason.startswith("stopped by ASHA: rung 1")


def test_the_function_has_rays_form_and_may_return_a_dictionary():
    calls = []

    def allocate(tune_controller, trial, result, scheduler):
        calls.append((trial.index, result["m"], scheduler.base_trial_resources, scheduler.metric))
        return {"cpu": 2} if result["m"] > 1 else None

    game = play(allocate, num_samples=1)
    game.started(0)
    assert isinstance(game.reported(0, {"m": 1.0})[0], ev.Advance)
    assert isinstance(game.reported(0, {"m": 2.0})[0], ev.Stop)
    one = PlacementGroupFactory([{"CPU": 1}])
    assert calls == [(0, 1.0, one, "m"), (0, 2.0, one, "m")]
    assert isinstance(play(None, num_samples=1).started(0)[0], ev.Advance)


@pytest.mark.parametrize(("given", "words"), [({"cpu": 5}, "5 CPU"), (7, "resources=7")])
def test_what_can_never_be_met_ends_the_experiment_with_an_error(given, words):
    game = play(lambda *_: given, num_samples=1)
    game.started(0)
    game.reported(0, {"m": 1.0})
    with pytest.raises(ConfigError, match=words):
        game.controller.raise_error()


def test_in_a_simulation_it_is_the_workers_that_are_too_few():
    def learning(config, training_iteration, rng):
        return {"m": training_iteration, "done": training_iteration == 3}

    config = tune.TuneConfig(scheduler=ResourceChangingScheduler(None, lambda *_: {"cpu": 5}))
    with pytest.raises(
        InfeasibleError, match=r"the simulated workers have 4 CPU.*simulate more workers"
    ) as told:
        tune.simulate(learning, {}, config, workers=4, seed=0)
    assert "machine" not in str(told.value)
    assert "trainkit.init" not in str(told.value)


def test_it_is_made_again_from_its_arguments():
    scheduler = ResourceChangingScheduler(
        ASHAScheduler(max_t=9), DistributeResourcesToTopJob(increase_by={"CPU": 2}, metric="m")
    )
    made = described_scheduler({"class": "ResourceChangingScheduler", "arguments": scheduler.arguments})
    assert isinstance(made, ResourceChangingScheduler)
    assert made.arguments == scheduler.arguments
    assert made.base_scheduler.arguments["max_t"] == 9
    assert isinstance(tune.create_scheduler("resource_changing"), ResourceChangingScheduler)


# --- replays --------------------------------------------------------------------------------------


def test_a_trial_whose_change_a_kill_has_cut_off_goes_on():
    class Waits(TrialScheduler):
        arguments: dict[str, Any] = {}  # type: ignore[assignment]  # noqa: RUF012

        def decide(self, trial_id, time, score):
            raise AssertionError

        def choose_trial_to_run(self, pending, paused=(), *, new=False):
            return None

    view = seen({"CPU": 4}, [{"CPU": 1}])
    view.get_trials()[0].status = TrialStatus.PAUSED
    scheduler = ResourceChangingScheduler(Waits())
    scheduler.see(view)
    assert scheduler.choose_trial_to_run([], ["0"]) == "0"


class Sized(tune.Trainable):
    """Says with how many CPUs each of its steps was taken."""

    def setup(self, config):
        self.cpus = []

    def step(self):
        self.cpus.append(int(self.trial_resources["CPU"]))
        return {"m": self.iteration, "cpus": str(self.cpus), "done": self.iteration == 3}

    def save_checkpoint(self, path):
        Path(path, "cpus").write_text(json.dumps(self.cpus))

    def load_checkpoint(self, path):
        self.cpus = json.loads(Path(path, "cpus").read_text())


def sized(results, callbacks=()):
    return tune.Tuner(
        Sized,
        tune_config=tune.TuneConfig(metric="m", mode="max", scheduler=ResourceChangingScheduler()),
        run_config=tune.RunConfig(name="e", storage_path=results, verbose=0, callbacks=list(callbacks)),
    )


def test_an_experiment_resizes_its_trial_and_its_log_has_what_that_was_given(inline, results):
    (result,) = sized(results).fit()
    assert (result.status, result.metrics["cpus"]) == ("TERMINATED", "[1, 2, 2, 2]")
    with ExperimentReader(results / "e") as reader, contextlib.closing(reader.log()) as log:
        (change,) = [entry.data for entry in log if entry.kind == "rearranged"]
    assert PlacementGroupFactory(*change["granted"]) == PlacementGroupFactory([{"CPU": 2}])
    assert PlacementGroupFactory(*change["before"]) == PlacementGroupFactory([{"CPU": 1}])


@pytest.mark.parametrize("after", [1, 5])
def test_28_a_restore_from_any_step_goes_on_with_what_was_given(inline, results, after):
    try:
        sized(results, [CutShort(after)]).fit()
    except KeyboardInterrupt:
        (result,) = tune.Tuner.restore(
            results / "e", Sized, run_config=tune.RunConfig(callbacks=[CutShort(0)])
        ).fit()
        assert result.status == "TERMINATED"
        taken = json.loads(result.metrics["cpus"])
        assert len(taken) == 4
        assert taken in ([1, 2, 2, 2], [1, 1, 2, 2])  # a change that was not stored is decided again


# --- around another scheduler ---------------------------------------------------------------------


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(("interval", "written"), [(2, True), (9, False)])
def test_population_based_training_has_its_files_and_its_warning(fit, tmp_path, caplog, interval, written):
    fit(
        Toy,
        metric="q",
        mode="max",
        num_samples=4,
        scheduler=ResourceChangingScheduler(pbt(perturbation_interval=interval)),
        seed=0,
        run={"stop": {"training_iteration": 6}},
    )
    assert (tmp_path / "e" / "pbt_global.txt").exists() == written
    assert ("no trial will be changed" in caplog.text) == (not written)


def test_what_the_other_scheduler_must_hear_after_a_restore_it_hears():
    assert ResourceChangingScheduler(HyperBandScheduler()).hears_again
    assert not ResourceChangingScheduler(ASHAScheduler()).hears_again
