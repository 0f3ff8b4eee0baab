"""MLflow's own client and an SQLite store: one run per trial, whatever happens in between."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.integrations import mlflow as integration
from trainkit.plugins.integrations.mlflow import MLflowLoggerCallback, setup_mlflow

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One for the module, as its tables take a second; each test has its own experiment in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(autouse=True)
def artifacts_go_elsewhere(monkeypatch, tmp_path):
    """Beside an SQLite file MLflow keeps artifacts where the program runs."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def client(store):
    return mlflow.MlflowClient(store)


@pytest.fixture
def runs(client, request):
    def runs():
        experiment = client.get_experiment_by_name(request.node.name)
        found = client.search_runs([experiment.experiment_id], order_by=["tags.trial_name"])
        return sorted(found, key=lambda run: run.data.tags["mlflow.runName"])

    return runs


@pytest.fixture
def logged(store, request, tmp_path):
    def logged(**arguments):
        return MLflowLoggerCallback(store, experiment_name=request.node.name, **arguments)

    return logged


def values(client, run, metric):
    return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, metric)]


def three(config):
    for step in range(1, 4):
        tune.report({"loss": config["lr"] / step, "eval": {"acc": 0.5}, "text": "a", "odd name!": math.nan})


def test_a_run_per_trial(fit, logged, client, runs):  # row 1.30
    space = {"lr": tune.grid_search([1.0, 2.0]), "net": {"cls": dict}}
    fit(three, space, run={"callbacks": [logged(tags={"who": "me"})]})
    first, second = runs()
    assert first.info.status == second.info.status == "FINISHED"
    assert first.data.params == {"lr": "1.0", "net/cls": "dict"}
    assert second.data.params["lr"] == "2.0"
    assert first.data.tags["who"] == "me"
    assert values(client, second, "loss") == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))]
    assert [step for step, _ in values(client, first, "eval/acc")] == [1, 2, 3]
    assert all(math.isnan(value) for _, value in values(client, first, "odd name_"))
    assert "text" not in first.data.metrics


def test_parameters_at_the_end_and_artifacts(fit, logged, client, runs, request, tmp_path):
    artifacts = tmp_path / "artifacts"  # else MLflow takes ./mlruns for a store in SQLite
    client.create_experiment(request.node.name, artifact_location=artifacts.as_uri())
    fit(three, {"lr": 1.0}, run={"callbacks": [logged(log_params_on_trial_end=True, save_artifact=True)]})
    (run,) = runs()
    assert run.data.params == {"lr": "1.0"}
    assert "progress.csv" in {each.path for each in client.list_artifacts(run.info.run_id)}


def test_a_trial_that_goes_on_keeps_its_run(fit, logged, client, runs, fails_twice, tmp_path):  # row 1.30
    """Retried in its experiment, then failed, then gone on with by a restore."""
    space = {"lr": tune.grid_search([1.0, 2.0])}
    failures = {"failure_config": tune.FailureConfig(max_failures=1)}
    fit(fails_twice, space, run={"callbacks": [logged()], **failures})
    before = {run.info.run_id: run.info.status for run in runs()}
    assert sorted(before.values()) == ["FAILED", "FINISHED"]
    run = tune.RunConfig(callbacks=[logged()], verbose=0)
    tune.Tuner.restore(str(tmp_path / "e"), fails_twice, resume_errored=True, run_config=run).fit()
    after = runs()
    assert {run.info.run_id for run in after} == set(before)
    assert [run.info.status for run in after] == ["FINISHED", "FINISHED"]
    for run in after:
        assert values(client, run, "loss") == [(step, float(step)) for step in range(1, 5)]


def test_an_interrupted_experiment_keeps_its_runs(fit, logged, client, runs, tmp_path):  # row 1.30
    """Ctrl-C while the second trial runs, then a restore."""

    def interrupts(config):
        for step in range(1, 4):
            tune.report({"loss": float(step)})
            if config["n"] == 1 and step == 2 and not Path(tmp_path, "once").exists():
                Path(tmp_path, "once").touch()
                os.kill(os.getpid(), signal.SIGINT)

    space = {"n": tune.grid_search([0, 1, 2])}
    fit(interrupts, space, run={"callbacks": [logged()]}, max_concurrent_trials=1)
    before = runs()
    assert [run.info.status for run in before] == ["FINISHED", "KILLED"]
    run = tune.RunConfig(callbacks=[logged()], verbose=0)
    assert tune.Tuner.restore(str(tmp_path / "e"), interrupts, run_config=run).fit().num_terminated == 3
    after = runs()
    assert [run.info.run_id for run in after][:2] == [run.info.run_id for run in before]
    assert [run.info.status for run in after] == ["FINISHED"] * 3
    for run in after:
        assert {step for step, _ in values(client, run, "loss")} == {1, 2, 3}


