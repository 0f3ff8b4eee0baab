"""Settings check themselves: each bad value is named, each default is Ray's."""

from __future__ import annotations

import pickle
from datetime import timedelta

import numpy as np
import pytest

from trainkit import tune
from trainkit.errors import ConfigError, InfeasibleError, TrainkitError, TuneError
from trainkit.resources import require_feasible
from trainkit.tune.core.trial import experiment_tag
from trainkit.tune.schedulers import ASHAScheduler, PopulationBasedTraining


@pytest.mark.parametrize(
    ("ask", "error", "meant"),
    [
        (lambda: tune.TuneConfig(scheduler="ahsa"), ConfigError, "asha"),
        (lambda: tune.TuneConfig(scheduler="AshaScheduler"), ConfigError, "ASHAScheduler"),
        (lambda: tune.TuneConfig(search_alg="optunna"), ConfigError, "optuna"),
        (lambda: tune.unifrom(0, 1), AttributeError, "uniform"),
        (lambda: tune.schedulers.AshaScheduler(), AttributeError, "ASHAScheduler"),
        (lambda: exec("from trainkit.tune.schedulers import AshaScheduler"), ImportError, "ASHAScheduler"),
        (lambda: exec("from trainkit.tune import TunerConfig"), ImportError, "TuneConfig"),
        (lambda: require_feasible([{"cpus": 1}], {"CPU": 2}, what="it"), InfeasibleError, "CPU"),
        (lambda: require_feasible([{"gpus": 1}], {"CPU": 2}, what="it"), InfeasibleError, "GPU"),
    ],
)
def test_the_name_that_was_meant_is_told(ask, error, meant):
    with pytest.raises(error, match=f"Did you mean '{meant}'"):
        ask()


def test_a_name_that_nobody_meant_is_looked_for_as_usual():
    assert not hasattr(tune.schedulers, "AshaScheduler")
    assert getattr(tune, "reports", None) is None
    exec("from trainkit.tune import checkpoint, policies")  # submodules
    with pytest.raises(ImportError, match="'nothing_like_it'"):
        exec("from trainkit.tune import nothing_like_it")
    with pytest.raises(InfeasibleError, match=r"not enough CPU\. Ask for less, or .*\.$"):
        require_feasible([{"CPU": 3}], {"CPU": 2}, what="it")


@pytest.mark.parametrize(
    ("varied", "tag"),
    [
        ({"net/noise": 0.4051234, "net/act": "relu"}, "3_noise=0.4051,act=relu"),
        ({"opt/lr": 0.5, "sched/lr": 2, "width": 8}, "3_opt/lr=0.5,sched/lr=2,width=8"),
        ({"lr": 1, "opt/lr": 2, "a/opt/lr": 3}, "3_lr=1,opt/lr=2,a/opt/lr=3"),
        ({}, "3"),
    ],
)
def test_a_tag_names_what_varies_by_the_shortest_names_that_tell(varied, tag):
    assert experiment_tag(3, varied) == tag


def test_a_long_tag_is_cut_with_a_sign():
    tag = experiment_tag(3, {f"parameter_{n}": n for n in range(40)})
    assert len(tag) == 120 and tag.endswith("...")


