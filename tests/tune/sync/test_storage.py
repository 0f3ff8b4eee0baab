"""Experiments at addresses: copied as they are written, whole when fit returns, and mended after faults."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests.conftest import eventually
from tests.tune import programs
from tests.tune.sync.failing_storage import LOCAL_ONLY, Fails, at, names, saving
from trainkit import tune
from trainkit.errors import ConfigError, StorageError, StoreError
from trainkit.tune.store.commands import leave_command
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME
from trainkit.tune.sync import storage
from trainkit.tune.sync.mirror import Mirror
from trainkit.tune.sync.storage import Address, locate

pytestmark = pytest.mark.usefixtures("inline", "results")


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
def test_an_experiment_is_restored_from_its_copy_alone(fit, restore, results, address):
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
    given = {"storage_filesystem": fs, "param_space": longer, "resume_finished": True}
    again = restore(saving, copy, num_samples=2, **given)
    # The old trial's configuration stands, and its checkpoint was read: it has nothing left to do.
    assert [row["step"] for row in again[0].history] == [1, 2, 3, 4]
    assert [row["step"] for row in again[1].history] == [1, 2, 3, 4, 5, 6]
    shutil.rmtree(results)
    last = tune.Tuner.restore(copy, saving, storage_filesystem=fs).get_results()
    assert [result.history for result in last] == [result.history for result in again]


def test_a_trial_goes_on_from_a_checkpoint_that_was_copied_back(fit, restore, tmp_path, results):
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
    again = restore(trainable, "memory://bucket/e", resume_errored=True, param_space={"steps": 5})
    assert again.num_errors == 0
    assert again[0].metrics["step"] == 4
    assert again[0].checkpoint is not None


def test_the_log_has_the_time_of_each_upload_of_a_checkpoint(fit, caplog):
    caplog.set_level(logging.INFO, "trainkit.tune")
    [result] = fit(saving, run={"storage_path": "memory://bucket"})
    uploads = [line for line in caplog.messages if line.startswith("uploaded ")]
    trial, last = Path(result.checkpoint.path).parts[-2:]
    assert any(re.fullmatch(rf"uploaded {trial}/{last}: \d+\.\d MB in \d+\.\d\d s", line) for line in uploads)
    assert len(uploads) == len({line.split(":")[0] for line in uploads})  # no checkpoint is uploaded twice


def test_a_file_address_is_a_local_folder(fit, tmp_path, results):
    grid = fit(saving, run={"storage_path": f"file://{tmp_path}/plain"})
    assert grid.experiment_path == str(tmp_path / "plain" / "e")
    assert not results.exists()
    assert tune.Tuner.can_restore(f"file://{tmp_path}/plain/e")
    assert len(tune.Tuner.restore(f"file://{tmp_path}/plain/e", saving).get_results()) == 1


def test_a_restore_from_the_local_folder_goes_on_copying(fit, restore, results):
    fit(saving, run={"storage_path": "memory://bucket"})
    restore(saving, results / "e", num_samples=2)
    shutil.rmtree(results)
    assert len(tune.Tuner.restore("memory://bucket/e", saving).get_results()) == 2


def test_a_file_system_that_no_file_can_hold_is_asked_for_again(fit, restore, tmp_path, results):
    fs = Fails()
    fit(saving, run=at(fs, tmp_path))
    with pytest.raises(ConfigError, match=r"storage_filesystem=Fails\(...\)"):
        tune.Tuner.restore(results / "e", saving)
    restore(saving, results / "e", run=at(fs, tmp_path), num_samples=2)
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


def test_a_store_is_never_copied_before_its_checkpoints(fit, tmp_path):
    """Whenever it is looked at, every checkpoint that the copied store names is there whole."""
    seen, there = [], tmp_path / "there" / "e"

    class Looks(Fails):
        def mv(self, path1, path2, **kwargs):
            super().mv(path1, path2, **kwargs)
            with ExperimentReader(there) as reader:
                for trial in reader.trials():
                    for kept in trial.checkpoints:
                        text = (there / trial.dirname / kept.dirname / "step").read_text()
                        seen.append(int(text) == kept.iteration)

    def named(trial_id: str) -> int:
        """The latest checkpoint of a trial that the copied store names."""
        if not (there / FILENAME).exists():
            return 0
        with ExperimentReader(there) as reader:
            kept = {trial.trial_id: trial.checkpoints for trial in reader.trials()}
        return max((each.iteration for each in kept.get(trial_id, ())), default=0)

    class Unhurried(tune.Trainable):
        """Goes on when its checkpoint is copied, three times; then as fast as it can, while copies are made.

        It asks the copy itself: a trial has a copy of `seen` of its own, which stays empty.
        """

        def step(self):
            if 1 <= self.iteration <= 3 and not eventually(lambda: named(self.trial_id) == self.iteration):
                raise TimeoutError(f"checkpoint {self.iteration} is not copied")
            return {"done": self.iteration == 9}

        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "step").write_text(str(self.iteration))

    keep = tune.CheckpointConfig(num_to_keep=1, checkpoint_frequency=1)
    run = at(Looks(), tmp_path, checkpoint_config=keep, sync_config=tune.SyncConfig(sync_period=0.001))
    assert fit(Unhurried, num_samples=2, run=run).num_errors == 0
    assert len(seen) >= 6  # three of each trial
    assert all(seen)


def test_a_checkpoint_that_goes_while_it_is_copied_is_copied_all_the_same(fit, tmp_path, results):
    copied = []

    class Drops(Fails):
        def put_file(self, lpath, rpath, **kwargs):
            is_checkpoint = rpath.endswith("checkpoint_000000/step")
            for folder in (results / "e").glob("*/checkpoint_000000") if is_checkpoint else []:
                shutil.rmtree(folder)
            super().put_file(lpath, rpath, **kwargs)
            if is_checkpoint:  # looked at here, as a further round finds it gone and removes the copy too
                copied.append(Path(rpath).read_text())

    fit(saving, {"steps": 1}, run=at(Drops(), tmp_path))
    assert copied == ["1"]


def test_commands_stay_with_the_one_that_runs_the_experiment(fit, restore, tmp_path, results):
    def trainable(config):
        (results / "e" / "commands").mkdir(exist_ok=True)
        (results / "e" / "commands" / "left").touch()
        return {"loss": 1.0}

    fit(trainable, run=at(Fails(), tmp_path))
    there = tmp_path / "there" / "e"
    assert (results / "e" / "commands" / "left").exists()
    assert not (there / "commands").exists()
    leave_command(there, "stop", {}, "ann")  # as a copy of before has it
    shutil.rmtree(results)
    restore(trainable, there, storage_filesystem=Fails())
    assert (results / "e" / FILENAME).exists()
    assert not (results / "e" / "commands").exists()


def test_a_mirror_copies_nothing_twice(tmp_path):
    """Files that haven't changed are not uploaded again, nor checkpoints that are there from before."""
    fs = Fails()
    run = tune.RunConfig(name="e", verbose=0, **at(fs, tmp_path))
    tune.Tuner(saving, run_config=run).fit()
    first = [path for path in fs.puts if not path.endswith("sqlite.partial")]
    assert sum("checkpoint_" in path for path in first) == 4
    fs.puts.clear()
    there = Address(fs, str(tmp_path / "there" / "e"))
    mirror = Mirror(tmp_path / "here" / "e", there, tune.SyncConfig(sync_period=0.01), print)
    mirror.check(new=False)
    with mirror.running():
        assert eventually(lambda: any("sqlite" in path for path in fs.puts))
        before = len(fs.puts)
        time.sleep(0.05)
    assert not any("checkpoint_" in path for path in fs.puts)
    assert len(fs.puts) <= before + 1  # the store once more at the end, at most


