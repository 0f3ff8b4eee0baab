"""Experiments at addresses: copied there as they are written, whole when fit returns, restored from there."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import trainkit
from tests.conftest import eventually
from trainkit import tune
from trainkit.errors import ConfigError, MissingDependencyError, StorageError, StoreError
from trainkit.tune.history import ExperimentReader
from trainkit.tune.mirror import Mirror
from trainkit.tune.schema import FILENAME
from trainkit.tune.storage import Address, locate

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch) -> Path:
    """Where experiments that are copied elsewhere are written."""
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "here"))
    yield tmp_path / "here"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def saving(config):
    """Four reports, each with a checkpoint and a file of its own."""
    checkpoint = tune.get_checkpoint()
    start = int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
    trial_dir = Path(tune.get_context().get_trial_dir())
    (trial_dir / "scratch").mkdir(exist_ok=True)
    for step in range(start + 1, config.get("steps", 4) + 1):
        (trial_dir / "scratch" / "step").write_text(str(step))
        (trial_dir / "notes.txt").write_text(f"step {step}")
        tune.report({"step": step}, checkpoint=tune.Checkpoint(trial_dir / "scratch"))
        (trial_dir / "last.txt").write_text(str(step))


class Fails(LocalFileSystem):
    """A folder of this machine as a file system that raises when it is told to."""

    protocol = "fails"
    cachable = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.when = lambda path: False
        self.puts: list[str] = []

    def put_file(self, lpath, rpath, **kwargs):
        self.puts.append(rpath)
        if self.when(rpath):
            raise OSError("the line is dead")
        super().put_file(lpath, rpath, **kwargs)


def at(fs, tmp_path: Path, **more) -> dict:
    return {"storage_path": str(tmp_path / "there"), "storage_filesystem": fs, **more}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


LOCAL_ONLY = {"experiment.lock", "experiment.sqlite-wal", "experiment.sqlite-shm"}

# --- a copy ---------------------------------------------------------------------------------------


def test_the_copy_is_complete_when_fit_returns(fit, tmp_path, results):
    keep = tune.CheckpointConfig(num_to_keep=2)
    fit(saving, num_samples=3, run=at(Fails(), tmp_path, checkpoint_config=keep))
    here, there = results / "e", tmp_path / "there" / "e"
    assert names(there) == names(here) - LOCAL_ONLY
    for name in names(there) - {FILENAME}:
        assert (there / name).read_bytes() == (here / name).read_bytes(), name
    assert not (here / ".mirror").exists()
    assert len([path for path in there.glob("*/checkpoint_*") if path.is_dir()]) == 6  # deletions too
    with ExperimentReader(here) as reader, ExperimentReader(there) as copied:
        assert list(copied.log()) == list(reader.log())
        assert copied.trials() == reader.trials()
    with closing(sqlite3.connect(there / FILENAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not any(thread.name == "trainkit-mirror" for thread in threading.enumerate())


@pytest.mark.parametrize("address", ["memory://bucket/experiments", "memory"])
def test_an_experiment_is_restored_from_its_copy_alone(fit, results, address):
    fs = fsspec.filesystem("memory") if address == "memory" else None
    root = "/bucket/experiments" if fs else address
    grid = fit(saving, {"x": tune.uniform(0, 1)}, run={"storage_path": root, "storage_filesystem": fs})
    assert Path(grid.experiment_path) == results / "e"
    shutil.rmtree(results)
    copy = f"{root}/e"
    assert tune.Tuner.can_restore(copy, fs)
    assert not tune.Tuner.can_restore(f"{root}/nothing", fs)
    tuner = tune.Tuner.restore(copy, saving, storage_filesystem=fs)
    assert [result.history for result in tuner.get_results()] == [result.history for result in grid]
    assert tuner.get_results()[0].checkpoint is not None

    longer = {"x": tune.uniform(0, 1), "steps": 6}
    again = tune.Tuner.restore(
        copy,
        saving,
        storage_filesystem=fs,
        param_space=longer,
        resume_finished=True,
        tune_config=tune.TuneConfig(num_samples=2),
    ).fit()
    # The old trial's configuration stands, and its checkpoint was read: it has nothing left to do.
    assert [row["step"] for row in again[0].history] == [1, 2, 3, 4]
    assert [row["step"] for row in again[1].history] == [1, 2, 3, 4, 5, 6]
    shutil.rmtree(results)
    last = tune.Tuner.restore(copy, saving, storage_filesystem=fs).get_results()
    assert [result.history for result in last] == [result.history for result in again]


def test_a_trial_goes_on_from_a_checkpoint_that_was_copied_back(fit, tmp_path, results):
    def trainable(config):
        if not (tmp_path / "lucky").exists() and tune.get_checkpoint() is not None:
            raise RuntimeError("not yet")
        saving(config)
        if not (tmp_path / "lucky").exists():
            raise RuntimeError("not yet")

    run = {"storage_path": "memory://bucket"}
    assert fit(trainable, run=run).num_errors == 1
    shutil.rmtree(results)
    (tmp_path / "lucky").touch()
    space = {"steps": 5}
    again = tune.Tuner.restore("memory://bucket/e", trainable, resume_errored=True, param_space=space).fit()
    assert again.num_errors == 0
    assert again[0].metrics["step"] == 4
    assert again[0].checkpoint is not None


def test_a_file_address_is_a_local_folder(fit, tmp_path, results):
    grid = fit(saving, run={"storage_path": f"file://{tmp_path}/plain"})
    assert grid.experiment_path == str(tmp_path / "plain" / "e")
    assert not results.exists()
    assert tune.Tuner.can_restore(f"file://{tmp_path}/plain/e")
    assert len(tune.Tuner.restore(f"file://{tmp_path}/plain/e", saving).get_results()) == 1


def test_a_restore_from_the_local_folder_goes_on_copying(fit, results):
    fit(saving, run={"storage_path": "memory://bucket"})
    more = tune.TuneConfig(num_samples=2)
    tune.Tuner.restore(results / "e", saving, tune_config=more).fit()
    shutil.rmtree(results)
    assert len(tune.Tuner.restore("memory://bucket/e", saving).get_results()) == 2


def test_a_file_system_that_no_file_can_hold_is_asked_for_again(fit, tmp_path, results):
    fs = Fails()
    fit(saving, run=at(fs, tmp_path))
    with pytest.raises(ConfigError, match=r"storage_filesystem=Fails\(...\)"):
        tune.Tuner.restore(results / "e", saving)
    run = tune.RunConfig(**at(fs, tmp_path))
    tune.Tuner.restore(
        results / "e", saving, run_config=run, tune_config=tune.TuneConfig(num_samples=2)
    ).fit()
    with ExperimentReader(tmp_path / "there" / "e") as reader:
        assert len(reader.trials()) == 2
    text = (tmp_path / "there" / "e" / FILENAME).read_bytes()
    assert b"Fails" in text  # its name, and nothing that it was made with


def test_without_artifacts_only_what_is_ours_is_copied(fit, tmp_path):
    fit(saving, run=at(Fails(), tmp_path, sync_config=tune.SyncConfig(sync_artifacts=False)))
    (trial,) = (path for path in (tmp_path / "there" / "e").iterdir() if path.is_dir())
    assert {path.name for path in trial.iterdir() if path.is_file()} >= {"params.json", "result.json"}
    assert not (trial / "notes.txt").exists()
    assert not (trial / "scratch").exists()
    assert len(list(trial.glob("checkpoint_*"))) == 4


# --- while it runs --------------------------------------------------------------------------------


def test_the_copy_lags_no_more_than_it_may(fit, tmp_path):
    def trainable(config):
        for step in range(1, 13):
            there = tmp_path / "there" / "e"
            seen = 0
            if (there / FILENAME).exists():  # whole, whenever it is read
                with ExperimentReader(there) as reader:
                    seen = sum(trial.iteration for trial in reader.trials())
            tune.report({"step": step, "seen": seen})
            time.sleep(0.03)

    grid = fit(trainable, run=at(Fails(), tmp_path, sync_config=tune.SyncConfig(sync_period=0.05)))
    seen = [row["seen"] for row in grid[0].history]
    assert seen == sorted(seen)
    assert 0 < seen[-1] < 12


def test_a_store_is_never_copied_before_its_checkpoints(fit, tmp_path):
    """Whenever it is looked at, every checkpoint that the copied store names is there whole."""
    seen = []

    class Looks(Fails):
        def mv(self, path1, path2, **kwargs):
            super().mv(path1, path2, **kwargs)
            there = Path(path2).parent
            with ExperimentReader(there) as reader:
                for trial in reader.trials():
                    for kept in trial.checkpoints:
                        text = (there / trial.dirname / kept.dirname / "step").read_text()
                        seen.append(int(text) == kept.iteration)

    keep = tune.CheckpointConfig(num_to_keep=1)
    run = at(Looks(), tmp_path, checkpoint_config=keep, sync_config=tune.SyncConfig(sync_period=0.001))
    fit(saving, {"steps": 30}, num_samples=2, run=run)
    assert len(seen) > 2
    assert all(seen)


def test_a_checkpoint_that_goes_while_it_is_copied_is_copied_all_the_same(fit, tmp_path, results):
    def drop_locally(path):
        if path.endswith("checkpoint_000000/step"):
            for folder in (results / "e").glob("*/checkpoint_000000"):
                shutil.rmtree(folder)
        return False

    fs = Fails()
    fs.when = drop_locally
    fit(saving, {"steps": 1}, run=at(fs, tmp_path))
    (copied,) = (tmp_path / "there" / "e").glob("*/checkpoint_000000/step")
    assert copied.read_text() == "1"


# --- when the address fails -----------------------------------------------------------------------


def test_what_fails_for_a_while_is_said_once_and_done_again(fit, tmp_path, results, caplog):
    fs = Fails()
    left = iter([True] * 4)
    fs.when = lambda path: next(left, False)
    with caplog.at_level(logging.WARNING, "trainkit.tune"):
        grid = fit(saving, num_samples=2, run=at(fs, tmp_path))
    assert caplog.text.count("the line is dead") == 1
    assert "tried again" in caplog.text
    assert [result.status for result in grid] == ["TERMINATED"] * 2
    assert names(tmp_path / "there" / "e") == names(results / "e") - LOCAL_ONLY


def test_a_copy_that_cannot_be_completed_is_told_loudly(fit, tmp_path, results, monkeypatch):
    monkeypatch.setattr("trainkit.tune.mirror.TRIES", 2)
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
    run = tune.RunConfig(**at(fs, tmp_path))
    tune.Tuner.restore(results / "e", saving, run_config=run).fit()
    assert names(tmp_path / "there" / "e") == names(results / "e") - LOCAL_ONLY


def test_an_upload_that_hangs_is_given_up(fit, tmp_path):
    let_go = threading.Event()
    fs = Fails()
    fs.when = lambda path: "result.json" in path and not let_go.wait(10)
    with pytest.raises(StorageError, match=r"not after 0\.2 s"):
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


def test_an_address_that_holds_an_experiment_is_refused(fit, results):
    run = {"storage_path": "memory://bucket"}
    fit(saving, run=run)
    shutil.rmtree(results)
    with pytest.raises(ConfigError, match="memory:///bucket/e already holds an experiment"):
        fit(saving, run=run)


def test_a_local_folder_goes_before_its_copy_unless_that_went_on(fit, results):
    run = {"storage_path": "memory://bucket"}
    fit(saving, run=run)
    shutil.copytree(results / "e", results / "old")
    tune.Tuner.restore("memory://bucket/e", saving, tune_config=tune.TuneConfig(num_samples=2)).fit()
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
    with pytest.raises(StoreError, match="holds no experiment"):
        tune.Tuner.restore("memory://bucket/other", saving)
    assert not list(results.iterdir())


def test_bad_places_are_named():
    with pytest.raises(ConfigError, match="nonsense://x"):
        locate("nonsense://x")
    with pytest.raises(ConfigError, match="ArrowFSWrapper"):
        locate("/x", object())
    with pytest.raises(ConfigError, match="needs storage_path"):
        tune.Tuner(saving, run_config=tune.RunConfig(storage_filesystem=MemoryFileSystem()))


@pytest.mark.skipif(shutil.which("s3fs") is not None, reason="s3fs is installed")
def test_what_an_address_needs_is_said():
    pytest.importorskip("fsspec")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependencyError, match="s3fs"):
            tune.Tuner(saving, run_config=tune.RunConfig(storage_path="s3://bucket/x"))


# --- kills ----------------------------------------------------------------------------------------

DRIVER = """
import os, signal, sys
import trainkit
from trainkit import tune
from tests.tune.test_storage import Fails, at, saving
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