def test_schedulers_and_searchers_by_name_take_what_they_know(caplog):  # as Ray's do
    asha = tune.create_scheduler("ASHA", max_t=7, metric="loss", mode="min", gamma=0.1)
    assert (asha.metric, asha.max_t) == ("loss", 7)
    assert "has no argument 'gamma', nor has any other scheduler: the argument is ignored" in caplog.text
    caplog.clear()
    tune.create_scheduler("fifo", metric="loss", max_t=7)
    assert not caplog.text
    with pytest.raises(ConfigError, match=r"no argument 'grace_perid'.* Did you mean 'grace_period'"):
        tune.create_scheduler("asha", grace_perid=7)
    assert tune.create_searcher("optuna", metric="loss", mode="min", gamma=0.1).metric == "loss"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tune.TuneConfig(metric=""), "metric=''"),
        (lambda: tune.TuneConfig(metric="loss", mode="lowest"), "mode='lowest'"),
        (lambda: tune.TuneConfig(num_samples=0), "num_samples=0"),
        (lambda: tune.TuneConfig(num_samples=1.5), "num_samples=1.5"),
        (lambda: tune.TuneConfig(max_concurrent_trials=-1), "max_concurrent_trials=-1"),
        (lambda: tune.TuneConfig(time_budget_s=0), "time_budget_s=0"),
        (lambda: tune.TuneConfig(trial_timeout_s=0), "trial_timeout_s=0"),
        (lambda: tune.TuneConfig(time_budget_s=float("nan")), "time_budget_s=nan"),
        (lambda: tune.TuneConfig(seed=-1), "seed=-1"),
        (lambda: tune.TuneConfig(seed="a"), "seed='a'"),
        (lambda: tune.TuneConfig(scheduler="fastest"), "scheduler='fastest' is not one of"),
        (
            lambda: tune.RunConfig(stop="TimeoutStopper"),
            "'timeout': give the object, such as TimeoutStopper(",
        ),
        (lambda: tune.TuneConfig(search_alg="luck"), "search_alg='luck' is not one of"),
        (lambda: tune.TuneConfig(scheduler=ASHAScheduler), "ASHAScheduler()"),
        (lambda: tune.TuneConfig(search_alg=3), "search_alg=3"),
        (lambda: tune.FailureConfig(max_failures=-2), "max_failures=-2"),
        (lambda: tune.FailureConfig(fail_fast="yes"), "fail_fast='yes'"),
        (lambda: tune.FailureConfig(fail_fast=True, max_failures=1), "contradict"),
        (lambda: tune.CheckpointConfig(num_to_keep=0), "num_to_keep=0"),
        (lambda: tune.CheckpointConfig(checkpoint_score_order="best"), "checkpoint_score_order='best'"),
        (lambda: tune.CheckpointConfig(checkpoint_score_order=None), "checkpoint_score_order=None"),
        (lambda: tune.CheckpointConfig(checkpoint_score_attribute=3), "checkpoint_score_attribute=3"),
        (lambda: tune.CheckpointConfig(checkpoint_at_end="no"), "checkpoint_at_end='no'"),
        (lambda: tune.CheckpointConfig(checkpoint_frequency=-1), "checkpoint_frequency=-1"),
        (lambda: tune.TuneConfig(reuse_actors="no"), "reuse_actors='no'"),
        (lambda: tune.TuneConfig(allow_duplicates="no"), "allow_duplicates='no'"),
        (lambda: tune.RunConfig(callbacks=tune.Callback()), "give a list, such as [tune.Callback()]"),
        (lambda: tune.RunConfig(default_loggers="csv"), "default_loggers='csv': give a list"),
        (lambda: tune.create_searcher(3), "search_alg=3 is not one of"),
        (lambda: tune.create_scheduler(3), "scheduler=3 is not one of"),
        (lambda: tune.RunConfig(storage_path=""), "storage_path=''"),
        (lambda: tune.TuneConfig(time_budget_s=10**400), "time_budget_s=1000"),
        (lambda: tune.TuneConfig(time_budget_s=timedelta(0)), "time_budget_s=0"),
        (lambda: tune.RunConfig(name="a/b"), "name='a/b'"),
        (lambda: tune.RunConfig(name=".."), "name='..'"),
        (lambda: tune.RunConfig(name="x" * 300), "200 bytes"),
        (lambda: tune.RunConfig(sync_config={"sync_period": 5}), "SyncConfig"),
        (lambda: tune.SyncConfig(sync_period=0), "sync_period=0"),
        (lambda: tune.ResumeConfig(finished="resume"), "finished='resume'"),
        (lambda: tune.RunConfig(stop=3), "stop=3"),
        (lambda: tune.RunConfig(stop={"loss": "low"}), "'low'"),
        (lambda: tune.RunConfig(stop={"done": False}), "'done': False"),
        (lambda: tune.RunConfig(stop={"loss": True}), "'loss': True"),
        (lambda: tune.RunConfig(callbacks=[3]), "callbacks=3"),
        (lambda: tune.RunConfig(callbacks=[tune.Callback]), "callbacks="),
        (lambda: tune.RunConfig(failure_config={"max_failures": 1}), "FailureConfig"),
        (lambda: tune.RunConfig(verbose=9), "verbose=9"),
        (lambda: tune.Tuner(lambda config: 1, tune_config={"num_samples": 1}), "tune.TuneConfig"),
        (lambda: tune.MaximumIterationStopper(0), "max_iter=0"),
        (lambda: tune.TrialPlateauStopper("loss", metric_threshold=1.0), "metric_threshold=1.0 must be"),
        (lambda: tune.ExperimentPlateauStopper("loss", top=1), "top=1"),
        (lambda: tune.ExperimentPlateauStopper("loss", mode="best"), "mode='best'"),
        (lambda: tune.TimeoutStopper(0), "timeout=0"),
        (lambda: tune.CombinedStopper(print), "wrap a function"),
        (lambda: tune.RunConfig(stop=tune.TimeoutStopper), "give a dict,"),
        (lambda: tune.RunConfig(stop=[{"a": 1}, 3]), "stop=3"),
        (lambda: tune.RunConfig(stop=[{"a": "x"}]), "number to reach"),
    ],
)
def test_a_bad_value_is_named(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_other_spellings_of_a_setting_are_taken():
    config = tune.TuneConfig(
        num_samples=np.int64(3), max_concurrent_trials=0, seed=np.uint8(5), time_budget_s=timedelta(minutes=2)
    )
    assert (config.num_samples, config.seed, config.time_budget_s) == (3, 5, 120.0)
    assert type(config.num_samples) is type(config.seed) is int
    run = tune.RunConfig(checkpoint_config=None, failure_config=None)
    assert (run.checkpoint_config, run.failure_config) == (tune.CheckpointConfig(), tune.FailureConfig())


def test_settings_can_be_assigned_to_and_are_checked_as_at_first():
    run, search = tune.RunConfig(), tune.TuneConfig()
    run.name, run.storage_path, run.stop = "e", "here", {"eval": {"loss": 1.0}}
    assert (run.name, run.storage_path, run.stop) == ("e", "here", {"eval/loss": 1.0})
    search.scheduler = "asha"
    assert isinstance(search.scheduler, tune.schedulers.ASHAScheduler)
    run.failure_config.max_failures = 2
    with pytest.raises(ConfigError, match="max_failures=-2"):
        run.failure_config.max_failures = -2
    assert run.failure_config == tune.FailureConfig(max_failures=2), "what was refused has changed nothing"
    with pytest.raises(
        TypeError, match=r"ScalingConfig has no setting 'num_worker'.*num_workers.*It takes tra"
    ):
        tune.ScalingConfig(num_worker=2)
    with pytest.raises(AttributeError, match=r"has no setting 'num_sample'.*num_samples"):
        search.num_sample = 3


def test_what_is_assigned_after_a_tuner_was_made_is_not_its_own(inline, tmp_path):
    search = tune.TuneConfig(num_samples=2)
    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    tuner = tune.Tuner(lambda config: {"m": 1.0}, tune_config=search, run_config=run)
    search.num_samples, run.failure_config.max_failures = 5, 3
    assert len(tuner.fit()) == 2
    again = tune.Tuner.restore(tmp_path / "e", lambda config: {"m": 1.0})
    assert len(again.fit()) == 2


def nothing(config):
    return {"m": 1}


@pytest.mark.parametrize(
    ("act", "kinds"),
    [
        (lambda path: tune.Tuner.restore(path, nothing), (FileNotFoundError, ValueError, RuntimeError)),
        (lambda path: tune.ResultGrid.from_path(path), (FileNotFoundError, RuntimeError)),
        (lambda path: tune.Result.from_path(path), (FileNotFoundError, RuntimeError)),
        (lambda path: tune.Tuner("nobody's"), (TuneError, ValueError)),
        (lambda path: tune.Tuner(None), (TuneError, ValueError)),
        (lambda path: PopulationBasedTraining(), (TuneError, ValueError)),
        (lambda path: tune.TuneConfig(mode="most"), (TuneError, ValueError)),
    ],
)
def test_errors_are_those_that_scripts_catch(tmp_path, act, kinds):
    with pytest.raises(TrainkitError) as info:
        act(str(tmp_path / "nowhere"))
    assert all(isinstance(info.value, kind) for kind in kinds)
    assert type(pickle.loads(pickle.dumps(info.value))) is type(info.value)
