"""Addresses that fail, hang or hold something else, and drivers killed in an upload: told, and mended."""

from __future__ import annotations

import logging
import shutil
import signal
import threading
from pathlib import Path

import fsspec
import pytest

from tests.conftest import eventually
from tests.tune import programs
from tests.tune.sync.failing_storage import LOCAL_ONLY, Fails, at, names, saving
from trainkit import tune
from trainkit.errors import ConfigError, StorageError, StoreError
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME

pytestmark = pytest.mark.usefixtures("inline", "results")


# --- when the address fails -----------------------------------------------------------------------


def test_what_fails_for_a_while_is_said_once_and_done_again(fit, tmp_path, results, caplog):
    fs = Fails()
    left = iter([True] * 4)
    fs.when = lambda path: next(left, False)
    with caplog.at_level(logging.WARNING, "trainkit.tune"):
        grid = fit(saving, num_samples=2, run=at(fs, tmp_path))
    assert caplog.text.count("the line is dead") == 1
    assert "trainkit retries" in caplog.text
    assert [result.status for result in grid] == ["TERMINATED"] * 2
    assert names(tmp_path / "there" / "e") == names(results / "e") - LOCAL_ONLY


def test_a_copy_that_cannot_be_completed_is_told_loudly(restore, tmp_path, results, monkeypatch):
    monkeypatch.setattr("trainkit.tune.sync.mirror.TRIES", 2)
    fs = Fails()
    fs.when = lambda path: "checkpoint_000002" in path
    fs.puts.clear()
    tuner = tune.Tuner(saving, run_config=tune.RunConfig(name="e", verbose=0, **at(fs, tmp_path)))
    with pytest.raises(StorageError, match="not complete: OSError: the line is dead") as caught:
        tuner.fit()
    assert str(results / "e") in str(caught.value)
    assert [result.status for result in tuner.get_results()] == ["TERMINATED"]  # no trial noticed
    with ExperimentReader(tmp_path / "there" / "e") as reader:  # as it was before, or not there yet
        assert [len(trial.checkpoints) for trial in reader.trials()] in ([], [0], [1], [2])
    fs.when = lambda path: False
    restore(saving, results / "e", run=at(fs, tmp_path))
    assert names(tmp_path / "there" / "e") == names(results / "e") - LOCAL_ONLY


def test_an_upload_that_hangs_is_given_up(fit, tmp_path):
    let_go = threading.Event()
    fs = Fails()
    fs.when = lambda path: "result.json" in path and not let_go.wait(60)
    with pytest.raises(StorageError, match=r"not copied within 0\.2 s"):
        fit(saving, run=at(fs, tmp_path, sync_config=tune.SyncConfig(sync_timeout=0.2)))
    let_go.set()
    assert eventually(lambda: not any(each.name == "trainkit-mirror" for each in threading.enumerate()))


def test_an_address_that_cannot_be_written_is_told_before_the_first_trial(fit, tmp_path):
    class ReadOnly(Fails):
        def pipe_file(self, path, value, **kwargs):
            raise PermissionError("no")

    with pytest.raises(StorageError, match="Nothing was started"):
        fit(lambda config: (tmp_path / "ran").touch(), run=at(ReadOnly(), tmp_path))
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "here").exists()


def test_an_experiment_goes_beside_the_one_that_an_address_holds(fit, results):
    run = {"storage_path": "memory://bucket"}
    fit(saving, run=run)
    shutil.rmtree(results)
    assert fit(saving, run=run).experiment_path == str(results / "e_2")
    for name in ("e", "e_2"):
        assert len(tune.Tuner.restore(f"memory://bucket/{name}", saving).get_results()) == 1


