"""Mirror, which copies a running experiment to an address, in a thread.

Each round of the copy makes a snapshot of the experiment's store, and uploads the snapshot's checkpoints,
other files, and then the snapshot itself. At its end, the round deletes outdated files at the address. The
copied store therefore refers only to complete checkpoints. The copy of the store is replaced in one step.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, StorageError
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.core.checkpoint import CHECKPOINT_FOLDER, link_or_copy
from trainkit.tune.core.configs import SyncConfig
from trainkit.tune.core.log import logger
from trainkit.tune.core.setting_names import already_there
from trainkit.tune.core.trial import Trial
from trainkit.tune.display import Say, wait_saying
from trainkit.tune.store.commands import FOLDER as COMMANDS
from trainkit.tune.store.ownership import FILENAME as LOCK
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME, open_database
from trainkit.tune.sync.storage import Address, SyncerFileSystem, checkpoint_of

WORKSHOP = ".mirror"
"""Subfolder of the experiment's folder for files that are being uploaded; removed when `fit` returns."""

TRIES = 6
"""Maximum number of failed rounds at the end of the experiment.

The pauses between failed rounds start at 0.1 s and double.
"""

_WRITTEN_BY_US = re.compile(
    r"params\.json|result\.json|progress\.csv|error\.txt|stdout|stderr|events\.out\.tfevents.*"
)


