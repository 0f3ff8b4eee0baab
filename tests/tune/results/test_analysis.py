"""`ExperimentAnalysis`: what scripts for Ray 1.13 to 2.60 ask of it."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from trainkit import tune
from trainkit.errors import ConfigError, MetricError, StoreError

ACCURACIES = {0: [0.9, 0.1], 1: [0.2, 0.5], 2: [math.nan, 0.3]}


def train_mnist(config):
    for epoch, accuracy in enumerate(ACCURACIES[config["n"]]):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "checkpoint").write_text(str(epoch))
            tune.report(
                {"mean_accuracy": accuracy, "eval": {"loss": -accuracy}},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )
    Path(tune.get_context().get_trial_dir(), "model.pth").write_text(f"model {config['n']}")


@pytest.fixture(scope="module")
def analysis(tmp_path_factory) -> Iterator[tune.ExperimentAnalysis]:
    trainkit.init(engine="inline", num_cpus=1)
    run = tune.RunConfig(storage_path=tmp_path_factory.mktemp("results"), name="e", verbose=0)
    grid = tune.Tuner(
        train_mnist,
        param_space={"n": tune.grid_search([0, 1, 2]), "sgd": {"momentum": 0.9}},
        tune_config=tune.TuneConfig(metric="mean_accuracy", mode="max"),
        run_config=run,
    ).fit()
    yield tune.ExperimentAnalysis(grid.experiment_path)
    trainkit.shutdown()


def test_the_script_that_plots_frames_and_loads_the_best_model(analysis):
    pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = None
    for table in analysis.trial_dataframes.values():
        axes = table.mean_accuracy.plot(ax=axes, legend=False)
    assert len(axes.get_lines()) == 3
    logdir = analysis.get_best_logdir("mean_accuracy", mode="max")
    with open(os.path.join(logdir, "model.pth")) as file:
        assert file.read() == "model 1"
    assert len(analysis.results_df) == 3


def test_best_is_by_the_last_report(analysis):
    pytest.importorskip("pandas")
    assert analysis.best_config == {"n": 1, "sgd": {"momentum": 0.9}}
    assert analysis.best_trial.config["n"] == 1
    assert analysis.best_result["mean_accuracy"] == 0.5
    assert analysis.best_logdir == analysis.best_trial.logdir
    assert list(analysis.best_dataframe["mean_accuracy"]) == [0.2, 0.5]
    frame = analysis.best_result_df
    assert list(frame.index) == [analysis.best_trial.trial_id]
    assert frame["config/sgd/momentum"].item() == 0.9
    path = os.path.join(analysis.best_checkpoint, "checkpoint")  # as older Ray's scripts write it
    assert Path(path).read_text() == "1"
    assert (analysis.default_metric, analysis.default_mode) == ("mean_accuracy", "max")


def test_no_best_is_none_and_a_warning_that_names_what_there_is(analysis, caplog):
    with caplog.at_level(logging.WARNING, logger="trainkit.tune"):
        assert analysis.get_best_trial("mean_acuracy", "max") is None
    assert "Did you mean 'mean_accuracy'" in caplog.text
    assert analysis.get_best_config("nobody", "max") is None
    assert analysis.get_best_logdir("nobody", "max") is None
    assert analysis.get_last_checkpoint(metric="nobody") is None
    other = tune.ExperimentAnalysis(analysis.experiment_path, default_metric="nobody", default_mode="min")
    with pytest.raises(MetricError, match="nobody"):
        other.best_config  # noqa: B018


def test_checkpoints(analysis):
    first = analysis.trials[0]
    assert Path(analysis.get_best_checkpoint(first), "checkpoint").read_text() == "0"
    assert Path(analysis.get_best_checkpoint(first, mode="min"), "checkpoint").read_text() == "1"
    assert Path(analysis.get_best_checkpoint(first.logdir, "training_iteration", "max")).name.endswith("1")
    assert analysis.get_last_checkpoint(first.trial_id) == first.checkpoint
    assert analysis.get_last_checkpoint() == analysis.trials[0].checkpoint  # all have two: the first
    assert [value for _, value in analysis.get_trial_checkpoints_paths(first)] == [0.9, 0.1]
    assert [value for _, value in analysis.get_trial_checkpoints_paths(first, "eval/loss")] == [-0.9, -0.1]
    paths = [path for path, _ in analysis.get_trial_checkpoints_paths(first)]
    assert all(Path(path, "checkpoint").exists() for path in paths)
    assert analysis.get_best_checkpoint(first, "nobody", "max") is None
    with pytest.raises(ConfigError, match=r"is not in .*: give one of `trials`"):
        analysis.get_best_checkpoint("somewhere")


def test_tables(analysis):
    pytest.importorskip("pandas")
    frame = analysis.results_df
    assert list(frame.index) == [trial.trial_id for trial in analysis.trials]
    assert list(frame["mean_accuracy"]) == [0.1, 0.5, 0.3]
    assert list(frame["config/n"]) == [0, 1, 2]
    assert list(frame["eval/loss"]) == [-0.1, -0.5, -0.3]
    last = analysis.dataframe()
    assert list(last["mean_accuracy"]) == [0.1, 0.5, 0.3]
    assert list(last["logdir"]) == [trial.logdir for trial in analysis.trials]
    best = analysis.dataframe(metric="mean_accuracy", mode="max")
    assert list(best["mean_accuracy"]) == [0.9, 0.5, 0.3]
    assert list(best["config/n"]) == [0, 1, 2]
    assert list(analysis.dataframe("nobody", "max")["mean_accuracy"]) == [0.1, 0.5, 0.3]  # the last, as Ray
    with pytest.raises(ConfigError, match="give the metric too"):
        analysis.dataframe(mode="max")


def test_by_path_as_ray_1_and_by_id_as_ray_2(analysis):
    pytest.importorskip("pandas")
    trial = analysis.trials[1]
    for tables in (analysis.trial_dataframes, analysis.fetch_trial_dataframes()):
        assert list(tables) == [each.path for each in analysis.trials]
        assert list(tables[trial.path]["mean_accuracy"]) == [0.2, 0.5]
        assert tables[trial.trial_id] is tables[trial.path]
    configs = analysis.get_all_configs()
    assert configs[trial.trial_id] == {"n": 1, "sgd": {"momentum": 0.9}}
    assert analysis.get_all_configs(prefix=True)[trial.path] == {"config/n": 1, "config/sgd/momentum": 0.9}
    with pytest.raises(KeyError, match="nobody"):
        configs["nobody"]
    assert analysis.results[trial.trial_id]["mean_accuracy"] == 0.5


def test_the_experiment_itself(analysis):
    assert analysis.stats()["start_time"] > 1e9
    assert analysis.runner_data()["tune_config"]["metric"] == "mean_accuracy"
    analysis.set_filetype("csv")
    with pytest.raises(ConfigError, match="xml"):
        analysis.set_filetype("xml")
    assert repr(analysis).startswith("ExperimentAnalysis(3 trials, 3 terminated")


def test_ways_to_open_one(analysis, tmp_path):
    folder = Path(analysis.experiment_path)
    by_file = tune.Analysis(folder / "experiment.sqlite", default_metric="eval/loss", default_mode="max")
    assert by_file.best_config["n"] == 0
    given = tune.ExperimentAnalysis(str(folder), trials=analysis.trials[:2], default_metric="mean_accuracy")
    assert len(given.trials) == 2
    with pytest.raises(ConfigError, match="the best trial needs"):
        given.best_trial  # noqa: B018
    with pytest.raises(StoreError, match="no such folder"):
        tune.ExperimentAnalysis(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"has no experiment"):
        tune.ExperimentAnalysis(tmp_path)
    with pytest.raises(ConfigError, match="default_mode='most'"):
        tune.ExperimentAnalysis(folder, default_mode="most")
