"""An experiment in memory answers as one in a file does."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.trial import Trial
from trainkit.tune.experiment.run import ExperimentRun
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers import ASHAScheduler, HyperBandScheduler
from trainkit.tune.space.search_space import Space
from trainkit.tune.store.memory import MemoryStore
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.restore import ResumeRule
from trainkit.tune.store.writer import ExperimentStore


def objective(config, training_iteration, rng):
    return {"loss": config["x"] / training_iteration, "done": training_iteration == 11}


@pytest.fixture(
    params=[
        ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"),
        HyperBandScheduler(max_t=9, reduction_factor=3),
    ],
    ids=["promotion", "hyperband"],
)
def both(request, tmp_path):
    """The readers of one experiment: in memory, and in a file."""
    results = tune.simulate(
        objective,
        {"x": tune.uniform(0, 1)},
        tune.TuneConfig(metric="loss", mode="min", num_samples=20, scheduler=request.param),
        workers=3,
        seed=1,
        failures=0.04,
        stragglers=0.3,
        horizon_s=60.0,
        run_config=tune.RunConfig(failure_config=tune.FailureConfig(max_failures=1)),
    )
    folder = tmp_path / "experiment"
    memory = MemoryStore(results._store.facts)
    # Where there are processes, no attempt begins at the very moment at which the one before has ended.
    memory.commit(
        [
            replace(record, time=record.time + 1e-6) if isinstance(record, ev.AttemptStarted) else record
            for record in results._store.records
        ]
    )
    with contextlib.closing(ExperimentStore.create(folder, memory.facts)) as store:
        store.commit([_as_sent(record) for record in memory.records])
    with ExperimentReader(folder) as reader:
        yield memory.reader(), reader


def _as_sent(record):
    """The record with the metrics that the trial sent, in place of the result, which says how it ended."""
    if not isinstance(record, ev.ResultAdded):
        return record
    return replace(record, metrics={name: value for name, value in record.metrics.items() if name != "done"})


def test_trials(both):
    memory, file = both
    trials = memory.trials()
    assert len(trials) > 5
    for ours, theirs in zip(trials, file.trials(), strict=True):
        for name in (
            "trial_id index config name dirname tag status reason attempt failures iteration checkpoints"
        ).split():
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.last_result in ({}, theirs.last_result | {"done": ours.last_result.get("done")})
        assert bool(ours.last_result) == bool(theirs.last_result)
        assert (ours.failure is None) == (theirs.failure is None)


def test_reports(both):
    memory, file = both
    histories = dict(memory.histories())
    assert histories == dict(file.histories())
    for trial in file.trials():
        assert memory.history(trial.trial_id) == file.history(trial.trial_id)
        saved = memory.checkpoint_results(trial.trial_id)
        known = {number: {**report, "done": False} for number, report in saved.items() if report}
        assert known == {n: r for n, r in file.checkpoint_results(trial.trial_id).items() if r}


def test_what_happened(both):
    memory, file = both
    assert memory.decisions() == file.decisions()
    assert memory.stops() == file.stops()
    assert memory.times() == file.times()
    assert memory.exchanges() == file.exchanges() == []
    assert sorted(memory.spans(), key=_key) == sorted(file.spans(), key=_key)
    for trial in file.trials():
        assert memory.decisions(trial.trial_id) == file.decisions(trial.trial_id)
        assert memory.attempts(trial.trial_id) == file.attempts(trial.trial_id)


def _key(span):
    return span.trial_id, span.attempt


def test_what_a_failed_attempt_reported_does_not_outlive_a_shorter_one(tmp_path):
    trial = Trial("t", 0, {}, "t", "t")
    memory = MemoryStore({})
    records: list[ev.Record] = [ev.TrialAdded(trial)]
    for attempt, length in enumerate([5, 3]):
        records.append(ev.AttemptStarted(trial, attempt, 1.0, 42, "here", "127.0.0.1", 0))
        for iteration in range(1, length + 1):
            metrics = {"training_iteration": iteration, "of": attempt}
            records.append(ev.ResultAdded(trial, attempt, iteration, 1.0, metrics, metrics))
    memory.commit(records)
    with contextlib.closing(ExperimentStore.create(tmp_path / "e", {})) as store:
        store.commit(records)
    with ExperimentReader(tmp_path / "e") as file:
        for reader in (memory.reader(), file):
            history = reader.history("t")
            assert [(row["training_iteration"], row["of"]) for row in history] == [(1, 1), (2, 1), (3, 1)]


# --- whole experiments, without a word on the disk -----------------------------------------------


def descends(config):
    for step in range(1, 5):
        tune.report({"loss": config["x"] / step})


SPACE = {"x": tune.grid_search([1, 2, 3, 4])}
SETTINGS = {"metric": "loss", "mode": "min", "seed": 0, "max_concurrent_trials": 1}


@pytest.fixture
def kept(inline, tmp_path, caplog) -> ResultGrid:
    """With the loggers that come by themselves: they have nowhere to write."""
    config = tune.TuneConfig(**SETTINGS, scheduler=ASHAScheduler(max_t=4, reduction_factor=2))
    run = tune.RunConfig(verbose=0)
    experiment = ExperimentRun(Bound(descends), Space.of(SPACE), config, run, tmp_path / "e", in_memory=True)
    grid = experiment.fit()
    assert experiment.ended_by is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "the experiment continues" not in caplog.text
    return grid


def test_it_comes_to_what_one_in_a_folder_comes_to(kept, fit):
    filed = fit(descends, SPACE, **SETTINGS, scheduler=ASHAScheduler(max_t=4, reduction_factor=2))
    for one, other in zip(kept, filed, strict=True):
        assert (one.config, one.status, one.reason) == (other.config, other.status, other.reason)
        assert [row["loss"] for row in one.history] == [row["loss"] for row in other.history]
    assert [row["rule"] for row in kept.decisions()] == [row["rule"] for row in filed.decisions()]
    assert kept.get_best_result().config == filed.get_best_result().config
    assert kept.facts()["space"] == filed.facts()["space"]


def test_there_is_nothing_to_go_on_with(tmp_path):
    with pytest.raises(ConfigError, match="can't be resumed"):
        ExperimentRun(
            Bound(descends),
            Space.of(SPACE),
            tune.TuneConfig(**SETTINGS),
            tune.RunConfig(verbose=0),
            tmp_path / "e",
            resume=ResumeRule(),
            in_memory=True,
        )
