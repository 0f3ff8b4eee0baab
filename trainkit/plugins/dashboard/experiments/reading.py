"""Data of experiments for the dashboard, read while other processes write it.

Each file is opened only briefly, because a writer that ends can't merge its write-ahead log while a reader
has the file open.
"""

from __future__ import annotations

import contextlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from trainkit.clock import SYSTEM
from trainkit.errors import MetricError
from trainkit.plugins.plots.rungs import CAME, JUDGED
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.metrics import decode, encode, flatten, without_objects
from trainkit.tune.core.trial import TrialStatus, state_of
from trainkit.tune.results.overview import FINITE, VALUE, LogReader, experiments_in, paths
from trainkit.tune.space.serialization import decode_config
from trainkit.tune.store.ownership import owner_of
from trainkit.tune.store.schema import FILENAME

SETTLED_S = 1.0
"""Seconds after a file's last change from which on every further write changes the file's timestamp."""

MAX_SHARED = 4
"""Number of pairs of experiment and metric whose last values are kept; the least recently used pair is
dropped.
"""

MAX_POINTS = 500_000
"""Maximum number of points of curves that are kept, 16 bytes each; the least recently used curves are
dropped."""

MAX_TEXT = 1000
"""Maximum number of characters of a text in a list; only the page of a single trial shows the whole text."""
MAX_ROW = 100_000
"""Maximum number of characters of a trial's configuration, or of its last report, in a list."""

_ENDS = (TrialStatus.TERMINATED, TrialStatus.ERROR)

_CONFIG = (
    "coalesce((SELECT config FROM attempts a WHERE a.trial_id = t.trial_id ORDER BY attempt DESC LIMIT 1), "
    "config)"
)


class NotFoundError(Exception):
    """The requested path, experiment, trial, file or session does not exist."""


def experiments(root: Path) -> Iterator[Path]:
    """Yield the folders of the experiments in `root`, latest first; `root` itself if it is an experiment."""
    found = {}
    for folder in experiments_in(root):
        # The experiment may have been removed after it was listed.
        with contextlib.suppress(FileNotFoundError):
            found[folder] = (folder / FILENAME).stat().st_mtime
    yield from sorted(found, key=found.__getitem__, reverse=True)


@dataclass(frozen=True)
class FileState:
    """State of an experiment's database file, as the file system reports it.

    Attributes:
        parts: inode, timestamp and size of the database file and of its write-ahead log; None for a missing
            file.
        owner: pid of the process that runs the experiment; None if no process runs it.
        newest: the later of the two files' timestamps, in seconds since 1970.
    """

    parts: tuple[tuple[int, int, int] | None, ...]
    owner: int | None
    newest: float

    @classmethod
    def of(cls, folder: Path) -> FileState:
        """Return the current state of the experiment in `folder`."""
        # The owner is read first. If it were read last, the owner could write and end before it is read, and
        # its last writes would be missed.
        owner = owner_of(folder)
        parts: list[tuple[int, int, int] | None] = []
        for name in (FILENAME, f"{FILENAME}-wal"):
            try:
                found = (folder / name).stat()
                parts.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except FileNotFoundError:
                parts.append(None)
        return cls(tuple(parts), owner, max((part[1] / 1e9 for part in parts if part), default=0.0))

    def stays(self, now: float) -> bool:
        """Return True if the last write is so old that any further write changes the timestamp."""
        return now - self.newest > SETTLED_S

    @property
    def inode(self) -> int | None:
        """Inode of the database file; None if the file does not exist."""
        return None if self.parts[0] is None else self.parts[0][0]

    def same_file(self, other: FileState | None) -> bool:
        """Return True if both states belong to the same file; False if the file was replaced."""
        return self.inode is not None and other is not None and self.inode == other.inode


