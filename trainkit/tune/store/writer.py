"""Writer of an experiment file.

The effects of a batch of events are committed in one transaction before any trial receives its reply.
Therefore no report is lost once its trial continues, and all waiting trials share one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from trainkit.errors import ConfigError, StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.checkpoint import advice
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import encode, storable_text
from trainkit.tune.core.setting_names import already_there, how_to_resume, setting
from trainkit.tune.space.serialization import encode_config
from trainkit.tune.store.ownership import Ownership, make_private
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME, create_database, not_found, open_database


class ExperimentStore:
    """The only writer of an experiment's file.

    Args:
        folder: folder of the experiment.
        connection: connection that is open for writing.
        ownership: lock that is held until `close`.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, ownership: Ownership) -> None:
        self.folder = folder
        self._connection = connection
        self._ownership = ownership
        self._seq: int = connection.execute(
            "SELECT coalesce(max(seq), 0) FROM (SELECT max(seq) AS seq FROM trials "
            "UNION ALL SELECT max(seq) FROM results UNION ALL SELECT max(seq) FROM decisions "
            "UNION ALL SELECT max(seq) FROM events)"
        ).fetchone()[0]
        self._writers: dict[type, Callable[[Any], None]] = {
            ev.TrialAdded: self._trial_added,
            ev.AttemptStarted: self._attempt_started,
            ev.ResultAdded: self._result_added,
            ev.DecisionMade: self._decision_made,
            ev.CheckpointAdded: self._checkpoint_added,
            ev.CheckpointDropped: self._checkpoint_dropped,
            ev.StatusChanged: self._status_changed,
            ev.Rearranged: self._rearranged,
            ev.SettingsChanged: self._settings_changed,
            ev.Noted: self._noted,
        }

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Create a new experiment in `folder`, which may exist but must not contain an experiment.

        Args:
            folder: folder of the experiment; created if it is missing.
            facts: properties of the experiment to store, by name, as JSON values or search spaces.

        Raises:
            ConfigError: `folder` already contains an experiment.
            StoreError: the file can't be written, or another process uses it.
        """
        _refuse_existing(folder)  # the folder is checked before a lock file is created in it
        try:
            make_private(folder)
        except OSError as error:
            raise StoreError(
                f"the experiment's folder {folder} cannot be created: {error}. Set "
                f"{setting('storage_path', 'RunConfig')} to a folder that this user may write to"
            ) from None  # the traceback of mkdir is left out, as it has no further information
        ownership = Ownership(folder)
        try:
            _refuse_existing(folder)  # the experiment may have appeared before this process held the lock
            # The file gets its final name only when it is complete, so that a kill leaves no partial
            # experiment.
            aside = folder / f"{FILENAME}.partial"
            for leftover in folder.glob(f"{aside.name}*"):
                leftover.unlink()
            connection = create_database(aside)
            with connection:
                connection.execute("BEGIN")
                connection.executemany(
                    "INSERT INTO experiment VALUES (?, ?)",
                    [(key, encode_config(value)) for key, value in facts.items()],
                )
            connection.close()
            aside.rename(folder / FILENAME)
            return cls(folder, open_database(folder / FILENAME, read_only=False), ownership)
        except (sqlite3.Error, OSError) as error:
            ownership.close()
            raise StoreError(f"{folder / FILENAME} cannot be written: {error}") from error
        except BaseException:
            ownership.close()
            raise

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Continue to write an existing experiment.

        Raises:
            StoreError: the experiment is missing, damaged or not written by trainkit, or another process uses
                it.
        """
        if not (folder / FILENAME).exists():
            raise not_found(folder)
        ownership = Ownership(folder)
        try:
            return cls(folder, open_database(folder / FILENAME, read_only=False), ownership)
        except BaseException:
            ownership.close()
            raise

    def commit(self, records: Sequence[ev.Record]) -> None:
        """Write `records` in one transaction; after that, `records` survive the end of this process.

        Raises:
            StoreError: the disk is full, or the file is damaged; no record was written.
        """
        if not records:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for record in records:
                    self._writers[type(record)](record)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite may already have rolled the transaction back
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.folder / FILENAME} cannot be written: {error}.{advice(self.folder, error)} All "
                f"acknowledged data is kept: fix the cause, then {how_to_resume(self.folder)}"
            ) from error

    def set_fact(self, key: str, value: Any) -> None:
        """Write one stored property of the experiment; replace the former value.

        Raises:
            StoreError: the file can't be written.
        """
        try:
            self._run("INSERT OR REPLACE INTO experiment VALUES (?, ?)", key, encode_config(value))
        except sqlite3.Error as error:
            raise StoreError(f"{self.folder / FILENAME} cannot be written: {error}") from error

    def amend(self, record: ev.ResultAdded) -> None:
        """Rewrite an existing report with values that callbacks added.

        Raises:
            StoreError: the file can't be written.
        """
        place = (encode(record.metrics), record.trial.trial_id, record.attempt, record.iteration)
        sql = "UPDATE results SET metrics = ? WHERE trial_id = ? AND attempt = ? AND iteration = ?"
        try:
            self._connection.execute(sql, place)
        except sqlite3.Error as error:
            raise StoreError(f"{self.folder / FILENAME} cannot be written: {error}") from error

    def reader(self) -> ExperimentReader:
        """Return a reader of the file, which may still be written; the caller must close the reader."""
        return ExperimentReader(self.folder)

    def close(self) -> None:
        """Merge SQLite's log into the file and release the lock; only the file remains.

        While another reader is open, or if the disk is full, the log remains, and nothing is lost.
        """
        try:
            # The journal mode is reset, because in WAL mode every later reader would create a log that it
            # can't remove.
            self._connection.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                path = self.folder / FILENAME
                logger.warning(
                    "the log of %s cannot be merged into the file: %s.%s Some data is only in %s-wal: keep "
                    "this file in the folder. The next program that opens the experiment tries again",
                    path,
                    error,
                    advice(self.folder, error),
                    path,
                )
        finally:
            self._connection.close()
            self._ownership.close()

    # --- one method per record --------------------------------------------------------------------

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _run(self, sql: str, *values: Any) -> None:
        self._connection.execute(sql, tuple(map(_storable, values)))

    def _trial_added(self, record: ev.TrialAdded) -> None:
        trial, names = record.trial, (record.trial.name, record.trial.dirname, record.trial.tag)
        self._run(
            "INSERT INTO trials (trial_id, trial_index, seq, config, name, dirname, tag, status) "
            "VALUES (?,?,?,?,?,?,?,'PENDING')",
            *(trial.trial_id, trial.index, self._next(), encode_config(trial.config), *names),
        )

    def _attempt_started(self, record: ev.AttemptStarted) -> None:
        trial_id, process = record.trial.trial_id, (record.pid, record.hostname, record.node_ip)
        config = encode_config(record.trial.config) if record.trial.tried else None
        values = (trial_id, record.attempt, *process, record.time, record.iteration, config)
        self._run("INSERT OR REPLACE INTO attempts VALUES (?,?,?,?,?,?,?,?)", *values)
        sql = "UPDATE trials SET status = 'RUNNING', reason = '', attempt = ? WHERE trial_id = ?"
        self._run(sql, record.attempt, trial_id)

    def _result_added(self, record: ev.ResultAdded) -> None:
        # This method does not call _storable, because its kind of record is the most frequent and contains
        # only ASCII texts.
        place = (record.trial.trial_id, record.attempt, record.iteration, self._next())
        self._connection.execute("INSERT INTO results VALUES (?,?,?,?,?)", (*place, encode(record.metrics)))

    def _decision_made(self, record: ev.DecisionMade) -> None:
        place = (record.trial.trial_id, record.attempt, record.iteration)
        verdict, reason = str(record.decision.verdict), encode(dict(record.decision.reason))
        self._run("INSERT INTO decisions VALUES (?,?,?,?,?,?)", self._next(), *place, verdict, reason)

    def _checkpoint_added(self, record: ev.CheckpointAdded) -> None:
        saved, trial_id = record.checkpoint, record.trial.trial_id
        values = (trial_id, saved.number, record.attempt, saved.iteration, saved.dirname, saved.score)
        self._run(
            "INSERT INTO checkpoints (trial_id, number, attempt, iteration, dirname, score) "
            "VALUES (?,?,?,?,?,?)",
            *values,
        )

    def _checkpoint_dropped(self, record: ev.CheckpointDropped) -> None:
        sql = "UPDATE checkpoints SET dropped = 1 WHERE trial_id = ? AND number = ?"
        self._run(sql, record.trial.trial_id, record.checkpoint.number)

    def _status_changed(self, record: ev.StatusChanged) -> None:
        status, reason, trial_id = str(record.status), record.reason, record.trial.trial_id
        failure = record.failure
        error = (failure.kind, failure.message, failure.traceback) if failure else (None, None, None)
        self._run(
            "UPDATE trials SET status = ?, reason = ?, attempt = ?, failures = ?, "
            "error_kind = ?, error_message = ?, error_traceback = ? WHERE trial_id = ?",
            *(status, reason, record.attempt, record.failures, *error, trial_id),
        )
        self._noted(ev.Noted(record.time, status, reason, trial_id))

    def _rearranged(self, record: ev.Rearranged) -> None:
        trial = record.trial
        detail = {
            "alone": trial.alone,
            "config": record.config,
            "granted": trial.granted and [trial.granted.bundles, trial.granted.strategy],
            "before": record.before and [record.before.bundles, record.before.strategy],
            "donor": record.donor and record.donor.trial_id,
            "donor_iteration": record.donor_iteration,
            "iteration": trial.checkpoint.iteration if trial.checkpoint else 0,
        }
        self._noted(ev.Noted(record.time, ev.REARRANGED, encode_config(detail), trial.trial_id))

    def _settings_changed(self, record: ev.SettingsChanged) -> None:
        for name, value in record.settings.items():
            sql = "UPDATE experiment SET value = json_set(value, ?, json(?)) WHERE key = 'tune_config'"
            self._run(sql, f"$.{name}", encode(value))
        values = ("total_samples", encode_config(record.total_samples))
        self._run("INSERT OR REPLACE INTO experiment VALUES (?, ?)", *values)

    def _noted(self, record: ev.Noted) -> None:
        values = (record.time, record.kind, record.trial_id, record.detail)
        self._run("INSERT INTO events VALUES (?,?,?,?,?)", self._next(), *values)


def _storable(value: Any) -> Any:
    return storable_text(value) if isinstance(value, str) and not value.isascii() else value


def _refuse_existing(folder: Path) -> None:
    if (folder / FILENAME).exists():
        raise ConfigError(already_there(folder))
