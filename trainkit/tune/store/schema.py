"""Tables of the experiment file, and checks for damage.

In the file, `application_id` shows that trainkit wrote it, and `user_version` is the version of its layout.
Users may query the file with SQL. NaN and infinities are stored as "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from trainkit.errors import ExperimentNotFoundError, StoreError

FILENAME = "experiment.sqlite"
APPLICATION_ID = 0x746B6974  # The number spells "tkit" in ASCII.
VERSION = 3

TABLES = """
CREATE TABLE experiment (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE trials (
    trial_id TEXT PRIMARY KEY,
    trial_index INTEGER NOT NULL UNIQUE,
    seq INTEGER NOT NULL,               -- place in the order of all that happened
    config TEXT NOT NULL,               -- as suggested
    name TEXT NOT NULL,
    dirname TEXT NOT NULL,
    tag TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    attempt INTEGER NOT NULL DEFAULT 0, -- the attempt that runs, or would run next
    failures INTEGER NOT NULL DEFAULT 0,
    error_kind TEXT,
    error_message TEXT,
    error_traceback TEXT
) WITHOUT ROWID;

CREATE TABLE attempts (
    trial_id TEXT NOT NULL REFERENCES trials,
    attempt INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    hostname TEXT NOT NULL,
    node_ip TEXT NOT NULL,
    started REAL NOT NULL,              -- seconds since 1970
    iteration INTEGER NOT NULL,         -- that it went on from; 0: the beginning
    config TEXT,                        -- where another than the trial's
    PRIMARY KEY (trial_id, attempt)
) WITHOUT ROWID;

CREATE TABLE results (
    trial_id TEXT NOT NULL REFERENCES trials,
    attempt INTEGER NOT NULL,
    iteration INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    metrics TEXT NOT NULL,              -- JSON
    PRIMARY KEY (trial_id, attempt, iteration)
) WITHOUT ROWID;

CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY,
    trial_id TEXT NOT NULL REFERENCES trials,
    attempt INTEGER NOT NULL,
    iteration INTEGER NOT NULL,
    verdict TEXT NOT NULL,              -- CONTINUE, PAUSE, RESUME or STOP
    reason TEXT NOT NULL                -- JSON
);
CREATE INDEX decisions_of_trials ON decisions (trial_id, seq);

CREATE TABLE checkpoints (
    trial_id TEXT NOT NULL REFERENCES trials,
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    iteration INTEGER NOT NULL,
    dirname TEXT NOT NULL,              -- in the trial's folder
    score REAL,
    dropped INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    trial_id TEXT,
    detail TEXT NOT NULL
);
"""

HISTORY = """CREATE VIEW history AS
    SELECT trial_id, attempt, iteration, seq, metrics FROM results JOIN (
        SELECT trial_id, attempt, min(min(iteration)) OVER (
            PARTITION BY trial_id ORDER BY attempt DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS again_from FROM results GROUP BY trial_id, attempt
    ) USING (trial_id, attempt) WHERE again_from IS NULL OR iteration < again_from"""
"""View of the reports that no later report has replaced.

A report is replaced when its trial, after a restart or a resumption from an earlier checkpoint, reports the
same or an earlier iteration again.
"""


def create_database(path: Path) -> sqlite3.Connection:
    """Create the file with its tables; return a connection for writing.

    Raises:
        StoreError: the file can't be written.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        _tune(connection)
        connection.executescript(
            f"BEGIN; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}; "
            f"{TABLES} {HISTORY}; COMMIT;"
        )
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    return connection


def not_found(folder: Path) -> ExperimentNotFoundError:
    """Return the error for a folder without an experiment file."""
    above = folder.parent
    right = f"the experiment, which is {above}" if (above / FILENAME).exists() else "an experiment"
    return ExperimentNotFoundError(f"{folder} has no {FILENAME}: give the folder of {right}")


def open_database(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open an existing experiment file, after checks that trainkit wrote it and that it is undamaged.

    Only SQLite opens an intact file, because POSIX locks belong to a process: if this process closed another
    descriptor of the file, it would lose SQLite's locks on the file. Without these locks, the next program
    that opens the file, such as the `sqlite3` shell, would consider itself the only user and remove SQLite's
    log.

    Raises:
        StoreError: the file is missing, damaged, not written by trainkit, or of an unsupported version.
    """
    if not path.exists():
        raise not_found(path.parent)
    connection = None
    try:
        mode = "ro" if read_only else "rw"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None
        )
        _check_identity(connection, path)
        if not read_only:
            problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if problem != "ok":
                raise StoreError(f"{path} is damaged: {problem}. {_ADVICE}")
            connection.execute("PRAGMA journal_mode=WAL")
            _tune(connection)
            _renew_history(connection)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise StoreError(_what_is_wrong(path, error)) from error
    except StoreError:
        if connection is not None:
            connection.close()
        raise
    return connection


_ADVICE = "Restore the file from a backup, or start a new experiment under another name"


def _tune(connection: sqlite3.Connection) -> None:
    # With a write-ahead log, NORMAL preserves every commit even if SIGKILL ends the process, because the
    # kernel already has the log. A power failure can lose the last commits, but never damages the file.
    connection.execute("PRAGMA synchronous=NORMAL")
    # Each WAL checkpoint waits three times for the disk and delays commits, so this setting makes checkpoints
    # rare. The log then takes 16 MB.
    connection.execute("PRAGMA wal_autocheckpoint=4000")


def _renew_history(connection: sqlite3.Connection) -> None:
    """Replace the view `history` of an earlier version, which also showed replaced reports."""
    (view,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'history'").fetchone() or ("",)
    if view != HISTORY:
        connection.executescript(f"BEGIN; DROP VIEW IF EXISTS history; {HISTORY}; COMMIT;")


def _what_is_wrong(path: Path, error: sqlite3.Error) -> str:
    """Return an error message that says why SQLite can't read the file `path`."""
    try:
        with open(path, "rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except OSError as problem:
        return f"{path} cannot be read: {problem}"
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        return f"{path} is not an experiment file: it is damaged, or another program wrote it. {_ADVICE}"
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big")
    # Pages that are only in the log are missing from the file, so a short file is valid while the log exists.
    if pages * page_size > size and not path.with_name(path.name + "-wal").exists():
        return f"{path} is truncated: {size} of {pages * page_size} bytes exist. {_ADVICE}"
    return f"{path} is damaged or cannot be read: {error}. {_ADVICE}"


def _check_identity(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        if path.stat().st_size == 0:
            raise StoreError(f"{path} is not an experiment file: it is empty. {_ADVICE}")
        raise StoreError(f"{path} was written by another program (application_id {application:#x})")
    if version != VERSION:
        raise StoreError(
            f"{path} has layout {version}, not {VERSION}: open it with the version of trainkit that wrote it"
        )
