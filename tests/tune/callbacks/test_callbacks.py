"""A callback that raises may end the experiment; what a logger reads of a trial; files are whole."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from trainkit import tune

pytestmark = pytest.mark.usefixtures("inline")


@pytest.mark.parametrize("hook", ["setup", "on_trial_result", "on_experiment_end"])
def test_a_callback_that_raises_ends_the_experiment_if_asked(fit, restore, tmp_path, hook):
    def raises(*args, **kwargs):
        raise ZeroDivisionError("mine")

    broken = tune.Callback()
    setattr(broken, hook, raises)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run = {"callbacks": [broken], "failure_config": tune.FailureConfig(fail_fast="raise")}
        fit(lambda config: ({"loss": n} for n in range(3)), num_samples=3, max_concurrent_trials=1, run=run)
    found = [result.status for result in tune.ResultGrid.from_path(tmp_path / "e")]
    assert found == (["TERMINATED"] * 3 if hook == "on_experiment_end" else ["PENDING"])
    again = restore(lambda config: ({"loss": n} for n in range(3)), run={})
    assert again.num_terminated == 3


def test_a_logger_written_for_ray_finds_what_it_reads_of_a_trial(fit, tmp_path):
    seen, saved = {}, []

    class Mine(tune.LoggerCallback):
        def __init__(self):  # which Ray's base has no need to be told of
            self.files = {}

        def log_trial_start(self, trial):
            assert str(trial) == trial.name
            assert not trial.is_finished()
            assert trial.status == trial.RUNNING == "RUNNING"
            self.files[trial] = Path(trial.local_path) / "mine.log"
            self.files[trial].write_text("")

        def log_trial_result(self, iteration, trial, result):
            assert self.files[trial] == Path(trial.logdir) / "mine.log"
            with open(self.files[trial], "a") as file:
                file.write(f"{result['training_iteration']}\n")

        def log_trial_save(self, trial):
            saved.append((trial.index, trial.checkpoint.dirname))

        def log_trial_end(self, trial, failed=False):
            seen[trial.trial_id] = trial.evaluated_params, trial.experiment_tag, trial.trainable_name
            assert trial.is_finished()
            assert (trial.error_file is not None) == failed == (trial.status == trial.ERROR)

    def objective(config):
        tune.report({"loss": 1}, checkpoint=tune.Checkpoint.from_dict({}))
        if config["lr"] > 1:
            raise ValueError

    grid = fit(objective, {"lr": tune.grid_search([1, 2]), "fixed": 3}, run={"callbacks": [Mine()]})
    assert seen == {
        result.trial_id: ({"lr": result.config["lr"]}, f"{n}_lr={result.config['lr']}", "objective")
        for n, result in enumerate(grid)
    }
    assert [Path(result.path, "mine.log").read_text() for result in grid] == ["1\n"] * 2
    assert sorted(saved) == [(0, "checkpoint_000000"), (1, "checkpoint_000000")]
    # So does who looks at them afterwards.
    for read in (grid, tune.ExperimentAnalysis(grid.experiment_path).trials):
        found = {
            trial.trial_id: (trial.evaluated_params, trial.experiment_tag, trial.trainable_name)
            for trial in read
        }
        assert found == seen
        assert all(trial.is_finished() for trial in read)
        assert [Path(trial.error_file).exists() if trial.error_file else None for trial in read] == [
            None,
            True,
        ]


def test_the_files_that_other_tools_read(fit):
    def trainable(config):
        yield {"loss": math.nan, "eval": {"acc": 0.5}, "text": 'a,"b"\nc'}
        yield {"loss": 2.0, "eval": {"acc": 0.75}, "late": 1}
        yield {"loss": math.inf}

    (result,) = fit(trainable, {"lr": 0.1, "cls": tune.choice([dict])})
    folder = Path(result.path)
    params = json.loads((folder / "params.json").read_text())
    assert params == {"lr": 0.1, "cls": {"$opaque": "builtins.dict"}}
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["loss"] for row in rows] == ["NaN", 2.0, "Infinity"]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert rows[0]["config"]["lr"] == 0.1
    with open(folder / "progress.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["loss"] for row in table] == ["nan", "2.0", "inf"]
    assert [row["eval/acc"] for row in table] == ["0.5", "0.75", ""]
    assert [row["late"] for row in table] == ["", "1", ""]
    assert table[0]["text"] == 'a,"b"\nc'
    assert table[0]["config/lr"] == "0.1"
