"""Experiments that Ray Tune wrote open read-only, without a pickle being loaded."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from trainkit import tune
from trainkit.errors import StoreError
from trainkit.tune.results.result_grid import ResultGrid


class Trap:
    """Whoever unpickles this has broken the promise."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def report(trial_id: str, iteration: int, config: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    """A line of `result.json` as Ray writes it, with the keys that it fills in."""
    return {
        **metrics,
        "timestamp": 1700000000 + iteration,
        "checkpoint_dir_name": None,
        "should_checkpoint": True,
        "done": False,
        "training_iteration": iteration,
        "trial_id": trial_id,
        "date": "2023-11-14_22-13-20",
        "time_this_iter_s": 1.0,
        "time_total_s": float(iteration),
        "pid": 4711,
        "hostname": "node",
        "node_ip": "10.0.0.1",
        "config": config,
        "time_since_restore": float(iteration),
        "iterations_since_restore": iteration,
        "experiment_tag": f"0_x={config['x']}",
    }


def write_trial(folder: Path, config: dict[str, Any], reports: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    (folder / "params.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    (folder / "params.pkl").write_bytes(pickle.dumps(Trap()))
    (folder / "result.json").write_text("".join(json.dumps(line) + "\n" for line in reports))


@pytest.fixture
def ray2(tmp_path) -> Path:
    """As Ray 2.7 to 2.60 leave it: three trials, one of which failed, one that never reported."""
    folder = tmp_path / "train_2023-11-14_22-13-19"
    trials = {"a1b2c_00000": {"x": 1, "net": {"width": 8}}, "a1b2c_00001": {"x": 2, "net": {"width": 16}}}
    for n, (trial_id, config) in enumerate(trials.items()):
        at = folder / f"train_{trial_id}_{n}_x={config['x']}_2023-11-14_22-13-20"
        reports = [
            report(trial_id, step, config, score=score, eval={"loss": -score})
            | {"checkpoint_dir_name": f"checkpoint_{step - 1:06d}"}
            for step, score in enumerate([[0.9, 0.1], [math.nan, 0.5]][n], 1)
        ]
        reports[-1]["done"] = n == 0
        write_trial(at, config, reports)
        for step in range(2):
            (at / f"checkpoint_{step:06d}").mkdir()
            (at / f"checkpoint_{step:06d}" / "model.pt").write_text(f"{trial_id} {step}")
    failed = folder / "train_a1b2c_00001_1_x=2_2023-11-14_22-13-20"
    (failed / "error.txt").write_text("Traceback (most recent call last):\n  ...\nValueError: too big\n")
    (failed / "error.pkl").write_bytes(pickle.dumps(Trap()))
    waiting = folder / "train_a1b2c_00002_2_x=3_2023-11-14_22-13-20"
    waiting.mkdir()
    (waiting / "params.json").write_text('{"x": 3, "net": {"width": 32}}')
    statuses = {"a1b2c_00000": "TERMINATED", "a1b2c_00001": "ERROR", "a1b2c_00002": "PENDING"}
    blob = pickle.dumps(Trap()).hex()
    state = {
        "trial_data": [
            [
                json.dumps(
                    {"trial_id": trial_id, "status": status, "trainable_name": "train", "storage": blob}
                ),
                json.dumps({"last_result": {"_type": "CLOUDPICKLE_FALLBACK", "value": blob}}),
            ]
            for trial_id, status in statuses.items()
        ],
        "runner_data": {"_iteration": 7},
        "stats": {"start_time": 1700000000.0},
    }
    (folder / "experiment_state-2023-11-14_22-13-19.json").write_text(json.dumps(state))
    for name in ("tuner.pkl", "trainable.pkl", "search_gen_state-2023-11-14_22-13-19.json"):
        (folder / name).write_bytes(pickle.dumps(Trap()))
    return folder


def test_an_experiment_of_ray_2(ray2):
    before = sorted(ray2.rglob("*"))
    grid = ResultGrid.from_path(ray2, metric="score", mode="max")
    assert [(result.trial_id, result.status) for result in grid] == [
        ("a1b2c_00000", "TERMINATED"),
        ("a1b2c_00001", "ERROR"),
        ("a1b2c_00002", "PENDING"),
    ]
    assert [result.config["x"] for result in grid] == [1, 2, 3]
    assert (grid.num_errors, grid.num_terminated, grid.num_unfinished) == (1, 1, 1)
    assert "ValueError: too big" in str(grid.errors[0])
    first = grid[0]
    assert (first.metrics["score"], first.best_metrics["score"]) == (0.1, 0.9)
    assert Path(first.best_checkpoint, "model.pt").read_text() == "a1b2c_00000 0"
    assert Path(first.checkpoint, "model.pt").read_text() == "a1b2c_00000 1"
    assert math.isnan(grid[1].history[0]["score"])
    assert grid[2].metrics == {}
    assert grid.get_best_result().config == {"x": 2, "net": {"width": 16}}
    assert grid.get_best_result(scope="all").config == {"x": 1, "net": {"width": 8}}
    assert (first.decisions, first.attempts) == ([], [])
    assert sorted(ray2.rglob("*")) == before  # nothing was written


def test_ways_to_open_it(ray2):
    pytest.importorskip("pandas")
    for path in (ray2, str(ray2), ray2 / "experiment_state-2023-11-14_22-13-19.json"):
        analysis = tune.ExperimentAnalysis(path, default_metric="score", default_mode="max")
        assert analysis.best_config["x"] == 2
    assert list(analysis.results_df["eval/loss"]) == [-0.1, -0.5]
    assert list(analysis.trial_dataframes["a1b2c_00000"]["config/net/width"]) == [8, 8]
    assert list(analysis.dataframe("score", "max")["score"]) == [0.9, 0.5]
    result = tune.Result.from_path(ray2 / "train_a1b2c_00000_0_x=1_2023-11-14_22-13-20")
    assert result.metrics["score"] == 0.1


def test_an_experiment_of_ray_1(tmp_path):
    """1.x: trials as texts under "checkpoints", checkpoint folders by iteration, no trial ids in names."""
    folder = tmp_path / "exp"
    config = {"x": 1}
    at = folder / "Trainable_abc12_00000_0_x=1_2021-06-01_10-00-00"
    reports = [report("abc12_00000", step, config, acc=acc) for step, acc in ((5, 0.7), (10, 0.6))]
    for line in reports:
        del line["checkpoint_dir_name"]
    reports[-1]["done"] = True
    write_trial(at, config, reports)
    for step in (5, 10):
        (at / f"checkpoint_{step:06d}").mkdir()
    state = {"checkpoints": [json.dumps({"trial_id": "abc12_00000", "status": "TERMINATED"})]}
    (folder / "experiment_state-2021-06-01_10-00-00.json").write_text(json.dumps(state))
    analysis = tune.Analysis(folder, default_metric="acc", default_mode="max")
    (trial,) = analysis.trials
    assert trial.status == "TERMINATED"
    assert analysis.best_checkpoint.path.endswith("checkpoint_000005")
    assert [value for _, value in analysis.get_trial_checkpoints_paths(trial)] == [0.7, 0.6]


def test_without_a_state_file_the_trials_tell(tmp_path):
    write_trial(tmp_path / "one", {"x": 1}, [report("t1", 1, {"x": 1}, acc=1) | {"done": True}])
    write_trial(tmp_path / "two", {"x": 2}, [report("t2", 1, {"x": 2}, acc=2)])
    (tmp_path / "two" / "result.json").open("a").write('{"acc": 3, "training_it')  # killed while writing
    grid = ResultGrid.from_path(tmp_path, metric="acc", mode="max")
    assert [(result.trial_id, result.status) for result in grid] == [("t1", "TERMINATED"), ("t2", "PENDING")]
    assert [len(result.history) for result in grid] == [1, 1]
    # A trial that went on from a checkpoint has told some iterations twice: the later line counts.
    lines = [report("t1", step, {"x": 1}, acc=acc) for step, acc in ((1, 1), (2, 2), (2, 5), (3, 6))]
    (tmp_path / "one" / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = ResultGrid.from_path(tmp_path)
    assert [line["acc"] for line in again[0].history] == [1, 5, 6]


def test_a_damaged_file_is_named(tmp_path):
    write_trial(tmp_path / "one", {"x": 1}, [report("t1", 1, {"x": 1}, acc=1)])
    (tmp_path / "one" / "result.json").write_text("not json\n")
    with pytest.raises(StoreError, match=r"one/result\.json is not JSON as Ray Tune writes it"):
        ResultGrid.from_path(tmp_path)
    (tmp_path / "one" / "result.json").write_text("[1]\n")
    with pytest.raises(StoreError, match="holds list, not an object"):
        ResultGrid.from_path(tmp_path)
    with pytest.raises(StoreError, match=r"has no experiment"):
        ResultGrid.from_path(tmp_path / "one" / "result.json")