@pytest.mark.parametrize("put", [1, 4, 9, 14, 19, 25])
def test_a_driver_killed_in_an_upload_leaves_a_copy_to_go_on_with(tmp_path, results, put):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, script, tmp_path, str(put)],
        env={**os.environ, "PYTHONPATH": str(Path(trainkit.__file__).parents[1])},
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL)
    there = tmp_path / "there" / "e"
    if not (there / FILENAME).exists():
        assert not tune.Tuner.can_restore(there)
        return
    # Another machine: nothing but the copy.
    shutil.rmtree(results)
    fs = Fails()
    grid = tune.Tuner.restore(str(there), saving, storage_filesystem=fs).fit()
    assert [[row["step"] for row in result.history] for result in grid] == [[1, 2, 3, 4]] * 2
    assert names(there) - {name for name in names(there) if name.endswith(".partial")} == (
        names(results / "e") - LOCAL_ONLY
    )


def test_a_mirror_copies_nothing_twice(tmp_path):
    """Files that haven't changed are not uploaded again, nor checkpoints that are there from before."""
    fs = Fails()
    trainkit.init(engine="inline", num_cpus=1, ignore_reinit_error=True)
    run = tune.RunConfig(name="e", verbose=0, **at(fs, tmp_path))
    tune.Tuner(saving, run_config=run).fit()
    first = [path for path in fs.puts if not path.endswith("sqlite.partial")]
    assert sum("checkpoint_" in path for path in first) == 4
    fs.puts.clear()
    mirror = Mirror(
        tmp_path / "here" / "e", Address(fs, str(tmp_path / "there" / "e")), tune.SyncConfig(sync_period=0.01)
    )
    mirror.check(new=False)
    with mirror.running():
        assert eventually(lambda: any("sqlite" in path for path in fs.puts))
        before = len(fs.puts)
        time.sleep(0.05)
    assert not any("checkpoint_" in path for path in fs.puts)
    assert len(fs.puts) <= before + 1  # the store once more at the end, at most