class _LastValues:
    """Last values of a metric in all trials, and the state of the experiment's file when they were read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: FileState | None = None
        self.values: dict[str, float] = {}


class _Curve:
    """Points of a trial's curve, made from the reports that have been read.

    Args:
        attempt: number of the attempt that made the last report of the curve.
    """

    def __init__(self, attempt: int) -> None:
        self.attempt, self.iteration = attempt, -1
        self._xs, self._ys = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._xs)

    def add(self, reports: Iterable[tuple[int, Any, Any]]) -> None:
        """Add further reports (iteration, x, metric) whose x and metric are finite numbers."""
        # All reports are read before the first report is added, so that no report is added if an error
        # occurs.
        for self.iteration, at, value in list(reports):
            if is_finite(at) and is_finite(value):
                self._xs.append(at)
                self._ys.append(value)

    def points(self) -> list[tuple[float, float]]:
        """Return the points in order."""
        return list(zip(self._xs, self._ys, strict=True))


class _Curves:
    """Curves of an experiment's trials for one metric and one x value, by trial id."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size = 0
        self.of: OrderedDict[str, _Curve] = OrderedDict()

    def keep(self, trial_id: str, curve: _Curve) -> None:
        """Store a curve as the most recently used; above MAX_POINTS points, drop the least recently used."""
        self.of[trial_id] = curve
        self.of.move_to_end(trial_id)
        while self.size > MAX_POINTS:
            _, gone = self.of.popitem(last=False)
            self.size -= len(gone)