def test_what_a_kill_kept_from_the_service_is_sent_later(fit, logged, client, runs, tmp_path):  # row 1.30
    """As if the driver was killed with results on their way, and the end of the run too."""

    class Late(MLflowLoggerCallback):
        def write(self, told, results):
            super().write(told, [each for each in results if each["training_iteration"] < 3])
            self._sent[told.trial_id] -= sum(each["training_iteration"] == 3 for each in results)

        def close_run(self, told, status):
            self._runs.pop(told.trial_id)

        def _do_close(self, told, status):
            pass

    late = logged()
    late.__class__ = Late
    fit(three, {"lr": 1.0}, run={"callbacks": [late]})
    (run,) = runs()
    assert run.info.status == "RUNNING"
    assert len(values(client, run, "loss")) == 2
    again = logged()
    again.__class__ = type("Late", (MLflowLoggerCallback,), {"__qualname__": Late.__qualname__})
    tune.Tuner.restore(
        str(tmp_path / "e"), three, run_config=tune.RunConfig(callbacks=[again], verbose=0)
    ).fit()
    (run,) = runs()
    assert run.info.status == "FINISHED"
    assert [step for step, _ in values(client, run, "loss")] == [1, 2, 3]


def test_a_service_that_fails_touches_no_trial(fit, caplog):  # row 1.30
    callback = MLflowLoggerCallback("nonsense://nowhere", experiment_name="x")
    grid = fit(three, {"lr": 1.0}, num_samples=3, run={"callbacks": [callback]})
    assert grid.num_terminated == 3
    told = [record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()]
    assert len(told) == len(set(told))
    assert "opening a run failed; the experiment continues" in told[0]


def test_a_service_that_hangs_is_not_waited_for_without_end(fit, logged, caplog, monkeypatch):
    let_go = threading.Event()

    def hangs(self):
        let_go.wait(30)
        raise RuntimeError

    monkeypatch.setattr(MLflowLoggerCallback, "connect", hangs)
    callback = logged()
    callback._timeout_s = 0.2
    assert fit(three, {"lr": 1.0}, run={"callbacks": [callback]}).num_terminated == 1
    assert "has not received all data within 0.2 s" in caplog.text
    let_go.set()
    deadline = time.monotonic() + 5
    while any("MLflow" in thread.name for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_token_is_set_for_the_experiment_alone(fit, logged, monkeypatch, runs):
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    seen = []
    monkeypatch.setattr(
        MLflowLoggerCallback,
        "close_run",
        lambda self, told, status: seen.append(integration.os.environ["MLFLOW_TRACKING_TOKEN"]),
    )
    fit(three, {"lr": 1.0}, run={"callbacks": [logged(tracking_token="secret")]})
    assert seen == ["secret"]
    assert "MLFLOW_TRACKING_TOKEN" not in integration.os.environ


# --- inside a trial -------------------------------------------------------------------------------


@pytest.mark.external
def test_a_trial_may_set_mlflow_up_itself(fit, store, client, tmp_path):
    def trainable(config):
        tracker = setup_mlflow(config, tracking_uri=store, tags={"who": "me"})
        tracker.log_metric("inside", config["lr"])
        tune.report({"loss": 1.0})
        if not Path(tmp_path, f"{config['lr']}").exists():
            Path(tmp_path, f"{config['lr']}").touch()
            raise ValueError
        tracker.log_metric("inside", 2 * config["lr"])
        tracker.end_run()

    run = {"failure_config": tune.FailureConfig(max_failures=1), "name": "inside"}
    fit(trainable, {"lr": tune.grid_search([1.0, 2.0])}, run=run, max_concurrent_trials=1)
    experiment = client.get_experiment_by_name("inside")
    found = client.search_runs([experiment.experiment_id])
    assert Counter(run.data.params["lr"] for run in found) == {"1.0": 1, "2.0": 1}
    assert {run.data.metrics["inside"] for run in found} == {2.0, 4.0}
    assert all(run.data.tags["who"] == "me" for run in found)


def test_an_experiment_that_is_not_there_is_refused(store):
    with pytest.raises(ConfigError, match="create_experiment_if_not_exists"):
        setup_mlflow(tracking_uri=store, experiment_name="nowhere")


def test_outside_a_trial_it_begins_a_run(store, client):
    tracker = setup_mlflow(
        {"a": {"b": 1}},
        tracking_uri=store,
        experiment_name="outside",
        create_experiment_if_not_exists=True,
        run_name="mine",
    )
    tracker.end_run()
    (run,) = client.search_runs([client.get_experiment_by_name("outside").experiment_id])
    assert (run.data.params, run.data.tags["mlflow.runName"]) == ({"a/b": "1"}, "mine")


def test_only_rank_zero_logs(monkeypatch, store):
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    nothing = setup_mlflow(tracking_uri=store)
    assert nothing.log_metric("a", 1).anything is nothing
    assert mlflow.active_run() is None