class Mirror(Callback):
    """Callback that records which trials have changed, and copies the experiment in `folder` to `address`.

    Args:
        folder: folder of the experiment.
        address: address of the copy.
        sync: interval, timeout and extent of the copy.
        say: function that prints a line if the end of the experiment has to wait for the copy.
    """

    def __init__(self, folder: Path, address: Address, sync: SyncConfig, say: Say) -> None:
        self._folder = folder
        self._address = address
        self._sync = sync
        self._say = say
        self._lock = threading.Lock()
        self._news: set[str] = set()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._problem: Exception | None = None
        self._seen_version = -1
        # Size and modification time of each uploaded file that does not belong to a checkpoint.
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._there: dict[str, int] = {}  # maps checkpoint files at the address to sizes
        self._thread = threading.Thread(target=self._work, name="trainkit-mirror", daemon=True)

    def check(self, *, new: bool) -> None:
        """Check that the address can be written, and has no experiment if this experiment is new.

        Raises:
            ConfigError: the experiment to be copied is new, but the address already has an experiment.
            StorageError: the address can't be written.
        """
        try:
            if new and self._address.holds_experiment():
                raise ConfigError(already_there(self._address))
            self._address.require_writable(f"{WORKSHOP}.partial")
            if not new:
                self._take_in(self._address.sizes())
        except ConfigError:
            raise
        except Exception as error:
            raise StorageError(
                f"{self._address} cannot be written: {type(error).__name__}: {error}. Nothing was started"
            ) from error

    def _take_in(self, sizes: Mapping[str, int]) -> None:
        """Record the files at the address, which an earlier driver has copied.

        A driver that was killed may have copied checkpoints to which its store does not refer yet. A new
        checkpoint with the same name may differ even if the size is equal, so such checkpoints are uploaded
        again.
        """
        with ExperimentReader(self._folder) as reader:
            known = reader.checkpoint_folders()
        for name, size in sizes.items():
            if checkpoint := checkpoint_of(name):
                self._there[name] = size if checkpoint in known else -1
            else:
                self._uploaded[name] = (-1, -1)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Copy repeatedly during the `with` block; after the block, the copy is complete.

        Raises:
            StorageError: the copy is incomplete.
        """
        # The folder may exist already, because an earlier driver was killed.
        shutil.rmtree(self._folder / WORKSHOP, ignore_errors=True)
        self._mark_all()
        self._thread.start()
        try:
            yield
        except KeyboardInterrupt:
            self._abandoned.set()
            self._finish(1.0)
            raise
        except BaseException:
            try:
                self._finish(self._sync.sync_timeout)
            except StorageError as error:  # if another exception ended the experiment, it takes precedence
                logger.warning("%s", error)
            raise
        try:
            self._finish(self._sync.sync_timeout)
        except KeyboardInterrupt:
            self._abandoned.set()
            raise

    def _finish(self, timeout_s: float) -> None:
        self._closing.set()
        wait_saying(f"the copy at {self._address}", self._joined, timeout_s, self._say)
        still, problem = self._thread.is_alive(), self._problem
        if not still:
            shutil.rmtree(self._folder / WORKSHOP, ignore_errors=True)
        if self._abandoned.is_set() or not (still or problem):
            return
        why = f"not copied within {timeout_s:g} s" if still else f"{type(problem).__name__}: {problem}"
        raise StorageError(
            f"the copy at {self._address} is not complete: {why}. Nothing is lost: {self._folder} has the "
            f"whole experiment, for Tuner.get_results(); a restore from that folder completes the copy"
        ) from problem

    def _joined(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- changed trials ---------------------------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        with self._lock:
            self._news.add(trial.dirname)

    on_trial_complete = on_trial_error = on_trial_start

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        self.on_trial_start(iteration, trials, trial)

    def _mark_all(self) -> None:
        # Commands are for the owner of this experiment, not for the owner of a copy, so they are not
        # uploaded.
        ours = (WORKSHOP, COMMANDS)
        names = {
            entry.name for entry in os.scandir(self._folder) if entry.is_dir() and entry.name not in ours
        }
        with self._lock:
            self._news |= names

    # --- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._copy()
        # `fit` reports any other error, for example an unreadable local folder.
        except Exception as error:
            self._problem = error

    def _copy(self) -> None:
        with closing(open_database(self._folder / FILENAME, read_only=True)) as source:
            pause_s = 0.0
            while not self._closing.wait(pause_s):
                self._try(source)
                # The pause is half the period, because a commit just after the start of a round waits for the
                # next round.
                pause_s = self._sync.sync_period / 2
            for attempt in range(TRIES):
                # Trials may write files after their last report, so all trials are marked as changed.
                self._mark_all()
                if self._try(source) or self._abandoned.wait(0.1 * 2**attempt):
                    return

    def _try(self, source: sqlite3.Connection) -> bool:
        """Run one round of the copy; return True on success. Only the first of several failures is logged."""
        with self._lock:
            news, self._news = self._news, set()
        try:
            self._round(source, news)
        except Exception as error:  # file systems may raise any exception
            with self._lock:
                self._news |= news
            if self._problem is None:
                logger.warning(
                    "%s cannot be copied to %s for now (%s: %s); trainkit retries, with no further warning",
                    self._folder,
                    self._address,
                    type(error).__name__,
                    error,
                )
            self._problem = error
            return False
        self._problem = None
        return True

    def _round(self, source: sqlite3.Connection, news: set[str]) -> None:
        (version,) = source.execute("PRAGMA data_version").fetchone()
        if version == self._seen_version and not news:
            return
        workshop = self._folder / WORKSHOP
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        copy = workshop / FILENAME
        kept = self._snapshot(source, copy, workshop)
        self._upload_checkpoints(workshop, kept)
        for name in (*sorted(news), ""):
            self._upload_files(name)
        self._delete_gone(news)
        if self._abandoned.is_set():
            return
        self._address.push()
        self._address.replace(copy, FILENAME)
        self._address.push()
        self._delete_dropped(kept)
        self._seen_version = version
        shutil.rmtree(workshop, ignore_errors=True)

    def _snapshot(self, source: sqlite3.Connection, copy: Path, workshop: Path) -> set[str]:
        """Copy the store, and hard-link its checkpoints, because trials may drop checkpoints at any time."""
        with closing(sqlite3.connect(copy, isolation_level=None)) as target:
            source.backup(target)
            # Without a write-ahead log, the snapshot is a single file.
            target.execute("PRAGMA journal_mode=DELETE")
            kept = set()
            rows = target.execute(
                "SELECT c.trial_id, c.number, t.dirname, c.dirname FROM checkpoints c JOIN trials t "
                "USING (trial_id) WHERE NOT c.dropped"
            ).fetchall()
            for trial_id, number, trial_dirname, dirname in rows:
                name = f"{trial_dirname}/{dirname}"
                if self._hold(name, workshop):
                    kept.add(name)
                else:  # the checkpoint was dropped after the snapshot, so it is dropped in the copy too
                    target.execute(
                        "UPDATE checkpoints SET dropped = 1 WHERE trial_id = ? AND number = ?",
                        (trial_id, number),
                    )
            return kept

    def _hold(self, name: str, workshop: Path) -> bool:
        """Hard-link the files of a checkpoint that are not uploaded yet; return False if the checkpoint was
        deleted.
        """
        source = self._folder / name
        if not source.is_dir():
            return False
        try:
            for folder, _, files in os.walk(source):
                for file in files:
                    path = Path(folder, file)
                    short = str(path.relative_to(self._folder))
                    if self._there.get(short) != path.stat().st_size:
                        target = workshop / short
                        target.parent.mkdir(parents=True, exist_ok=True)
                        link_or_copy(path, target)
        except FileNotFoundError:
            return False
        return source.is_dir()

    def _upload_checkpoints(self, workshop: Path, kept: set[str]) -> None:
        for name in sorted(kept):
            began, size = SYSTEM.monotonic(), 0
            for folder, _, files in os.walk(workshop / name):
                for file in files:
                    path = Path(folder, file)
                    short = str(path.relative_to(workshop))
                    self._there[short] = -1  # a failed upload may leave a partial file at the address
                    self._address.put(path, short)
                    self._there[short] = path.stat().st_size
                    size += self._there[short]
            if size and not isinstance(self._address.fs, SyncerFileSystem):  # which copies the files later
                seconds = SYSTEM.monotonic() - began
                logger.info("uploaded %s: %.1f MB in %.2f s", name, size / 1e6, seconds)

    def _upload_files(self, name: str) -> None:
        """Upload the changed files of the trial's folder `name`; '' is the experiment's folder itself."""
        top = self._folder / name
        for folder, folders, files in os.walk(top):
            inside = [
                each for each in folders if not (folder == str(top) and CHECKPOINT_FOLDER.fullmatch(each))
            ]
            folders[:] = inside if name and self._sync.sync_artifacts else []
            for file in files:
                if file.startswith((FILENAME, LOCK)) or file.endswith(".partial"):
                    continue
                if name and not self._sync.sync_artifacts and not _WRITTEN_BY_US.fullmatch(file):
                    continue
                self._upload_file(Path(folder, file))

    def _upload_file(self, path: Path) -> None:
        short = str(path.relative_to(self._folder))
        try:
            found = path.stat()
            state = (found.st_size, found.st_mtime_ns)
            if self._uploaded.get(short) != state and path.is_file():
                self._address.put(path, short)
                self._uploaded[short] = state
        except FileNotFoundError:
            if path.exists():  # the local file exists, so the address raised the error
                raise

    def _delete_gone(self, news: set[str]) -> None:
        """Delete copies of files that no longer exist locally, such as a replaced event file."""
        for short in [each for each in self._uploaded if each.split("/")[0] in news]:
            if "/" in short and not (self._folder / short).exists():
                self._address.remove(short)
                del self._uploaded[short]

    def _delete_dropped(self, kept: set[str]) -> None:
        there = {checkpoint_of(name) for name in self._there}
        for name in sorted(there - kept):
            self._address.remove(name)
            for file in [file for file in self._there if file.startswith(f"{name}/")]:
                del self._there[file]