class RowReader(LogReader):
    """Reader of trials for tables and charts. Only this class contains the dashboard's SQL queries on
    experiments.

    Readers of an unchanged experiment share the last values of its trials. When a large experiment is first
    shown, several requests need these values at the same time: for the best trial, a page of the table, and
    each chart. Curves are shared too.

    Args:
        folder: folder of the experiment.
        state: state of the experiment's file, if it has just been determined; None: the reader determines the
            state.
    """

    _shared: ClassVar[OrderedDict[tuple[Path, str], _LastValues]] = OrderedDict()
    _sharing: ClassVar[threading.Lock] = threading.Lock()
    _drawn: ClassVar[OrderedDict[tuple[Hashable, ...], _Curves]] = OrderedDict()

    def __init__(self, folder: Path, state: FileState | None = None) -> None:
        # The state is determined before the file is opened, so that the data is never older than the state.
        self._begun = SYSTEM.now()
        self._state = state or FileState.of(folder)
        super().__init__(folder)

    def last_values(self, metric: str) -> dict[str, float]:
        """Map trial ids to the metric's last values, in the order of suggestion; do not change the result."""
        if not self._state.stays(self._begun):
            return super().last_values(metric)
        key = self.folder, metric
        with self._sharing:
            shared = self._shared.setdefault(key, _LastValues())
            self._shared.move_to_end(key)
            while len(self._shared) > MAX_SHARED:
                self._shared.popitem(last=False)
        with shared.lock:  # Each metric has its own lock, so that readers of other metrics do not wait.
            if shared.state != self._state:
                shared.values = super().last_values(metric)
                shared.state = self._state
            return shared.values

    def _column(self, sql: str, *values: Any) -> Iterator[Any]:
        return (row[0] for row in self._rows(sql, *values))

    def _first(self, sql: str, *values: Any) -> Any:
        return next(self._column(sql, *values), None)

    # --- trials as rows of a table ----------------------------------------------------------------

    def newest(self) -> int:
        """Return the sequence number of the last entry in the log of events and decisions."""
        place = self._first(
            "SELECT coalesce(max(seq), 0) FROM "
            "(SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM decisions)"
        )
        return int(place)

    def ids_after(self, index: int, seq: int) -> set[str]:
        """Return ids of trials that run, were suggested after `index`, or have log entries after `seq`."""
        return set(
            self._column(
                "SELECT trial_id FROM trials WHERE trial_index > ? "
                "UNION SELECT trial_id FROM events WHERE seq > ? AND trial_id IS NOT NULL "
                "UNION SELECT trial_id FROM decisions WHERE seq > ? "
                "UNION SELECT trial_id FROM trials WHERE status = 'RUNNING'",
                *(index, seq, seq),
            )
        )

    def ends(self, after: int = -1, ids: Collection[str] | None = None) -> dict[str, float | None]:
        """Return the end time of each trial; None for a trial that was resumed later.

        Args:
            after: sequence number; only later log entries are read.
            ids: only these trials.
        """
        only = "" if ids is None else "AND trial_id IN (SELECT value FROM json_each(?)) "
        return {
            trial_id: time if kind in _ENDS else None
            for trial_id, kind, time in self._rows(
                "SELECT trial_id, kind, time FROM events WHERE seq > ? AND trial_id IS NOT NULL "
                f"AND kind IN ('PENDING', 'PAUSED', 'TERMINATED', 'ERROR') {only}ORDER BY seq",
                after,
                *(() if ids is None else (json.dumps(list(ids)),)),
            )
        }

    def number_of_trials(self) -> int:
        """Return the number of trials."""
        return int(self._first("SELECT count(*) FROM trials"))

    def last_index(self) -> int:
        """Return the number of the trial that was suggested last, counted from 0; -1 if no trial exists."""
        return int(self._first("SELECT coalesce(max(trial_index), -1) FROM trials"))

    def page(self, limit: int, offset: int, *, descending: bool, by_last: str | None) -> list[str]:
        """Return the ids of one page of all trials.

        Args:
            limit: maximum number of trials in the page.
            offset: number of trials before the page.
            descending: reverse the order.
            by_last: metric by whose last values the trials are sorted; None means the order of suggestion.
        """
        way = "DESC" if descending else "ASC"
        in_order = f"SELECT trial_id FROM trials ORDER BY trial_index {way}"
        if by_last is None:
            return list(self._column(f"{in_order} LIMIT ? OFFSET ?", limit, offset))
        values = self.last_values(by_last)
        ids = sorted(values, key=values.__getitem__)
        if descending:
            ids.reverse()
        if offset + limit > len(ids):
            ids += [trial_id for trial_id in self._column(in_order) if trial_id not in values]
        return ids[offset : offset + limit]

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of hyperparameters and of reported values, found in at most a thousand trials."""
        places = range(0, self.last_index() + 1, self.last_index() // 1000 + 1)
        found = list(
            self._rows(
                f"SELECT {_CONFIG}, (SELECT metrics FROM results r WHERE "
                "r.trial_id = t.trial_id ORDER BY attempt DESC, iteration DESC LIMIT 1) FROM trials t "
                "WHERE trial_index IN (SELECT value FROM json_each(?)) ORDER BY trial_index",
                json.dumps(list(places)),
            )
        )
        # json_each() is avoided, because it ends a name at a null character.
        configs = (json.loads(flat_config(config)) for config, _ in found)
        metrics = (json.loads(flat_metrics(metrics)) for _, metrics in found)
        return list(dict.fromkeys(chain.from_iterable(configs))), list(
            dict.fromkeys(chain.from_iterable(metrics))
        )

    def rows(
        self,
        metric: str | None,
        mode: str | None,
        ids: Collection[str] | None,
        so_far: Mapping[str, SoFar | None] | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """Yield a row for each trial, in the order of COLUMNS, without `state`, `ended` and `changed`.

        Instead of the column `error`, each row ends with the error's kind, its message, and the attempt of
        the last report.

        Args:
            metric: metric of the columns `last` and `best`; None if the experiment has no metric.
            mode: "min" or "max".
            ids: ids of the trials; None means all.
            so_far: for each trial, the summary of its reports that were read before. If the trial's attempt
                continues, only later reports are read.
        """
        names = paths(metric) if metric is not None else ("$.x", "$.x")
        best = f"{'min' if mode == 'min' else 'max'}({FINITE})" if mode is not None else "max(NULL)"
        for one in [None] if ids is None else sorted(ids):
            yield from self._rows_of(one, names, best, None if so_far is None else so_far.get(str(one)))

    def _rows_of(
        self, one: str | None, names: tuple[str, str], best: str, known: SoFar | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the row of the trial `one`, or of all trials if `one` is None, joined from several tables."""
        only, values = ("", []) if one is None else ("WHERE trial_id = ? ", [one])
        # With max(), SQLite takes the other columns from the row that contains the maximum.
        last_of = _beside(
            self._rows(
                f"SELECT trial_id, attempt, iteration, metrics, {VALUE} FROM "
                + (
                    "(SELECT *, max(seq) FROM results GROUP BY trial_id) ORDER BY trial_id"
                    if one is None
                    else f"results {only}ORDER BY attempt DESC, iteration DESC LIMIT 1"
                ),
                *names,
                *values,
            )
        )
        best_of = _beside(
            self._rows(
                f"SELECT trial_id, {best}, min(attempt) < max(attempt) FROM (SELECT trial_id, attempt, "
                f"{VALUE} AS value FROM results {only}) GROUP BY trial_id ORDER BY trial_id",
                *names,
                *values,
            )
        )
        begun_of = _beside(
            self._rows(
                "SELECT trial_id, min(started), max(attempt), config FROM attempts "
                f"{only}GROUP BY trial_id ORDER BY trial_id",
                *values,
            )
        )
        for trial_id, index, name, status, reason, config, attempt, *rest in self._rows(
            "SELECT trial_id, trial_index, name, status, reason, config, attempt, failures, error_kind, "
            f"error_message FROM trials {only}ORDER BY trial_id",
            *values,
        ):
            (failures, *error), least = rest, None
            _, reported, iteration, metrics, last = last_of(trial_id) or (None, None, 0, None, None)
            _, started, _, other = begun_of(trial_id) or (None, None, None, None)
            if known is not None and known.attempt == attempt:
                least = self._first(
                    f"SELECT {best} FROM (SELECT ? AS value UNION ALL SELECT {VALUE} FROM results "
                    "WHERE trial_id = ? AND attempt = ? AND iteration > ?)",
                    *(known.best, *names, trial_id, known.attempt, known.iteration),
                )
            elif found := best_of(trial_id):
                _, least, is_repeated = found
                if is_repeated:
                    least = self._first(
                        f"SELECT {best} FROM (SELECT {VALUE} AS value FROM history WHERE trial_id = ?)",
                        *(*names, trial_id),
                    )
            last = last if isinstance(last, (int, float)) else None
            yield (
                *(trial_id, index, name, status, reason, config if other is None else other, metrics),
                *(iteration, last, least, attempt, failures, started, *error, reported),
            )

    def config(self, trial_id: str) -> tuple[int, str]:
        """Return a trial's number in the order of suggestion, and its latest configuration as flat JSON."""
        ((index, config),) = self._rows(
            f"SELECT trial_index, {_CONFIG} FROM trials t WHERE trial_id = ?", trial_id
        )
        return index, flat_config(config)

    def trial(self, trial_id: str) -> tuple[dict[str, Any], str, tuple[str, str, str] | None]:
        """Return a trial's suggested configuration, its folder's name, and its error (None without an error).

        Raises:
            NotFoundError: the trial does not exist.
        """
        for config, dirname, kind, message, trace in self._rows(
            "SELECT config, dirname, error_kind, error_message, error_traceback FROM trials "
            "WHERE trial_id = ?",
            trial_id,
        ):
            return (
                decode_config(config),
                dirname,
                None if kind is None else (kind, message or "", trace or ""),
            )
        raise NotFoundError(f"experiment {self.folder.name} has no trial {trial_id!r}")

    def checkpoints(self, trial_id: str) -> list[dict[str, Any]]:
        """Return the checkpoints of a trial that have not been deleted."""
        return [
            dict(zip(("number", "dirname", "iteration", "score"), row, strict=True))
            for row in self._rows(
                "SELECT number, dirname, iteration, score FROM checkpoints "
                "WHERE trial_id = ? AND NOT dropped ORDER BY number",
                trial_id,
            )
        ]

    def events_after(self, seq: int, limit: int) -> list[dict[str, Any]]:
        """Return log entries after `seq`, of the experiment and its trials; long strings are cut."""
        return [
            {**(each := event(*row)), "detail": _cut_detail(each["detail"])}
            for row in self._rows(
                "SELECT seq, time, kind, trial_id, detail FROM events WHERE seq > ? ORDER BY seq LIMIT ?",
                seq,
                limit,
            )
        ]

    def events_of(self, trial_id: str) -> list[dict[str, Any]]:
        """Return the log entries of one trial."""
        return [
            event(each.seq, each.time, each.kind, trial_id, each.detail) for each in self.events(trial_id)
        ]

    @cached_property
    def _identity(self) -> tuple[Hashable, ...]:
        """Key that identifies this experiment, because a later experiment in the folder may have a file with
        the same inode.
        """
        created = self._first("SELECT value FROM experiment WHERE key = 'created'")
        return self.folder, self._state.inode, created

    def curve(self, trial_id: str, metric: str, x: str) -> list[tuple[float, float]]:
        """Return the pair (x, metric) of each report of a trial; reports without finite numbers are left out.

        Points are kept, so that a running trial's curve only needs its new reports.
        """
        across = "iteration" if x == "training_iteration" else VALUE
        names = (*(() if x == "training_iteration" else paths(x)), *paths(metric))
        columns = f"iteration, {across}, {VALUE}"
        attempt = self._first("SELECT max(attempt) FROM results WHERE trial_id = ?", trial_id)
        if attempt is None:
            return []
        key = *self._identity, metric, x
        with self._sharing:
            shared = self._drawn.setdefault(key, _Curves())
            self._drawn.move_to_end(key)
            while len(self._drawn) > MAX_SHARED:
                self._drawn.popitem(last=False)
        with shared.lock:
            known = shared.of.get(trial_id)
            if known is not None and known.attempt == attempt:
                before = len(known)
                known.add(
                    self._rows(
                        f"SELECT {columns} FROM results "
                        "WHERE trial_id = ? AND attempt = ? AND iteration > ? ORDER BY iteration",
                        *(*names, trial_id, known.attempt, known.iteration),
                    )
                )
            else:  # A new attempt may replace earlier reports, so all reports are read again.
                before = 0 if known is None else len(known)
                known = _Curve(attempt)
                known.add(
                    self._rows(
                        f"SELECT {columns} FROM history WHERE trial_id = ? ORDER BY iteration",
                        *(*names, trial_id),
                    )
                )
            shared.size += len(known) - before
            shared.keep(trial_id, known)
            return known.points()

    def numbers(self, trial_ids: Sequence[str]) -> dict[str, int]:
        """Map each trial id to the trial's number in the order of suggestion; unknown ids are left out."""
        return self._of_trials("trial_index", trial_ids)

    def states(self, trial_ids: Sequence[str]) -> dict[str, str]:
        """Map trial ids to the states of the trials, such as "finished"."""
        statuses, reasons = (self._of_trials(column, trial_ids) for column in ("status", "reason"))
        return {trial_id: state_of(status, reasons[trial_id]) for trial_id, status in statuses.items()}

    def _of_trials(self, column: str, trial_ids: Sequence[str]) -> dict[str, Any]:
        sql = f"SELECT trial_id, {column} FROM trials WHERE trial_id IN (SELECT value FROM json_each(?))"
        return dict(self._rows(sql, json.dumps(list(trial_ids))))

    def first(self, count: int) -> list[str]:
        """Return the ids of the `count` trials that were suggested first."""
        return list(self._column("SELECT trial_id FROM trials ORDER BY trial_index LIMIT ?", count))

    def configs(self, trial_ids: Sequence[str]) -> list[Any]:
        """Return the configurations that were suggested for these trials."""
        found = self._of_trials("config", trial_ids)
        return [decode_config(found[trial_id]) for trial_id in trial_ids]

    def nothing(self, *names: str) -> MetricError:
        """Return an error that says that no trial has reported values of these metrics."""
        called = " and ".join(map(repr, names))
        return MetricError(f"no trial has reported a finite value of {called} yet that this chart can show")

    def has_reports(self, metric: str, trials: int = 1) -> bool:
        """Return True if at least `trials` trials have reported a finite value of the metric."""
        found = self._rows(
            f"SELECT DISTINCT trial_id FROM (SELECT trial_id, {VALUE} AS value FROM results) "
            f"WHERE {FINITE} IS NOT NULL LIMIT ?",
            *(*paths(metric), trials),
        )
        return len(list(found)) == trials

    def has_judged(self) -> bool:
        """Return True if a scheduler has judged any trial at a rung."""
        judged = "SELECT 1 FROM decisions WHERE json_extract(reason, '$.rule') = ? LIMIT 1"
        return self._first(judged, JUDGED) is not None

    def has_run(self) -> bool:
        """Return True if any trial has started."""
        return self._first("SELECT 1 FROM attempts LIMIT 1") is not None

    def judgements(self, metric: str) -> tuple[list[dict[str, Any]], dict[tuple[str, int], float]]:
        """Return the scheduler's decisions at rungs, and the reported values that it judged."""
        decisions: list[dict[str, Any]] = []
        values: dict[tuple[str, int], float] = {}
        for trial_id, iteration, verdict, reason, value in self._rows(
            f"SELECT trial_id, iteration, verdict, reason, {FINITE} FROM (SELECT d.seq AS place, d.trial_id, "
            f"d.iteration, d.verdict, d.reason, (SELECT {VALUE} FROM results r "
            "WHERE r.trial_id = d.trial_id AND r.attempt <= d.attempt AND r.iteration = d.iteration "
            "ORDER BY r.attempt DESC LIMIT 1) AS value FROM decisions d "
            "WHERE json_extract(d.reason, '$.rule') IN (?, ?)) ORDER BY place",
            *paths(metric),
            JUDGED,
            CAME,
        ):
            decisions.append(
                {"trial_id": trial_id, "iteration": iteration, "verdict": verdict, **decode(reason)}
            )
            if value is not None:
                values[trial_id, iteration] = value
        return decisions, values


