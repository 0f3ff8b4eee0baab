"""What a user asks of a grid and of one result: best, checkpoints, attempts, tables, reading back."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest

from trainkit import tune
from trainkit.errors import MetricError, StoreError, TrialError
from trainkit.plugins.plots.kinds import lanes
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.store.reader import Span
from trainkit.tune.store.writer import ExperimentStore

pytestmark = pytest.mark.usefixtures("inline")


def saving(config):
    for step, score in enumerate(config["scores"], 1):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.txt").write_text(str(step))
            tune.report({"score": score, "step": step}, checkpoint=tune.Checkpoint.from_directory(folder))
    if config.get("fails"):
        raise ValueError("on purpose")


def step_of(checkpoint: tune.Checkpoint) -> str:
    return Path(checkpoint.path, "step.txt").read_text()


def test_best_and_last_report_and_their_checkpoints(fit):
    """Row 1.9: 0.9 then 0.1 gives best 0.9, last 0.1, checkpoint of step 1, and who ranked it."""
    grid = fit(saving, {"scores": tune.grid_search([[0.9, 0.1], [0.3, 0.5]])}, metric="score", mode="max")
    best = grid.get_best_result(scope="all")
    assert (best.best_metrics["score"], best.metrics["score"]) == (0.9, 0.1)
    assert step_of(best.best_checkpoint) == "1"
    assert step_of(best.checkpoint) == "2"
    assert best.ranked_by == "all"
    assert "best by: score, max, scope='all'" in repr(best)
    last = grid.get_best_result()
    assert (last.ranked_by, last.metrics["score"]) == ("last", 0.5)
    assert [report["step"] for _, report in best.best_checkpoints] == [1, 2]
    assert step_of(best.get_best_checkpoint("step", "max")) == "2"
    assert step_of(best.get_best_checkpoint("step", "min")) == "1"
    assert best.metrics["checkpoint_dir_name"] == "checkpoint_000001"


def test_a_result_is_read_back_from_its_folder(fit):
    grid = fit(saving, {"scores": [0.9, 0.1], "fails": True}, metric="score", mode="max")
    back = tune.Result.from_path(grid[0].path)
    assert (back.metrics, back.config, back.status) == (grid[0].metrics, grid[0].config, "ERROR")
    assert isinstance(back.error, TrialError)
    assert "on purpose" in str(back.error)
    assert step_of(back.best_checkpoint) == "1"
    assert tune.Result.from_path(grid.experiment_path).path == grid[0].path
    with pytest.raises(StoreError, match=r"no trial with the folder nobody"):
        tune.Result.from_path(Path(grid.experiment_path) / "nobody")
    with pytest.raises(StoreError, match="no such folder"):
        tune.Result.from_path("/nowhere/at/all")


def test_ray_names_of_a_result(fit):
    result = fit(saving, {"scores": [0.5]}, metric="score", mode="max")[0]
    assert result.log_dir == Path(result.path)
    assert result.logdir == result.local_path == result.path
    assert result.last_result is result.metrics
    assert result.metric_analysis["score"] == dict.fromkeys(
        ("max", "min", "avg", "last", "last-5-avg", "last-10-avg"), 0.5
    )
    assert Path(os.path.join(result.checkpoint, "step.txt")).exists()  # as a path, too


def flaky(config):
    marker = Path(tune.get_context().get_trial_dir(), "tried")
    tune.report({"score": 1})
    if not marker.exists():
        marker.touch()
        raise OSError("once")
    tune.report({"score": 2})


def test_attempts_of_a_trial(fit):
    run = {"failure_config": tune.FailureConfig(max_failures=1)}
    result = fit(flaky, {"x": 3}, run=run)[0]
    first, second = result.attempts
    assert (first.number, first.reports, first.iteration) == (0, 1, 0)
    assert "retry 1 of 1 after OSError" in first.outcome
    assert (second.number, second.reports, second.outcome) == (1, 2, "finished")
    assert first.config == second.config == {"x": 3}
    assert first.started <= second.started
    assert second.pid == os.getpid()  # the inline engine
    assert [report["score"] for report in result.history] == [1, 2]


def late(config):
    tune.report({"a": 1.0, "nested": {"loss": math.nan}})
    tune.report({"a": math.inf, "nested": {"loss": 0.5}, "late": "x"})


def test_late_keys_nan_and_nested_keys_in_tables(fit, tmp_path):
    """Row 1.31, reading: late keys, NaN and infinity, nested keys; a table goes to CSV and back."""
    pandas = pytest.importorskip("pandas")
    grid = fit(late, {"net": {"width": tune.grid_search([8, 16])}})
    table = grid[0].metrics_dataframe
    assert list(table["a"]) == [1.0, math.inf]
    assert math.isnan(table["nested/loss"][0])
    assert math.isnan(table["late"][0])
    assert table["late"][1] == "x"
    grid.get_dataframe().to_csv(tmp_path / "all.csv", index=False)
    back = pandas.read_csv(tmp_path / "all.csv")
    assert list(back["config/net/width"]) == [8, 16]
    assert list(back["a"]) == [math.inf, math.inf]


def test_looks(fit):
    def some_fail(config):
        tune.report({"score": config["x"] / 3})
        if config["x"] == 2:
            raise ValueError("<two>")

    grid = fit(some_fail, {"x": tune.grid_search(range(12)), "same": "for all"}, metric="score", mode="max")
    head, names, *rows, rest = repr(grid).splitlines()
    assert head == f"ResultGrid(12 trials, 11 terminated, 1 failed, in {grid.experiment_path})"
    assert names.split() == ["trial", "status", "score", "iteration", "x"]
    assert len(rows) == 10
    assert rows[0].split()[1:] == ["TERMINATED", "3.66667", "1", "11"]
    assert rest == "10 of 12 trials, best last score (max) first"
    html = grid._repr_html_()
    assert html.count("<tr>") == 11
    assert "3.66667" in html
    failed = grid[2]
    assert "status: ERROR (ValueError: <two>)" in repr(failed)
    assert "config: x=2, same=for all" in repr(failed)
    assert "&lt;two&gt;" in failed._repr_html_()
    assert "<two>" not in failed._repr_html_()


def test_everything_opens_after_a_move(fit, tmp_path):
    """Row 1.36: `mv` the folder, open it, compare."""
    grid = fit(saving, {"scores": tune.grid_search([[0.9, 0.1], [0.3, 0.5]])}, metric="score", mode="max")
    kept = [(result.metrics["score"], step_of(result.best_checkpoint)) for result in grid]
    moved = tmp_path / "elsewhere" / "deep"
    moved.parent.mkdir()
    shutil.move(grid.experiment_path, moved)
    back = ResultGrid.from_path(moved)
    assert [(result.metrics["score"], step_of(result.best_checkpoint)) for result in back] == kept
    assert all(result.path.startswith(str(moved)) for result in back)
    assert [len(result.history) for result in back] == [2, 2]
    analysis = tune.ExperimentAnalysis(moved)
    assert analysis.best_logdir.startswith(str(moved))
    assert step_of(analysis.best_checkpoint) == "2"
    assert tune.Result.from_path(back[1].path).metrics["score"] == 0.5
    assert [result.metrics["score"] for result in tune.Tuner.restore(moved, saving).get_results()] == [
        0.1,
        0.5,
    ]


def test_an_address_opens_on_another_machine(fit, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "here"))
    address = f"memory://{tmp_path.name}"
    fit(saving, {"scores": [0.9, 0.1]}, metric="score", mode="max", run={"storage_path": address})
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "there"))
    grid = ResultGrid.from_path(f"{address}/e")
    assert grid.experiment_path == str(tmp_path / "there" / "e")
    assert step_of(grid[0].best_checkpoint) == "1"
    memory = fsspec.filesystem("memory")
    analysis = tune.ExperimentAnalysis(f"/{tmp_path.name}/e", storage_filesystem=memory)
    assert analysis.best_result["score"] == 0.1
    trial = Path(grid[0].path).name
    assert tune.Result.from_path(f"{address}/e/{trial}/").metrics["score"] == 0.1
    with pytest.raises(StoreError, match=r"(holds|contains) no experiment"):
        ResultGrid.from_path(f"{address}/other")


def test_a_grid_travels_as_a_pickle(fit):
    grid = fit(saving, {"scores": [0.5]}, metric="score", mode="max")
    back = pickle.loads(pickle.dumps(grid))
    assert back[0].history == grid[0].history
    assert back.get_best_result() == grid.get_best_result()


def test_a_trial_that_never_ran_has_a_result(tmp_path):
    facts = {"seed": 1, "space": {}, "tune_config": {"metric": "loss", "mode": "min"}}
    with contextlib.closing(ExperimentStore.create(tmp_path / "e", facts)) as store:
        store.commit([ev.TrialAdded(Trial(f"t_{n}", n, {}, f"f_{n}", f"f_{n}")) for n in range(3)])
    grid = ResultGrid.from_path(tmp_path / "e")
    assert grid.num_unfinished == 3
    assert (grid[0].metrics, grid[0].history, grid[0].attempts, grid[0].checkpoint) == ({}, [], [], None)
    assert grid[0].best_metrics is None
    with pytest.raises(MetricError, match="nothing was reported"):
        grid.get_best_result()


class Failing(tune.Trainable):
    def setup(self, config):
        self.n = 0

    def step(self):
        self.n += 1
        if self.config["x"] == 1 and self.n == 2 and self.iteration == 1:
            raise ValueError("no luck")
        return {"loss": self.config["x"], "done": self.n >= 3}

    def save_checkpoint(self, folder):
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"] + 1


def test_attempts_and_their_ends(inline, fit):
    run = {
        "failure_config": tune.FailureConfig(max_failures=1),
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
    }
    results = fit(Failing, {"x": tune.grid_search([0, 1, 2])}, metric="loss", run=run)
    spans = results.timeline
    assert [span.started for span in spans] == sorted(span.started for span in spans)
    outcomes = {(span.trial_id[-1], span.attempt): span.outcome for span in spans}
    assert outcomes == {
        ("0", 0): "finished",
        ("1", 0): "failed",
        ("1", 1): "finished",
        ("2", 0): "finished",
    }
    assert all(span.ended >= span.started for span in spans)
    (axes,) = results.plot("timeline").axes
    assert axes.get_title(loc="left").startswith("3 trials on ")
    assert axes.get_title(loc="left").endswith(", 4 attempts")


def span(started, ended):
    return Span("t", 0, ("host", 1), started, ended, TrialStatus.TERMINATED, "finished", "finished")


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 0]),
        ([(0, 4), (1, 2), (2, 3), (2.5, 5)], [0, 1, 1, 2]),
        ([(0, None), (1, 2), (3, None), (4, 5)], [0, 1, 1, 2]),
    ],
)
def test_attempts_of_one_row_do_not_overlap(times, rows):
    assert lanes([span(*each) for each in times]) == rows
