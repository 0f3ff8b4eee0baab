"""The user's functions at odd moments: what they raise or return costs no result that was reported."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.search import BasicVariantGenerator
from trainkit.tune.store.reader import ExperimentReader

pytestmark = pytest.mark.usefixtures("inline")


def test_what_a_stopped_function_returns_is_not_a_result(fit):
    def trainable(config):
        try:
            for step in range(9):
                tune.report({"loss": step, "step": step})
        finally:
            return {"loss": -1, "step": 99}  # noqa: B012 - users write this

    stop = {"step": 2}
    grid = fit(trainable, metric="loss", num_samples=2, run={"stop": stop})
    for result in grid:
        assert [row["step"] for row in result.history] == [0, 1, 2]
        assert result.reason == "step=2 reached 2"


@pytest.mark.parametrize(("chdir", "before"), [(False, True), (True, False)])
def test_a_trial_outlives_the_folder_that_the_program_runs_in(
    fit, tmp_path, monkeypatch, caplog, chdir, before
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)

    def trainable(config):
        if gone.exists():
            gone.rmdir()
        return 3.0

    if before:
        gone.rmdir()
    (result,) = fit(trainable, run={"chdir_to_trial_dir": chdir})
    assert result.error is None
    assert "TUNE_ORIG_WORKING_DIR" not in os.environ
    assert ("can't return to" in caplog.text) == chdir
    assert "''" not in caplog.text, "a folder that is gone has no name"


def test_a_raising_stop_function_fails_its_trial_alone(fit):
    def stop(trial_id, result):
        return 1 / result["loss"] < 0

    space = {"loss": tune.grid_search([1.0, 0.0, 2.0])}
    grid = fit(lambda config: {"loss": config["loss"]}, space, metric="loss", run={"stop": stop})
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", "TERMINATED"]
    assert "RunConfig(stop=...)" in str(grid.errors[0])
    assert "division by zero" in str(grid.errors[0])
    assert [len(result.history) for result in grid] == [1, 1, 1]


def test_a_raising_sample_from_ends_the_experiment_in_order(fit, restore, tmp_path, caplog):
    mended = tmp_path / "mended"

    def width(spec):
        if spec.config.x == 3 and not mended.exists():
            raise ZeroDivisionError("x is three")
        return spec.config.x * 2

    def trainable(config):
        for step in range(3):
            tune.report({"step": step, "width": config["width"]})

    space = {"x": tune.grid_search([1, 2, 3, 4]), "width": tune.sample_from(width)}
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(
            ConfigError, match=r"trial 2 has no .*width: the function .*width of sample_from.*x is three"
        ),
    ):
        fit(trainable, space)
    assert "Tuner.restore" in caplog.text
    with ExperimentReader(tmp_path / "e") as reader:
        trials = reader.trials()
        assert [trial.status for trial in trials] == ["TERMINATED"] * 2
        assert len(reader.history(trials[0].trial_id)) == 3
    mended.touch()
    grid = restore(trainable, param_space=space)
    assert [result.metrics["width"] for result in grid] == [2, 4, 6, 8]
    assert grid.num_terminated == 4


class Raising(BasicVariantGenerator):
    """Raises at the third suggestion."""

    def suggest(self, trial_id: str):
        if trial_id.endswith("2"):
            raise KeyError("lost")
        return super().suggest(trial_id)


def test_a_raising_searcher_lets_what_runs_end():
    play = Play(num_samples=9, cpus=2, searcher=Raising(), started=2)
    play.reported(0, {"loss": 1}, done=True)
    assert play.recorded(ev.ResultAdded)
    assert play.trial(0).status == "TERMINATED"
    assert not play.controller.done
    play.reported(1, {"loss": 1})
    play.finished(1)
    assert play.controller.done
    assert play.statuses() == ["TERMINATED", "PENDING"]  # to be gone on with
    with pytest.raises(ConfigError, match=r"trial 2 has no .*: Raising.suggest\(\) raised KeyError"):
        play.controller.raise_error()


class Refusing(tune.schedulers.FIFOScheduler):
    """Lets none of the waiting trials run."""

    def choose_trial_to_run(self, pending, paused=(), *, new=False):
        return None


def test_an_experiment_that_cannot_go_on_says_so(fit, tmp_path):
    def raises_once(config):
        path = Path(tune.get_context().get_trial_dir(), "was_here")
        if not path.exists():
            path.touch()
            raise RuntimeError("once")
        return 1.0

    failures = tune.FailureConfig(max_failures=1)
    with pytest.raises(RuntimeError, match="no trial runs"):
        fit(raises_once, scheduler=Refusing(), run={"failure_config": failures})


# --- classes --------------------------------------------------------------------------------------


def test_an_old_name_beside_the_new_is_the_users_own(fit):
    class Own(tune.Trainable):
        def step(self):
            return self._train()

        def _train(self):
            return {"loss": 1.0, "done": True}

    assert fit(Own)[0].metrics["loss"] == 1.0


def test_cleanup_runs_when_a_checkpoint_cannot_be_loaded(fit, tmp_path):
    class Unreadable(tune.Trainable):
        def step(self):
            if self.iteration == 1:
                raise RuntimeError("after the checkpoint")
            return {"loss": 1.0}

        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "state").touch()

        def load_checkpoint(self, checkpoint_dir):
            raise OSError("unreadable")

        def cleanup(self):
            with open(tmp_path / "cleaned", "a") as file:
                file.write("x")

    run = {
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
        "failure_config": tune.FailureConfig(max_failures=1),
    }
    grid = fit(Unreadable, run=run)
    assert "unreadable" in str(grid.errors[0])
    assert (tmp_path / "cleaned").read_text() == "xx"  # of both attempts


def test_a_state_is_not_saved_twice(fit):
    class Saving(tune.Trainable):
        def step(self):
            return {"loss": 1.0}

        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "state").touch()

    def saved(frequency):
        checkpoints = tune.CheckpointConfig(checkpoint_frequency=frequency, checkpoint_at_end=True)
        run = {"name": f"{frequency}", "checkpoint_config": checkpoints, "stop": {"training_iteration": 3}}
        (result,) = fit(Saving, run=run)
        return len(result.best_checkpoints)

    assert [saved(1), saved(2), saved(0)] == [3, 2, 1]


def test_a_spread_over_machines_is_refused():
    bundles = [{"CPU": 1}, {"CPU": 1}]
    with pytest.raises(ConfigError, match="STRICT_SPREAD"):
        tune.PlacementGroupFactory(bundles, strategy="STRICT_SPREAD")
    for strategy in ("PACK", "SPREAD", "STRICT_PACK"):
        assert tune.PlacementGroupFactory(bundles, strategy=strategy).required_resources == {"CPU": 2}


def test_the_folder_of_a_lambda_has_a_name_that_needs_no_quotes(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path))
    grid = tune.Tuner(lambda config: 1.0, run_config=tune.RunConfig(verbose=0)).fit()
    assert Path(grid.experiment_path).name.startswith("lambda_2")