@pytest.mark.parametrize("kind", ["subtree", "of fsspec"])
def test_a_file_system_of_pyarrow_is_one_of_fsspec(fit, tmp_path, results, kind):
    fs = pytest.importorskip("pyarrow.fs")
    given, path = {
        "subtree": (fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "there"),
        "of fsspec": (fs.PyFileSystem(fs.FSSpecHandler(LocalFileSystem())), str(tmp_path / "there")),
    }[kind]
    fit(saving, {"steps": 2}, run={"storage_path": path, "storage_filesystem": given})
    assert len(list((tmp_path / "there" / "e").glob("*/checkpoint_*"))) == 2
    shutil.rmtree(results / "e")
    again = tune.Tuner.restore(f"{path}/e", saving, storage_filesystem=given)
    assert again.get_results()[0].metrics["training_iteration"] == 2


def test_bad_places_are_named():
    with pytest.raises(ConfigError, match="nonsense://x"):
        locate("nonsense://x")
    with pytest.raises(ConfigError, match="not a file system of fsspec or pyarrow"):
        locate("/x", object())
    with pytest.raises(ConfigError, match="needs storage_path"):
        tune.Tuner(saving, run_config=tune.RunConfig(storage_filesystem=MemoryFileSystem()))


# --- folders on network file systems --------------------------------------------------------------

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
41 27 0:51 / /mnt/cifs rw - cifs //server/share rw
42 27 0:52 / /mnt/s3 rw - fuse.s3fs s3fs rw
43 27 0:53 / /mnt/disk rw - fuseblk /dev/sdb1 rw
44 27 0:54 / /layers rw - fuse.fuse-overlayfs fuse-overlayfs rw
45 27 0:55 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("minor", "kind"),
    [(50, "nfs4"), (51, "cifs"), (52, "fuse.s3fs"), (53, None), (54, None), (55, None), (99, None)],
)
def test_a_network_file_system_is_told_by_its_mount(minor, kind):
    assert storage.network_file_system(MOUNTS, os.makedev(0, minor)) == kind


@pytest.fixture
def network(monkeypatch, tmp_path):
    """A folder that passes for one of an NFS server's."""
    folder = tmp_path / "nfs"
    monkeypatch.setattr(storage, "_network", lambda path: "nfs4" if path.is_relative_to(folder) else None)
    return folder


def test_an_experiment_on_a_network_drive_is_written_locally_and_copied(fit, network, results, caplog):
    for name in ("e", "f"):
        grid = fit(saving, run={"name": name, "storage_path": str(network)})
        assert Path(grid.experiment_path) == results / name
    (said,) = [each.getMessage() for each in caplog.records if "network" in each.getMessage()]
    assert "(nfs4)" in said and str(results) in said
    assert names(network / "e") == names(results / "e") - LOCAL_ONLY
    assert len(tune.ResultGrid.from_path(network / "e")) == 1
    fit(saving, run={"name": "e", "storage_path": f"file://{network}/as_asked"})
    assert (network / "as_asked" / "e" / FILENAME).exists()


@pytest.mark.parametrize("lost", [True, False])
def test_a_restore_finds_an_experiment_on_a_network_drive(fit, restore, network, results, lost):
    fit(saving, run={"storage_path": str(network)})
    if lost:  # the disk was another machine's
        shutil.rmtree(results)
    again = restore(saving, network / "e", num_samples=2)
    assert Path(again.experiment_path) == results / "e"
    assert len(tune.ResultGrid.from_path(network / "e")) == len(again) == 2


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
