"""A folder that is moved, damaged or used by two: what a restore makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trainkit
from tests.conftest import eventually
from tests.tune import pausing
from tests.tune.experiment.steered import Driver
from trainkit import tune
from trainkit.errors import StoreError
from trainkit.tune.store.reader import ExperimentReader

pytestmark = pytest.mark.usefixtures("inline")


def saving(config):
    for step, saved in pausing.steps(4):
        tune.report({"step": step, "loss": config["x"] / step}, checkpoint=saved)
        if step == 3 and not Path(config["lucky"]).exists():
            raise RuntimeError("not yet")


@pytest.fixture
def space(tmp_path) -> dict:
    return {"x": tune.uniform(0, 1), "lucky": str(tmp_path / "lucky")}


def steps(grid) -> list[list[int]]:
    return [[row["step"] for row in result.history] for result in grid]


# --- row 1.36 -------------------------------------------------------------------------------------


def test_a_moved_experiment_is_the_same_one(fit, tmp_path, space):
    """Row 1.36: mv the folder, restore, compare."""
    (tmp_path / "lucky").touch()
    whole = fit(saving, space, num_samples=2, seed=1, run={"name": "whole"})
    (tmp_path / "lucky").unlink()
    fit(saving, space, num_samples=2, seed=1)
    (tmp_path / "lucky").touch()
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "e", tmp_path / "elsewhere" / "moved")
    folder = tmp_path / "elsewhere" / "moved"
    assert tune.Tuner.can_restore(folder)
    again = tune.Tuner.restore(folder, saving, resume_errored=True).fit()
    assert [result.config for result in again] == [result.config for result in whole]
    assert steps(again) == steps(whole) == [[1, 2, 3, 4]] * 2
    assert [row["iterations_since_restore"] for row in again[0].history] == [
        1,
        2,
        3,
        1,
    ]  # its checkpoint was read
    for result in again:
        assert Path(result.path).parent == folder
        assert all(Path(kept.path).parent.parent == folder for kept, _ in result.best_checkpoints)
    assert not (tmp_path / "e").exists()
    for path in folder.rglob("*"):  # nothing in it says where it was
        if path.is_file() and path.suffix not in (".sqlite",):
            assert str(tmp_path / "e").encode() not in path.read_bytes()


def test_a_copied_experiment_is_one_of_its_own(fit, restore, tmp_path, space):
    (tmp_path / "lucky").touch()
    grid = fit(saving, space)
    shutil.copytree(tmp_path / "e", tmp_path / "copy")
    more = restore(saving, "copy", num_samples=3)
    assert len(more) == 3
    assert len(tune.Tuner.restore(tmp_path / "e", saving).get_results()) == len(grid) == 1


@pytest.mark.external
def test_a_second_live_run_of_one_name_goes_beside_the_first(fit, restore, tmp_path):
    """Row 1.36: it takes a folder of its own; a restore names the pid that has the first, which is read."""
    driver = Driver(tmp_path)
    driver.start()
    try:
        assert eventually(lambda: driver.has_begun)
        assert fit(lambda config: 1.0).experiment_path == str(tmp_path / "e_2")
        with pytest.raises(StoreError, match=f"in use by the process with pid {driver.process.pid}"):
            restore(lambda config: 1.0)
        seen = 0
        for read in (
            tune.ResultGrid.from_path,
            lambda folder: tune.Tuner.restore(folder, saving).get_results(),
        ):
            grid = read(tmp_path / "e")
            assert (grid[0].status, grid.num_unfinished) == ("RUNNING", 2)
            counts = [report["n"] for report in grid[0].history]
            assert counts == list(range(1, len(counts) + 1))
            assert len(counts) >= grid[0].metrics["n"] > seen
            seen = grid[0].metrics["n"]
            assert eventually(lambda seen=seen: driver.reports(0) > seen), "it goes on"
    finally:
        driver.kill()
    restore(lambda config: 1.0, run={"stop": {"training_iteration": 1}})  # its lock died with it


# --- row 1.11 -------------------------------------------------------------------------------------

AT_HOME = """
import sys
import trainkit
from trainkit import tune

def trainable(config):
    tune.report({"loss": config["x"]})

tune.Tuner(
    trainable,
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(num_samples=2),
    run_config=tune.RunConfig(storage_path=sys.argv[1], name="e", verbose=0),
).fit()
trainkit.shutdown()
"""


@pytest.mark.external
def test_every_new_file_is_in_the_experiments_folder(tmp_path):
    """Row 1.11: with HOME and TMPDIR empty, after fit() every new file is under storage_path/name."""
    for name in ("home", "tmp", "run", "store"):
        (tmp_path / name).mkdir()
    script = tmp_path / "at_home.py"
    script.write_text(AT_HOME)
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINKIT_", "XDG_"))}
    mine |= {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(Path(trainkit.__file__).parents[1]),
        "TRAINKIT_TEST_RUN": os.environ.get("TRAINKIT_TEST_RUN", ""),
    }
    subprocess.run(
        [sys.executable, script, tmp_path / "store"], env=mine, cwd=tmp_path / "run", timeout=300, check=True
    )
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["e"]
    for name in ("home", "tmp", "run"):
        assert not [path for path in (tmp_path / name).rglob("*") if path.is_file()]


# --- what is missing or damaged -------------------------------------------------------------------


def test_a_trial_folder_that_was_deleted_costs_its_checkpoints_only(fit, restore, tmp_path, space):
    grid = fit(saving, space, num_samples=2)
    assert grid.num_errors == 2
    shutil.rmtree(grid[0].path)
    (tmp_path / "lucky").touch()
    again = restore(saving, resume_errored=True)
    assert steps(again) == [[1, 2, 3, 4]] * 2
    assert [row["iterations_since_restore"] for row in again[0].history] == [1, 2, 3, 4]  # from the beginning
    assert [row["iterations_since_restore"] for row in again[1].history] == [1, 2, 3, 1]  # from step 3
    with ExperimentReader(tmp_path / "e") as reader:
        assert [kept.number for kept in reader.trials()[0].checkpoints] == [3, 4, 5, 6]


def test_a_checkpoint_that_was_deleted_is_not_gone_on_from(fit, restore, tmp_path, space):
    grid = fit(saving, space)
    shutil.rmtree(Path(grid[0].path, "checkpoint_000002"))
    (tmp_path / "lucky").touch()
    again = restore(saving, resume_errored=True)
    assert steps(again) == [[1, 2, 3, 4]]
    assert [row["iterations_since_restore"] for row in again[0].history] == [1, 2, 1, 2]
    with ExperimentReader(tmp_path / "e") as reader:
        noted = list(reader._rows("SELECT kind, detail FROM events WHERE kind = 'checkpoint lost'"))
    assert noted == [("checkpoint lost", f"checkpoint_000002 is not in {grid[0].path}")]


def test_a_damaged_checkpoint_fails_its_trial_alone(fit, restore, tmp_path, space):
    """What a file means only the trainable knows: its error is told, and the one before it will do."""
    grid = fit(saving, space, num_samples=2)
    Path(grid[0].path, "checkpoint_000002", "step").write_text("garbage")
    (tmp_path / "lucky").touch()
    again = restore(saving, resume_errored=True)
    assert [result.status for result in again] == ["ERROR", "TERMINATED"]
    assert "garbage" in str(again[0].error)
    shutil.rmtree(Path(grid[0].path, "checkpoint_000002"))
    last = restore(saving, resume_errored=True)
    assert steps(last) == [[1, 2, 3, 4]] * 2