class SoFar(NamedTuple):
    """Summary of the reports that were read of a trial's current attempt: last iteration and best value."""

    attempt: int
    iteration: int
    best: float | None


def _beside(rows: Iterator[tuple[Any, ...]]) -> Callable[[str], tuple[Any, ...] | None]:
    """Return a function that finds the row of a trial id; it must be called with ids in sorted order."""
    # The search begins with the empty id, which is smaller than all ids, so the first call reads the first
    # row.
    row: tuple[Any, ...] | None = ("",)

    def of(trial_id: str) -> tuple[Any, ...] | None:
        nonlocal row
        while row is not None and row[0] < trial_id:
            row = next(rows, None)
        return row if row is not None and row[0] == trial_id else None

    return of


def short(text: str) -> str:
    """Return `text`; a text above MAX_TEXT characters is cut and ends with an ellipsis."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def cut(values: str) -> str:
    """Shorten a JSON object: names and values to MAX_TEXT characters each, and the object to about MAX_ROW.

    Names and values that are too long are cut. When the total is reached, further values are left out.
    """
    if len(values) <= MAX_TEXT:
        return values
    kept, size = dict[str, Any](), 0
    for name, value in json.loads(values).items():
        kept[short(name)] = part = _cut_value(value)
        size += min(len(name), MAX_TEXT) + len(encode(part))
        if size > MAX_ROW:
            kept["..."] = "further values are left out"
            break
    return encode(kept)


def _cut_value(value: Any) -> Any:
    text = value if isinstance(value, str) else encode(value)
    return value if len(text) <= MAX_TEXT else short(text)


def event(seq: int, time: float, kind: str, trial_id: str | None, detail: str) -> dict[str, Any]:
    """Return a log entry as a dictionary; `by` is the sender if the entry is a command."""
    by = None
    if kind == "command":
        with contextlib.suppress(ValueError):
            found = json.loads(detail)
            by = str(found.get("by")) if isinstance(found, dict) and found.get("by") else None
    return {"seq": seq, "time": time, "kind": kind, "trial_id": trial_id, "detail": detail, "by": by}


def _cut_detail(detail: str) -> str:
    """Shorten a log entry's detail; in a JSON object, each value is shortened, so it remains valid JSON."""
    if len(detail) <= MAX_TEXT:
        return detail
    with contextlib.suppress(ValueError):
        if isinstance(json.loads(detail), dict):
            return cut(detail)
    return short(detail)


def _is_flat(text: str) -> bool:
    """Return True if a JSON object contains no nested object."""
    return "{" not in text[1:]


def flat_config(config: str) -> str:
    """Return a stored configuration as flat JSON."""
    return config if _is_flat(config) else encode(without_objects(flatten(decode_config(config))))


def flat_metrics(metrics: str | None) -> str:
    """Return a stored report as flat JSON; "{}" if the trial has no report."""
    if metrics is None:
        return "{}"
    return metrics if _is_flat(metrics) else encode(without_objects(flatten(decode(metrics))))