def test_a_local_folder_goes_before_its_copy_unless_that_went_on(fit, restore, results):
    run = {"storage_path": "memory://bucket"}
    fit(saving, run=run)
    shutil.copytree(results / "e", results / "old")
    restore(saving, "memory://bucket/e", num_samples=2)
    assert len(tune.Tuner.restore("memory://bucket/e", saving).get_results()) == 2
    shutil.rmtree(results / "e")
    (results / "old").rename(results / "e")
    with pytest.raises(ConfigError, match="older state"):
        tune.Tuner.restore("memory://bucket/e", saving)
    shutil.rmtree(results / "e")
    fit(saving, run={"storage_path": results})
    with pytest.raises(ConfigError, match="another experiment"):
        tune.Tuner.restore("memory://bucket/e", saving)


def test_a_damaged_copy_is_no_experiment(fit, results):
    fit(saving, run={"storage_path": "memory://bucket"})
    shutil.rmtree(results)
    fsspec.filesystem("memory").pipe_file("/bucket/e/experiment.sqlite", b"hello" * 100)
    assert not tune.Tuner.can_restore("memory://bucket/e")
    with pytest.raises(StoreError, match="not an experiment file"):
        tune.Tuner.restore("memory://bucket/e", saving)
    with pytest.raises(StoreError, match=r"(holds|contains) no experiment"):
        tune.Tuner.restore("memory://bucket/other", saving)
    assert not list(results.iterdir())


# --- kills ----------------------------------------------------------------------------------------

DRIVER = """
import os, signal, sys
import trainkit
from trainkit import tune
from tests.tune.sync.failing_storage import Fails, at, saving
from pathlib import Path

fs, puts = Fails(), 0

def when(path):
    global puts
    puts += 1
    if puts == int(sys.argv[2]):
        with open(path, "w") as half:  # the half of a file is there
            half.write("half")
        os.kill(os.getpid(), signal.SIGKILL)
    return False

fs.when = when
trainkit.init(engine="inline", num_cpus=2)
run = at(fs, Path(sys.argv[1]), name="e", verbose=0, sync_config=tune.SyncConfig(sync_period=0.001))
tune.Tuner(
    saving, tune_config=tune.TuneConfig(num_samples=2), run_config=tune.RunConfig(**run)
).fit()
"""


@pytest.mark.external
@pytest.mark.parametrize("put", [1, 4, 9, 14, 19, 25])
def test_a_driver_killed_in_an_upload_leaves_a_copy_to_go_on_with(restore, tmp_path, results, put):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    done = programs.run(script, tmp_path, put, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    there = tmp_path / "there" / "e"
    if not (there / FILENAME).exists():
        assert not tune.Tuner.can_restore(there)
        return
    # Another machine: nothing but the copy.
    shutil.rmtree(results)
    grid = restore(saving, there, storage_filesystem=Fails())
    assert [[row["step"] for row in result.history] for result in grid] == [[1, 2, 3, 4]] * 2
    assert names(there) - {name for name in names(there) if name.endswith(".partial")} == (
        names(results / "e") - LOCAL_ONLY
    )


def test_a_checkpoint_that_a_killed_driver_copied_and_did_not_commit_is_copied_anew(
    fit, restore, tmp_path, results
):
    mended = tmp_path / "mended"

    def trainable(config):
        if mended.exists():
            return saving(config)
        saving({"steps": 2})
        raise ValueError("not mended")

    (result,) = fit(trainable, run=at(Fails(), tmp_path))
    there = tmp_path / "there" / "e"
    mended.touch()
    stray = there / Path(result.path).name / "checkpoint_000002" / "step"
    stray.parent.mkdir()
    stray.write_text("9")
    # Another machine, whose first uploads fail.
    shutil.rmtree(results)
    fs = Fails()
    written = Path(result.path, "checkpoint_000002", "step")
    fs.when = lambda path: not Path(result.path, "checkpoint_000003").exists()
    run = at(fs, tmp_path, verbose=0, sync_config=tune.SyncConfig(sync_period=0.001))
    restore(trainable, there, storage_filesystem=fs, run=run, resume_errored=True)
    assert (written.read_text(), stray.read_text()) == ("3", "3")
