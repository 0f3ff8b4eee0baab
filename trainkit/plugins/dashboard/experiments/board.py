"""Experiments in a folder, and tables of their trials in memory, for the dashboard.

Trials that have been read stay in an in-memory SQLite table, which sorts, searches and pages them. Only
requested trials are read, and only changed trials are read again.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM, busy_s
from trainkit.errors import StoreError
from trainkit.plugins.dashboard.experiments.reading import (
    FileState,
    NotFoundError,
    RowReader,
    SoFar,
    cut,
    experiments,
    flat_config,
    flat_metrics,
    short,
)
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.metrics import decode
from trainkit.tune.core.trial import TrialStatus, state_of
from trainkit.tune.display import infeasible_words
from trainkit.tune.results.overview import CUT_OFF, Overview
from trainkit.tune.results.reading import metric_and_mode

MAX_TABLES = 8
"""Maximum number of experiments whose tables are kept in memory; the least recently used table is dropped
first."""
MAX_BYTES = 96 * 1024 * 1024
"""Maximum size of all kept tables together in bytes; above it, the least recently used tables are dropped."""
FEW = 500
"""Maximum number of trials that are read one at a time; more trials are read by queries over all trials."""

COLUMNS = {
    "trial_id": "TEXT PRIMARY KEY",
    "trial_index": "INTEGER NOT NULL UNIQUE",
    "name": "TEXT",
    "status": "TEXT",
    "state": "TEXT",
    "reason": "TEXT",
    "config": "TEXT",  # The configuration is stored as a flat JSON object.
    "metrics": "TEXT",  # The last report is stored as a flat JSON object.
    "reports": "INTEGER",
    "last": "REAL",
    "best": "REAL",
    "attempt": "INTEGER",
    "failures": "INTEGER",
    "started": "REAL",
    "ended": "REAL",
    "error": "TEXT",
    "changed": "INTEGER",
}
SORTABLE = [*(name for name in COLUMNS if name not in ("trial_index", "config", "metrics")), "index"]
_MARKS = ", ".join("?" for _ in COLUMNS)
_BEFORE = f"SELECT {', '.join(list(COLUMNS)[:-1])} FROM rows WHERE trial_id = ?"
_KEEP = f"INSERT OR REPLACE INTO rows VALUES ({_MARKS})"
_KEEP_NEW = f"INSERT OR IGNORE INTO rows VALUES ({_MARKS})"

Row = dict[str, Any]


class TrialTable:
    """Table of one experiment's trials in memory, which returns pages of trials.

    A trial is read when it is first requested, and again whenever it has changed. All trials are read for a
    search, and for any order except the order of suggestion and the order of the last values.

    Args:
        folder: folder of the experiment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generation = 0
        self._lock = threading.RLock()
        self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        weakref.finalize(self, self._memory.close)
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self._memory.execute(f"CREATE TABLE rows ({columns}) WITHOUT ROWID")
        self._memory.execute("CREATE INDEX rows_changed ON rows (changed)")
        self._state: FileState | None = None
        self._judged: tuple[str | None, str | None] = (None, None)
        self._looked = 0.0
        self._renewed = 0
        self._size_bytes = 0
        self._forget()

    def _forget(self) -> None:
        self._memory.execute("DELETE FROM rows")
        self._is_whole = False
        self._seq = self._last_index = -1
        self._ran: dict[str, SoFar | None] = {}

    # --- reading ----------------------------------------------------------------------------------

    def refresh(self, old_s: float = 0.0) -> int:
        """Read all changes; return the table's generation, a number that grows with each change.

        Args:
            old_s: if the last read was less than this many seconds ago, nothing is read.

        Raises:
            StoreError: the experiment is gone, or its file is damaged.
        """
        with self._lock:
            if self._state is not None and SYSTEM.monotonic() - self._looked < old_s:
                return self.generation
            now = SYSTEM.now()
            state = FileState.of(self.folder)
            if state == self._state and state.stays(now):
                return self.generation
            with self._reader(state):
                return self.generation

    @contextlib.contextmanager
    def _reader(self, state: FileState | None = None) -> Iterator[RowReader]:
        state = state or FileState.of(self.folder)
        with RowReader(self.folder, state) as reader:
            reader.stand_still()
            judged = metric_and_mode(reader.facts())
            if self._state is not None and (not state.same_file(self._state) or judged != self._judged):
                self._forget()
                self.generation += 1
                self._renewed = self.generation
            self._judged = judged
            is_owned = state.owner is not None
            newest, last_index = reader.newest(), reader.last_index()
            if self._seq >= 0:
                ids = reader.ids_after(self._last_index, self._seq) | self._ran.keys()
                if ids:
                    self._read_again(reader, ids, is_owned=is_owned)
            self._seq, self._last_index = newest, last_index
            # The file may change again without a new timestamp, so `refresh` reads a recently changed file
            # once more.
            self._state, self._looked = state, SYSTEM.monotonic()
            yield reader

    def _read_again(self, reader: RowReader, ids: set[str], *, is_owned: bool) -> None:
        known = self._known(ids)
        wanted: set[str] | None = ids
        if len(ids) > FEW:
            # Only FEW of the unknown trials are read, because listeners receive fewer changes than this
            # number.
            all_of_them = self._is_whole or len(known) > FEW
            wanted = None if all_of_them else known | set(islice(ids - known, FEW))
        if wanted is None:
            ends = reader.ends()
        else:
            ends = reader.ends(self._seq)
            if not self._is_whole and (unknown := wanted - known):
                ends = reader.ends(ids=unknown) | ends
        generation, any_changed, so_far = self.generation + 1, False, self._ran
        self._ran = {}
        with self._transaction():
            for row in reader.rows(*self._judged, wanted, so_far):
                self._follow(row)
                before = self._memory.execute(_BEFORE, (row[0],)).fetchone()
                values = _values(row, ends.get(row[0], before and before[-2]), is_owned=is_owned)
                if before != values:
                    self._memory.execute(_KEEP, (*values, generation))
                    any_changed = True
        self._measure()
        self._is_whole |= wanted is None
        if any_changed:
            self.generation = generation

    def _read_new(self, reader: RowReader, ids: Iterable[str] | None) -> None:
        """Read the trials in `ids` that the table does not have yet; None means all trials."""
        lacking = None if ids is None else set(ids) - self._known(ids)
        if lacking is not None and not lacking:
            return
        ends = reader.ends(ids=lacking)
        is_owned = self._state is not None and self._state.owner is not None

        def kept() -> Iterator[tuple[Any, ...]]:
            for row in reader.rows(*self._judged, lacking):
                self._follow(row)
                yield (*_values(row, ends.get(row[0]), is_owned=is_owned), 0)

        with self._transaction():
            self._memory.executemany(_KEEP_NEW, kept())
        self._measure()
        self._is_whole |= ids is None

    def _measure(self) -> None:
        ((pages,),) = self._memory.execute("PRAGMA page_count")
        ((size,),) = self._memory.execute("PRAGMA page_size")
        self._size_bytes = pages * size

    def _follow(self, row: tuple[Any, ...]) -> None:
        """If a trial is running, remember which reports of its current attempt have been read."""
        trial_id, status, iteration, best, attempt, reported = (
            row[0],
            row[3],
            row[7],
            row[9],
            row[10],
            row[15],
        )
        if status == TrialStatus.RUNNING:
            self._ran[trial_id] = SoFar(attempt, iteration, best) if reported == attempt else None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._memory.execute("BEGIN")
        with self._memory:
            yield

    def _known(self, ids: Iterable[str]) -> set[str]:
        found = self._memory.execute(
            "SELECT trial_id FROM rows WHERE trial_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
        return {trial_id for (trial_id,) in found}

    # --- requests ---------------------------------------------------------------------------------

    def page(
        self,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: str = "index",
        descending: bool = False,
        states: Sequence[str] = (),
        search: str = "",
    ) -> tuple[int, list[Row]]:
        """Return the number of trials that meet the conditions, and one page of these trials.

        Args:
            offset: number of matching trials before the page.
            limit: maximum number of trials in the page.
            sort: name of a column in `SORTABLE`, or `config/NAME`, or `metrics/NAME`.
            descending: True: sort in descending order; trials without a value are last in either order.
            states: states or statuses; only trials with one of these states or statuses are returned. Empty
                means all trials.
            search: text that a trial's name, status, reason, configuration, report or error must contain.

        Raises:
            NotFoundError: the column `sort` does not exist.
        """
        by, names = _order(sort, descending=descending)
        where, values = ["1"], list[Any]()
        if states:
            where.append("EXISTS (SELECT 1 FROM json_each(?) WHERE value IN (state, status))")
            values.append(json.dumps(states))
        if search:
            where.append(
                "(instr(lower(trial_id || ' ' || name || ' ' || state || ' ' || reason || ' ' || "
                "coalesce(error, '')), ?) OR instr(lower(config || ' ' || metrics), ?))"
            )
            values += [search.lower(), json.dumps(search)[1:-1].lower()]
        condition = " AND ".join(where)
        with self._lock:
            if self._is_whole:
                self.refresh()
            # If a different experiment has just replaced this experiment, the refresh has emptied the table.
            if not self._is_whole:
                with self._reader() as reader:
                    metric = self._judged[0]
                    if not values and (sort == "index" or (sort == "last" and metric is not None)):
                        by_last = metric if sort == "last" else None
                        ids = reader.page(limit, offset, descending=descending, by_last=by_last)
                        self._read_new(reader, ids)
                        return reader.number_of_trials(), self._rows_of(ids)
                    self._read_new(reader, None)
            ((total,),) = self._memory.execute(f"SELECT count(*) FROM rows WHERE {condition}", values)
            return total, self._rows(
                f"rows WHERE {condition} ORDER BY {by} LIMIT ? OFFSET ?", *values, *names, limit, offset
            )

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of the table that a query selects, whose part after FROM is `sql`."""
        return list(map(_row, self._memory.execute(f"SELECT rows.* FROM {sql}", values)))

    def _rows_of(self, ids: Collection[str]) -> list[Row]:
        # With CROSS JOIN, SQLite looks up each wanted id instead of reading all rows.
        wanted = "json_each(?) AS wanted CROSS JOIN rows ON rows.trial_id = wanted.value ORDER BY wanted.key"
        return self._rows(wanted, json.dumps(list(ids)))

    def row(self, trial_id: str) -> Row:
        """Return the row of a trial.

        Raises:
            NotFoundError: the trial does not exist.
        """
        with self._lock:
            found = self._rows_of([trial_id])
            if not found and not self._is_whole:
                with self._reader() as reader:
                    self._read_new(reader, [trial_id])
                found = self._rows_of([trial_id])
        if not found:
            raise NotFoundError(f"experiment {self.folder.name} has no trial {trial_id!r}")
        return found[0]

    @property
    def size_bytes(self) -> int:
        """Size of the table in bytes, at the last measurement."""
        return self._size_bytes

    @property
    def newest(self) -> int:
        """Sequence number of the last event or decision that was read."""
        return self._seq

    def changed_since(self, generation: int, limit: int) -> tuple[list[Row], bool]:
        """Return up to `limit` trials that changed after a generation, latest first; and True if further
        trials have changed.
        """
        with self._lock:
            latest = "rows WHERE changed > ? ORDER BY changed DESC, trial_index DESC LIMIT ?"
            rows = self._rows(latest, generation, limit + 1)
            is_new = generation < self._renewed
        return rows[:limit], len(rows) > limit or is_new


def _values(row: Sequence[Any], ended: float | None, *, is_owned: bool) -> tuple[Any, ...]:
    """Convert a row of `RowReader` to a row of the table, without the column `changed`."""
    trial_id, index, name, status, reason, config, metrics, *numbers, started, kind, message, _ = row
    # No process runs the experiment, so the process that ran it was killed before it could store the trial's
    # end.
    if status == TrialStatus.RUNNING and not is_owned:
        status, reason = str(TrialStatus.PENDING), CUT_OFF
    state = state_of(status, reason)
    if metrics and VIOLATION in metrics and (words := infeasible_words(decode(metrics))):
        reason = f"{words}; {reason}" if reason else words
    error = None if kind is None or status != TrialStatus.ERROR else short(f"{kind}: {message or ''}")
    return (
        trial_id,
        index,
        short(name),
        status,
        state,
        short(reason),
        cut(flat_config(config)),
        cut(flat_metrics(metrics)),
        *numbers,
        started,
        ended,
        error,
    )


def _order(sort: str, *, descending: bool) -> tuple[str, list[str]]:
    kind, slash, name = sort.partition("/")
    if slash and kind in ("config", "metrics"):
        # SQLite's JSON functions end a name at a null character, so the requested name is also cut at a null
        # character.
        value, values = f"(SELECT value FROM json_each({kind}) WHERE key = ?)", [name.partition("\0")[0]]
    elif sort in SORTABLE:
        value, values = ("trial_index" if sort == "index" else sort), []
    else:
        raise NotFoundError(
            f"{sort[:100]!r} is not a column: choose {', '.join(SORTABLE)}, config/NAME or metrics/NAME"
        )
    number = (
        f"CASE {value} WHEN 'NaN' THEN NULL WHEN 'Infinity' THEN 9e999 "
        f"WHEN '-Infinity' THEN -9e999 ELSE {value} END"
    )
    way = "DESC" if descending else "ASC"
    return f"coalesce({value}, 'NaN') = 'NaN', {number} {way}, trial_index {way}", values * 3


def _row(values: Sequence[Any]) -> Row:
    row = dict(zip(COLUMNS, values, strict=True))
    row["index"] = row.pop("trial_index")
    row["config"], row["metrics"] = json.loads(row["config"]), json.loads(row["metrics"])
    return row


@dataclass(frozen=True)
class Seen:
    """Summary of an experiment, with the state of the experiment's file, the time of reading, and the CPU
    seconds that the reading took.
    """

    summary: dict[str, Any]
    state: FileState
    at: float
    busy_s: float


class Board:
    """Experiments of one folder, for the dashboard.

    Args:
        root: folder that contains experiments, or the folder of one experiment.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._tables: OrderedDict[Path, TrialTable] = OrderedDict()
        self._alive = weakref.WeakValueDictionary[Path, TrialTable]()
        self._seen: dict[Path, Seen] = {}

    def folder_of(self, name: str) -> Path:
        """Return the folder of the experiment with this name; only listed experiments are opened.

        Raises:
            NotFoundError: the experiment does not exist.
        """
        for folder in experiments(self.root):
            if folder.name == name:
                return folder
        raise NotFoundError(f"{self.root} has no experiment {name!r}")

    def table(self, folder: Path) -> TrialTable:
        """Return the table of an experiment's trials; this does not read the trials."""
        with self._lock:
            # If a stream still uses a table that was dropped from the board, the same table is used again.
            if folder not in self._tables:
                self._tables[folder] = self._alive.get(folder) or TrialTable(folder)
                self._alive[folder] = self._tables[folder]
            self._tables.move_to_end(folder)
            while len(self._tables) > 1 and (
                len(self._tables) > MAX_TABLES
                or sum(each.size_bytes for each in self._tables.values()) > MAX_BYTES
            ):
                self._tables.popitem(last=False)
            return self._tables[folder]

    def summaries(self) -> list[dict[str, Any]]:
        """Return the summaries of all experiments; a damaged experiment's summary describes the problem."""
        found = []
        folders = list(experiments(self.root))
        for gone in set(self._seen.copy()).difference(folders):
            self._seen.pop(gone, None)
        for folder in folders:
            try:
                found.append(self.summary(folder))
            except StoreError as error:
                found.append(damaged(folder, str(error)))
        return found

    def summary(self, folder: Path, *, at_leisure: bool = False) -> dict[str, Any]:
        """Return the summary of one experiment.

        Args:
            folder: folder of the experiment.
            at_leisure: True: if making a summary is slow, an older summary may be returned.

        Raises:
            StoreError: the experiment's file is damaged.
        """
        now = SYSTEM.now()
        state, known = FileState.of(folder), self._seen.get(folder)
        if known is not None:
            if known.state == state and state.stays(now):
                return known.summary
            if at_leisure and state.owner == known.state.owner and now - known.at < 10 * known.busy_s:
                return known.summary
        begun = busy_s()
        summary = _summary(folder, now, partial(RowReader, state=state))
        self._seen[folder] = Seen(summary, state, now, busy_s() - begun)
        return summary


def _summary(folder: Path, now: float, open_reader: Callable[[Path], RowReader]) -> dict[str, Any]:
    seen, best = Overview.of(folder, now, with_trials=False, open_reader=open_reader), None
    with open_reader(folder) as reader:
        objectives = reader.facts().get("objectives") or (
            [] if seen.metric is None else [(seen.metric, seen.mode)]
        )
        if seen.best is not None:
            trial_id, value = seen.best
            index, config = reader.config(trial_id)
            best = {"trial_id": trial_id, "index": index, "value": value, "config": json.loads(cut(config))}
    return {
        "name": folder.name,
        "path": str(folder),
        "machine": "",
        "metric": seen.metric,
        "mode": seen.mode,
        "objectives": [{"metric": metric, "mode": mode} for metric, mode in objectives],
        "created": seen.created,
        "owner": seen.owner,
        "running": seen.owner is not None,
        "state": seen.state,
        "ending": seen.ending,
        "remaining_s": seen.remaining_s,
        "total": seen.total,
        "trials": sum(seen.counted.values()),
        "counts": {str(status): number for status, number in seen.counted.items()},
        "best": best,
        "problem": "",
    }


def damaged(folder: Path, problem: str) -> dict[str, Any]:
    """Return the summary of an experiment that can't be read."""
    nothing = dict.fromkeys(("metric", "mode", "created", "owner", "remaining_s", "total", "best"))
    return {
        "name": folder.name,
        "path": str(folder),
        "machine": "",
        **nothing,
        "objectives": [],
        "running": False,
        "state": "damaged",
        "ending": "",
        "trials": 0,
        "counts": {},
        "problem": problem,
    }
