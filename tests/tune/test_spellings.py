"""One thing by all the names it ever had; row 1.40."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import numpy as np
import pytest

from trainkit import air, train, tune
from trainkit.air import session
from trainkit.errors import CheckpointError, MetricError

pytestmark = pytest.mark.usefixtures("inline")


@pytest.mark.parametrize(
    "report",
    [
        lambda value: tune.report({"loss": value}),
        lambda value: tune.report(metrics={"loss": value}, checkpoint=None),
        lambda value: tune.report(loss=value),
        lambda value: session.report({"loss": value}),
        lambda value: air.session.report({"loss": value}),
        lambda value: train.report({"loss": value}),
    ],
)
def test_every_spelling_reports(fit, report):  # row 1.40
    def trainable(config):
        report(2.0)
        report(1.0)

    (result,) = fit(trainable, metric="loss")
    assert [row["loss"] for row in result.history] == [2.0, 1.0]


@pytest.mark.parametrize("number", [0.5, 3, np.float32(0.5), np.int64(3)])
def test_a_number_alone_is_reported_as_metric(fit, number):
    def trainable(config):
        tune.report(number)

    assert fit(trainable)[0].metrics["_metric"] == number


def test_what_is_no_number_is_not(fit):
    (error,) = fit(lambda config: tune.report(np.zeros(3))).errors
    assert isinstance(error, MetricError)


def test_every_spelling_tells_who_the_trial_is(fit):
    def trainable(config):
        contexts = [tune.get_context(), train.get_context()]
        return {
            "ids": [tune.get_trial_id(), session.get_trial_id(), *[each.get_trial_id() for each in contexts]],
            "names": [tune.get_trial_name(), session.get_trial_name(), contexts[1].get_trial_name()],
            "dirs": [tune.get_trial_dir(), session.get_trial_dir(), contexts[1].get_trial_dir()],
            "ranks": [
                session.get_world_rank(),
                session.get_local_rank(),
                session.get_node_rank(),
                contexts[0].get_node_rank(),
            ],
            "sizes": [
                session.get_world_size(),
                session.get_local_world_size(),
                contexts[0].get_local_world_size(),
            ],
            "experiment": session.get_experiment_name(),
            "metadata": contexts[0].get_metadata(),
            "inside": tune.is_session_enabled(),
        }

    (result,) = fit(trainable)
    told = result.metrics
    assert set(told["ids"]) == {result.trial_id}
    assert set(told["names"]) == {f"trainable_{result.trial_id}"}
    assert set(told["dirs"]) == {result.path}
    assert (set(told["ranks"]), set(told["sizes"])) == ({0}, {1})
    assert (told["experiment"], told["metadata"], told["inside"]) == ("e", {}, True)
    assert not tune.is_session_enabled()


def test_resources_are_told_as_rays_and_as_a_dictionary(fit):
    def trainable(config):
        resources = tune.get_context().get_trial_resources()
        return {
            "same": resources == tune.get_trial_resources() == session.get_trial_resources(),
            "cpus": [resources["CPU"], resources.required_resources.get("CPU", 1), resources.head_cpus],
            "bundles": resources.bundles,
            "strategy": resources.strategy,
        }

    group = tune.PlacementGroupFactory([{"CPU": 0.5}, {"CPU": 1}], strategy="SPREAD")
    told = fit(tune.with_resources(trainable, group))[0].metrics
    assert told["same"]
    assert told["cpus"] == [1.5, 1.5, 0.5]
    assert told["bundles"] == [{"CPU": 0.5}, {"CPU": 1}]
    assert told["strategy"] == "SPREAD"


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [tune.Checkpoint, train.Checkpoint, air.Checkpoint])
def test_a_dictionary_is_a_checkpoint(fit, checkpoints):
    def trainable(config):
        before = session.get_checkpoint()
        step = before.to_dict()["step"] if before else 0
        while step < 3:
            step += 1
            session.report(
                {"step": step}, checkpoint=checkpoints.from_dict({"step": step, "weights": np.ones(2)})
            )
            if step == 2 and before is None:
                raise RuntimeError("in the middle")

    (result,) = fit(trainable, run={"failure_config": air.FailureConfig(max_failures=1)})
    assert [row["step"] for row in result.history] == [1, 2, 3]
    assert result.checkpoint.to_dict()["step"] == 3
    assert np.array_equal(result.checkpoint.to_dict()["weights"], np.ones(2))


def test_a_dictionary_that_nobody_reports_leaves_nothing():
    checkpoint = tune.Checkpoint.from_dict({"a": 1})
    folder = Path(checkpoint.path)
    assert folder.is_dir()
    del checkpoint
    assert not folder.exists()


def test_a_checkpoint_of_files_is_no_dictionary(tmp_path):
    with pytest.raises(CheckpointError, match="read its files"):
        tune.Checkpoint(tmp_path).to_dict()
    with pytest.raises(CheckpointError, match="'lock'"):
        tune.Checkpoint.from_dict({"lock": threading.Lock()})


def test_reports_have_the_keys_that_rays_names_mean(fit):
    keys = importlib.import_module("trainkit.tune.result")
    (result,) = fit(lambda config: 0.5)
    assert result.metrics[keys.DEFAULT_METRIC] == 0.5
    filled_in = "TRAINING_ITERATION TIME_THIS_ITER_S TIME_TOTAL_S TIMESTAMP DONE TRIAL_ID EXPERIMENT_TAG PID "
    for name in (filled_in + "HOSTNAME NODE_IP").split():
        assert getattr(keys, name) in result.metrics
