"""A disk that is full, or can't be written: a clean error, nothing lost, and a restore goes on."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainkit import tune
from trainkit.errors import CheckpointError, StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.checkpoint import advice, is_full, largest_folders, megabytes
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.writer import ExperimentStore

pytestmark = pytest.mark.usefixtures("inline")


@contextmanager
def mounted(folder: Path, *options: object) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(["mount", *map(str, options), folder], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("mounting takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1.5 MB."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1536k", "tmpfs") as folder:
        yield folder


def long_story(config):
    for step in range(400):
        tune.report({"step": step, "text": "x" * 4000})


@pytest.mark.external
def test_a_full_disk_ends_the_run_cleanly_and_is_gone_on_with(fit, small_disk):
    """Row 1.10: it stops cleanly, stays restorable, and the message names the largest folders."""
    Path(small_disk, "e", "ballast").mkdir(parents=True)
    Path(small_disk, "e", "ballast", "file").write_bytes(b"x" * 400_000)
    with pytest.raises(StoreError, match="The disk is full") as caught:
        fit(long_story, run={"storage_path": small_disk})
    text = str(caught.value)
    assert f"{small_disk}/e/ballast (0.4 MB)" in text
    assert text.endswith(f"resume by Tuner.restore({str(small_disk / 'e')!r}, trainable).fit()")
    with ExperimentReader(small_disk / "e") as reader:  # it can be read as it is
        kept = len(reader.history(reader.trials()[0].trial_id))
    assert kept > 10
    shutil.rmtree(small_disk / "e" / "ballast")
    for path in small_disk.glob("e/long_story_*/*"):
        path.unlink()
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    grid = tune.Tuner.restore(small_disk / "e", long_story).fit()
    assert [row["step"] for row in grid[0].history] == list(range(400))


@pytest.mark.external
def test_a_log_that_finds_no_room_in_the_file_stays_and_is_told(small_disk, caplog):
    store = ExperimentStore.create(small_disk / "e", {})
    store.commit([ev.Noted(float(n), "note", "x" * 1000) for n in range(300)])
    with pytest.raises(OSError, match="No space left"), open(small_disk / "ballast", "wb", 0) as ballast:
        while True:
            ballast.write(b"x" * 4096)
    store.close()
    assert "cannot be merged into the file" in caplog.text and "The disk is full" in caplog.text
    (small_disk / "ballast").unlink()
    connection = sqlite3.connect(small_disk / "e" / "experiment.sqlite")
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (300,)
    connection.close()
    caplog.clear()
    ExperimentStore.open(small_disk / "e").close()
    assert [path.name for path in small_disk.glob("e/*sqlite*")] == ["experiment.sqlite"]
    assert not caplog.text


@pytest.mark.external
def test_a_checkpoint_that_finds_no_room_says_so(fit, small_disk):
    def trainable(config):
        scratch = Path(tune.get_context().get_trial_dir(), "scratch")
        scratch.mkdir(exist_ok=True)
        (scratch / "model").write_bytes(b"x" * 600_000)
        for step in range(5):
            tune.report({"step": step}, checkpoint=tune.Checkpoint(scratch))

    grid = fit(trainable, run={"storage_path": small_disk})
    assert isinstance(grid.errors[0], CheckpointError)
    assert "The disk is full" in str(grid.errors[0])
    assert "num_to_keep" in str(grid.errors[0])
    assert not list(small_disk.glob("e/*/*.partial"))  # nothing half made is left
    keep = tune.RunConfig(checkpoint_config=tune.CheckpointConfig(num_to_keep=1))
    shutil.rmtree(Path(grid[0].path, "scratch"))
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    again = tune.Tuner.restore(small_disk / "e", trainable, resume_errored=True, run_config=keep).fit()
    assert again.num_errors == 0


def test_a_commit_that_fails_is_not_half_there(tmp_path):
    """SQLITE_FULL, from SQLite itself, in the middle of a transaction: the store stays usable."""
    store = ExperimentStore.create(tmp_path / "e", {})
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="disk is full"):
        store.commit([ev.Noted(float(n), "note", "x" * 1000) for n in range(50)])
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.commit([ev.Noted(0.0, "note", "small")])
    store.close()
    connection = sqlite3.connect(tmp_path / "e" / "experiment.sqlite")
    assert connection.execute("SELECT detail FROM events").fetchall() == [("small",)]
    connection.close()


# --- a folder that can't be written ---------------------------------------------------------------


@pytest.mark.external
def test_a_read_only_folder_is_told_before_the_first_trial(fit, tmp_path):
    with (
        mounted(tmp_path / "fixed", "-t", "tmpfs", "-o", "ro", "tmpfs") as folder,
        pytest.raises(StoreError, match=r"cannot be created.*Read-only file system"),
    ):
        fit(lambda config: (tmp_path / "ran").touch(), run={"storage_path": folder})
    assert not (tmp_path / "ran").exists()


@pytest.mark.external
def test_a_restore_in_a_read_only_folder_is_told_and_reading_goes_on(fit, tmp_path):
    grid = fit(lambda config: {"loss": 1.0})
    with mounted(tmp_path / "fixed", "-o", "bind,ro", tmp_path / "e") as folder:
        tuner = tune.Tuner.restore(folder, lambda config: {"loss": 1.0})
        assert [result.metrics["loss"] for result in tuner.get_results()] == [1.0]
        with pytest.raises(StoreError, match="Read-only file system"):
            tuner.fit()
    assert len(grid) == 1


# --- the words ------------------------------------------------------------------------------------


def test_the_largest_folders_are_found(tmp_path):
    for name, size in (("a", 10_000), ("b/deep/er", 90_000), ("c", 0), ("d", 40_000)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * size)
    assert [Path(path).name for path, _ in largest_folders(tmp_path)] == ["b", "d", "a"]
    text = advice(tmp_path, OSError(errno.ENOSPC, "full"))
    assert f"{tmp_path}/b (0.1 MB)" in text
    assert "MB are free" in text
    assert advice(tmp_path, OSError(errno.EACCES, "no")) == ""
    assert advice(tmp_path / "gone", OSError(errno.ENOSPC, "full")) == ""
    assert megabytes(12_345_678) == "12.3 MB"


def test_a_full_disk_is_known_in_all_its_forms():
    assert is_full(OSError(errno.EDQUOT, "quota"))
    assert is_full(shutil.Error([("a", "b", f"[Errno 28] {os.strerror(errno.ENOSPC)}: 'b'")]))
    assert not is_full(shutil.Error([("a", "b", "no")]))
    assert not is_full(sqlite3.OperationalError("locked"))
    assert not is_full(ValueError())
