"""Reader of an experiment file that may still be written."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, overload

from trainkit.errors import StoreError
from trainkit.lazy import without_collection
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import Origin, checkpoint_score, full_result
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.configs import CheckpointConfig
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import decode
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Attempt, Failure, SavedCheckpoint, Trial, TrialStatus, state_of
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.space.serialization import decode_config
from trainkit.tune.store.schema import FILENAME, open_database


class LogEntry(NamedTuple):
    """Entry in the log of all events that searcher and scheduler received.

    Attributes:
        kind: kind of an event in the file (began, PENDING, PAUSED, TERMINATED, ERROR, rearranged, command, no
            more trials), or "trial" (the trial was suggested), "result" (the trial reported), "RESUME" (the
            trial continues instead of pausing), "pulled" (a command paused the trial), or "again" (the trial
            had ended and runs again).
        trial_id: id of the trial; None for the whole experiment.
        data: details of the event: for a report, the complete result; for the end of a trial, True unless the
            trial was resumed later; for a rearrangement or a command, a dictionary.
    """

    kind: str
    trial_id: str
    data: Any = None


Result = dict[str, Any]


class PastResults(Sequence[Result]):
    """Results of a trial, oldest first. The results are read on first access; len() needs no reading.

    Args:
        trial_id: id of the trial.
        length: number of results.
        read: function that reads a trial's results.
    """

    __slots__ = ("_length", "_read", "_results", "_trial_id")

    def __init__(self, trial_id: str, length: int, read: Callable[[str], list[Result]]) -> None:
        self._trial_id = trial_id
        self._length = length
        self._read = read
        self._results: list[Result] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if self._results is None:
            self._results = self._read(self._trial_id)
        return self._results[index]


SIMULATED = "simulated"
"""Host name of the workers of a simulated experiment."""


@dataclass(frozen=True, slots=True)
class Span:
    """Attempt of a trial, from its start to its end.

    Attributes:
        trial_id: id of the trial.
        attempt: number of the attempt, from 0.
        place: host and process id, or the worker of a simulation.
        started: start time in seconds since 1970, or on a simulation's clock.
        ended: end time; None: still running, or the end was not recorded.
        status: status of the trial at the attempt's end: PENDING if another attempt was to follow; RUNNING if
            `ended` is None.
        reason: reason for the status in words.
        outcome: "finished", "stopped", "paused", "failed", "cut" (ended by the experiment's end) or
            "running".
    """

    trial_id: str
    attempt: int
    place: tuple[str, int]
    started: float
    ended: float | None
    status: TrialStatus
    reason: str
    outcome: str


def outcome_of(status: TrialStatus, reason: str, *, failed: bool, endings: Collection[str]) -> str:
    """Return the outcome of an attempt as one word.

    Args:
        status: status of the trial at the attempt's end; RUNNING: the attempt has not ended.
        reason: reason for the status in words.
        failed: True if the attempt failed, whatever the trial's status.
        endings: reasons of the experiment's early ends, in words.
    """
    if failed or status is TrialStatus.ERROR:
        return "failed"
    if status is TrialStatus.RUNNING:
        return "running"
    if status is TrialStatus.PAUSED:
        return "paused"
    if status is TrialStatus.PENDING or any(reason.startswith(ending) for ending in endings):
        return "cut"
    return "finished" if state_of(status, reason) == "finished" else "stopped"


_TEXT = partial(str, encoding="utf-8", errors="replace")
"""Decoder of UTF-8 bytes that may be damaged."""
_NOT_READ = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions that show that a stored text is damaged."""


def _decode_ascii(text: str) -> Any:
    # Configurations are stored as ASCII, so any other character shows a damaged byte.
    return decode_config(text.encode("ascii").decode())


_CONFIG = "a configuration of trial {}"
_Member = TypeVar("_Member", TrialStatus, Verdict)


class ExperimentReader:
    """Reader of the experiment in `folder`.

    Raises:
        StoreError: the experiment is missing, or its file is damaged or was not written by trainkit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection = open_database(folder / FILENAME, read_only=True)
        self._connection.text_factory = _TEXT
        self._damaged: set[str] = set()
        self._origins: dict[tuple[str, int], Origin] = {}
        self._origins_as_of: tuple[Any, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def facts(self) -> dict[str, Any]:
        """Return the stored properties of the whole experiment, such as seed, space and settings, by name.

        Raises:
            StoreError: a property is damaged.
        """
        facts = {}
        for key, value in self._rows("SELECT key, value FROM experiment"):
            try:
                facts[key] = decode_config(value)
            except _NOT_READ as error:
                raise StoreError(
                    f"{self.folder / FILENAME} is damaged: {key!r} in the table experiment can't be read; "
                    "sqlite3 can still read the tables trials and results"
                ) from error
        return facts

    @without_collection()
    def trials(self, policy: CheckpointConfig | None = None) -> list[Trial]:
        """Return all trials in the order of suggestion, as last committed.

        Args:
            policy: policy by which the checkpoints are ranked again; None: the stored ranking.
        """
        checkpoints: dict[str, list[SavedCheckpoint]] = defaultdict(list)
        numbers: dict[str, int] = {}
        # A checkpoint that was copied from a different trial has no report of its new trial. The times of the
        # checkpoint are the times of its new trial's last report.
        for trial_id, dropped, number, dirname, iteration, score, metrics, latest in self._rows(
            "SELECT c.trial_id, c.dropped, c.number, c.dirname, c.iteration, c.score, r.metrics, "
            "CASE WHEN r.metrics IS NULL AND NOT c.dropped THEN (SELECT metrics FROM results "
            "WHERE trial_id = c.trial_id ORDER BY seq DESC LIMIT 1) END "
            "FROM checkpoints c LEFT JOIN results r "
            "ON r.trial_id = c.trial_id AND r.attempt = c.attempt AND r.iteration = c.iteration "
            "ORDER BY c.trial_id, c.number"
        ):
            numbers[trial_id] = number + 1
            if not dropped:
                result = self._report(trial_id, metrics or "{}")
                spent = result or self._report(trial_id, latest or "{}")
                # A damaged report can't be ranked, so the stored score is kept.
                if policy is not None and (result or not metrics):
                    score = checkpoint_score(policy, result)
                checkpoints[trial_id].append(SavedCheckpoint.after(number, dirname, iteration, score, spent))
        trials = []
        places: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        columns = (
            "t.trial_id, trial_index, t.config, name, dirname, tag, status, reason, t.attempt, failures, "
            "error_kind, error_message, error_traceback"
        )
        # Grouping by trial avoids a copy of all reports. If a query contains max(), SQLite takes the other
        # columns from the row with the maximum.
        for row in self._rows(
            f"SELECT {columns}, r.iteration, r.metrics, a.config, a.pid, a.hostname, a.node_ip FROM "
            "(SELECT trial_id, max(seq), attempt, iteration, metrics FROM results GROUP BY trial_id) r "
            "CROSS JOIN attempts a USING (trial_id, attempt) CROSS JOIN trials t USING (trial_id) "
            f"UNION ALL SELECT {columns}, 0, NULL, NULL, NULL, NULL, NULL FROM trials t "
            "WHERE NOT EXISTS (SELECT * FROM results r WHERE r.trial_id = t.trial_id)"
        ):
            trial_id, index, config, name, dirname, tag, status, reason, attempt, failures = row[:10]
            kind, message, trace, iteration, metrics, other, pid = row[10:17]
            place = row[17:]
            suggested, result = self._config(trial_id, config), {}
            if metrics is not None and (last := self._report(trial_id, metrics)):
                # The trial and its result share one configuration object, because most attempts run with the
                # trial's own configuration.
                own = suggested if other is None else self._config(trial_id, other)
                # All trials on a machine share one tuple for pid and host, which saves memory.
                host, ip = places.setdefault(place, place)
                origin = Origin(trial_id, tag, own, pid, host, ip)
                result = full_result(last, origin, done=False)
            trials.append(
                Trial(
                    trial_id=trial_id,
                    index=index,
                    config=suggested,
                    name=name,
                    dirname=dirname,
                    tag=tag,
                    status=self._member(TrialStatus, status, trial_id),
                    reason=reason,
                    attempt=attempt,
                    failures=failures,
                    iteration=iteration,
                    last_result=result,
                    checkpoints=checkpoints.get(trial_id, []),
                    failure=Failure(kind, message, trace or "") if status == "ERROR" else None,
                    next_checkpoint=numbers.get(trial_id, 0),
                )
            )
        trials.sort(key=lambda trial: trial.index)
        self._rearrange({trial.trial_id: trial for trial in trials})
        return trials

    def _rearrange(self, trials: Mapping[str, Trial]) -> None:
        """Apply the changes of trials' configurations and resources that were made after the suggestion."""
        for trial_id, detail in self._rows(
            "SELECT trial_id, detail FROM events WHERE kind = ? ORDER BY seq", ev.REARRANGED
        ):
            arrangement = self._config(trial_id, detail)
            # a trial may have been added after the list of trials was read
            if arrangement and trial_id in trials:
                trial = trials[trial_id]
                trial.alone = arrangement["alone"]
                if arrangement["granted"] is not None:
                    trial.request = trial.granted = PlacementGroupFactory(*arrangement["granted"])
                if arrangement["config"] is not None:
                    trial.tried.append(trial.config)
                    trial.config = arrangement["config"]

    def last_date(self) -> float:
        """Return the time of the last event in seconds since 1970; 0 without an event."""
        rows = self._rows("SELECT time FROM events ORDER BY seq DESC LIMIT 1")
        return next((float(time) for (time,) in rows), 0.0)

    def spent_s(self) -> float:
        """Return the total running time of the experiment's runs in seconds, up to the last event."""
        # Each element of `runs` has the number of the run's first entry, its start time, and its last time.
        runs: list[tuple[int, float, float]] = []
        for seq, kind, time in self._rows("SELECT seq, kind, time FROM events ORDER BY seq"):
            if kind == ev.BEGAN:
                runs.append((seq, time, time))
            elif runs:
                runs[-1] = (*runs[-1][:2], max(runs[-1][2], time))
        ends = [*(seq for seq, _, _ in runs[1:]), sys.maxsize]
        return sum(
            max(until, self._last_report(seq, end)) - since
            # If no run is recorded, `ends` is longer than `runs`.
            for (seq, since, until), end in zip(runs, ends, strict=False)
        )

    def _last_report(self, after: int, before: int) -> float:
        rows = self._rows(
            "SELECT metrics FROM results WHERE seq > ? AND seq < ? ORDER BY seq DESC LIMIT 1", after, before
        )
        stamp = next((self._whole(decode, each, "a report").get("timestamp") for (each,) in rows), None)
        return float(stamp) if is_number(stamp) and stamp is not None else 0.0

    def started(self) -> set[tuple[str, int]]:
        """Return the attempts that have started, as (trial id, attempt's number)."""
        return {(row[0], row[1]) for row in self._rows("SELECT trial_id, attempt FROM attempts")}

    def last_starts(self) -> dict[str, float]:
        """Return the start time of each trial's last attempt, without trials that never ran."""
        return dict(self._rows("SELECT trial_id, max(started) FROM attempts GROUP BY trial_id"))

    def stops(self) -> dict[str, dict[str, Any]]:
        """Return the reason of the stop for each trial that was stopped at its last report."""
        return {
            trial_id: dict(decision.reason)
            for trial_id, decision in self.verdicts().items()
            if decision.verdict is Verdict.STOP
        }

    def verdicts(self) -> dict[str, Decision]:
        """Return each trial's last decision, unless a report came after the decision."""
        return {
            trial_id: Decision(
                self._member(Verdict, verdict, trial_id),
                self._whole(decode, reason, f"a decision on trial {trial_id}"),
            )
            for trial_id, verdict, reason, decided, reported in self._rows(
                "SELECT d.trial_id, d.verdict, d.reason, max(d.seq), "
                "(SELECT max(r.seq) FROM results r WHERE r.trial_id = d.trial_id) "
                # Only decisions on the current attempt count, because a trial that was stopped in an earlier
                # attempt was resumed.
                "FROM decisions d JOIN trials t USING (trial_id) WHERE d.attempt = t.attempt "
                "GROUP BY d.trial_id"
            )
            if decided > reported
        }

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        """Return the reports of a trial by iteration, without reports that a later attempt replaced."""
        return [
            result
            for attempt, metrics in self._rows(
                "SELECT attempt, metrics FROM history WHERE trial_id = ? ORDER BY iteration", trial_id
            )
            if (result := self._result(trial_id, attempt, metrics))
        ]

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the reports of each trial that has reports, in one pass."""
        self._take_origins()
        reports = self._rows("SELECT trial_id, attempt, metrics FROM history ORDER BY trial_id, iteration")
        for trial_id, rows in groupby(reports, key=itemgetter(0)):
            results = (self._result(trial_id, attempt, metrics) for _, attempt, metrics in rows)
            yield trial_id, [result for result in results if result]

    @without_collection()
    def past(self) -> dict[str, PastResults]:
        """Return the results of each trial that has reports; they are read on first access."""
        return {
            trial_id: PastResults(trial_id, length, self.history)
            for trial_id, length in self._rows("SELECT trial_id, count(*) FROM history GROUP BY trial_id")
        }

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        """Return each checkpoint's report, by checkpoint number; {} for a checkpoint without a report."""
        return {
            number: self._result(trial_id, attempt, metrics) if metrics else {}
            for number, attempt, metrics in self._rows(
                "SELECT c.number, c.attempt, r.metrics FROM checkpoints c LEFT JOIN results r "
                "ON r.trial_id = c.trial_id AND r.attempt = c.attempt AND r.iteration = c.iteration "
                "WHERE c.trial_id = ? ORDER BY c.number",
                trial_id,
            )
        }

    def checkpoint_folders(self) -> set[str]:
        """Return the folders of all kept checkpoints, such as "trial/checkpoint_000003"."""
        return {
            f"{trial}/{checkpoint}"
            for trial, checkpoint in self._rows(
                "SELECT t.dirname, c.dirname FROM checkpoints c JOIN trials t USING (trial_id) "
                "WHERE NOT c.dropped"
            )
        }

    def decisions(self, trial_id: str | None = None) -> list[dict[str, Any]]:
        """Return the decisions on the reports of a trial, or of all trials, in order, with their reasons."""
        return [
            {
                "trial_id": trial,
                "attempt": attempt,
                "iteration": at,
                "verdict": verdict,
                **self._whole(decode, reason, f"a decision on trial {trial}"),
            }
            for trial, attempt, at, verdict, reason in self._rows(
                "SELECT trial_id, attempt, iteration, verdict, reason FROM decisions "
                "WHERE ?1 IS NULL OR trial_id = ?1 ORDER BY seq",
                trial_id,
            )
        ]

    def exchanges(self) -> list[Exchange]:
        """Return all changes of trials' configurations since their suggestion, in order."""
        details = (
            (trial_id, self._config(trial_id, detail) or {"config": None})
            for trial_id, detail in self._rows(
                "SELECT trial_id, detail FROM events WHERE kind = ? ORDER BY seq", ev.REARRANGED
            )
        )
        return [
            Exchange(trial_id, each["iteration"], each["config"], each["donor"], each["donor_iteration"])
            for trial_id, each in details
            if each["config"] is not None
        ]

    def attempts(self, trial_id: str) -> list[Attempt]:
        """Return the attempts of a trial in order; an attempt has ended when the next attempt starts."""
        return [
            Attempt(
                number,
                self._config(trial_id, config),
                started,
                iteration,
                reports,
                outcome or "",
                pid,
                hostname,
            )
            for number, config, started, iteration, reports, outcome, pid, hostname in self._rows(
                "SELECT a.attempt, coalesce(a.config, t.config), a.started, a.iteration, "
                "(SELECT count(*) FROM results r WHERE r.trial_id = a.trial_id AND r.attempt = a.attempt), "
                "(SELECT e.detail FROM events e WHERE e.trial_id = a.trial_id AND e.time >= a.started "
                "AND e.time < coalesce(a.next, 9e99) "
                "AND e.kind IN ('PENDING', 'PAUSED', 'TERMINATED', 'ERROR') "
                "ORDER BY e.seq LIMIT 1), a.pid, a.hostname "
                "FROM (SELECT *, lead(started) OVER (ORDER BY attempt) AS next FROM attempts "
                "WHERE trial_id = ?) a JOIN trials t USING (trial_id) ORDER BY a.attempt",
                trial_id,
            )
        ]

    def spans(self) -> list[Span]:
        """Return all attempts with their times and outcomes, in the order of their starts."""
        endings = {detail for (detail,) in self._rows("SELECT detail FROM events WHERE kind = 'ending'")}
        ends = defaultdict(list)
        for trial_id, *end in self._rows(
            "SELECT trial_id, time, kind, detail FROM events "
            "WHERE kind IN ('PENDING', 'PAUSED', 'TERMINATED', 'ERROR') ORDER BY seq"
        ):
            ends[trial_id].append(end)
        spans = []
        for trial_id, attempt, hostname, pid, started, following in self._rows(
            "SELECT trial_id, attempt, hostname, pid, started, "
            "lead(started, 1, 9e99) OVER (PARTITION BY trial_id ORDER BY attempt) "
            "FROM attempts ORDER BY started, trial_id, attempt"
        ):
            within = (end for end in ends[trial_id] if started <= end[0] <= following)
            ended, kind, reason = next(within, (None, "RUNNING", ""))
            status = TrialStatus(kind)
            # A retry appears in the file only as the reason of a pending trial, such as 'retry 1 of 2 after
            # OutOfMemoryError'.
            failed = status is TrialStatus.PENDING and " after " in reason
            outcome = outcome_of(status, reason, failed=failed, endings=endings)
            spans.append(Span(trial_id, attempt, (hostname, pid), started, ended, status, reason, outcome))
        return spans

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the start of each trial's first attempt and the trial's end, in seconds since 1970."""
        return {
            trial_id: (started, ended)
            for trial_id, started, ended in self._rows(
                "SELECT t.trial_id, (SELECT min(a.started) FROM attempts a WHERE a.trial_id = t.trial_id), "
                "e.ended FROM trials t LEFT JOIN (SELECT trial_id, max(time) AS ended FROM events "
                "WHERE kind IN ('TERMINATED', 'ERROR') GROUP BY trial_id) e USING (trial_id)"
            )
        }

    def log(self, trials: Iterable[Trial] = ()) -> Generator[LogEntry]:
        """Yield all events that searcher and scheduler received, in order.

        Args:
            trials: all trials that this reader has read, unchanged. The last results of these trials are not
                read again.
        """
        last = {trial.trial_id: trial.last_result for trial in trials}
        known = {seq for (seq,) in self._rows("SELECT max(seq) FROM results GROUP BY trial_id")}
        if not last:
            self._take_origins()
        for seq, kind, trial_id, attempt, data in self._rows(
            "SELECT seq, kind, trial_id, attempt, data FROM ("
            "SELECT seq, 'trial' AS kind, trial_id, 0 AS attempt, '' AS data FROM trials "
            "UNION ALL SELECT seq, 'result', trial_id, attempt, metrics FROM results "
            "UNION ALL SELECT e.seq, e.kind, e.trial_id, 0, t.status IN ('TERMINATED', 'ERROR') AND e.seq = "
            "max(e.seq) OVER (PARTITION BY e.trial_id) FROM events e JOIN trials t "
            "USING (trial_id) WHERE e.kind IN ('TERMINATED', 'ERROR') "
            "UNION ALL SELECT seq, 'again', trial_id, 0, '' FROM (SELECT seq, trial_id, kind, lag(kind) "
            "OVER (PARTITION BY trial_id ORDER BY seq) AS before FROM events WHERE kind IN "
            "('PENDING', 'TERMINATED', 'ERROR')) WHERE kind = 'PENDING' AND before <> 'PENDING' "
            "UNION ALL SELECT seq, 'RESUME', trial_id, 0, '' FROM decisions WHERE verdict = 'RESUME' "
            "UNION ALL SELECT seq, 'pulled', trial_id, 0, '' FROM decisions WHERE verdict = 'PAUSE' "
            "AND json_extract(reason, '$.command') IS NOT NULL "
            "UNION ALL SELECT seq, kind, trial_id, 0, json_insert(detail, '$.time', time) FROM events "
            "WHERE kind = ?4 "
            "UNION ALL SELECT seq, kind, trial_id, 0, detail FROM events "
            "WHERE kind IN (?1, ?2, ?3, ?5, ?6, 'PAUSED', 'PENDING')) ORDER BY seq",
            *(ev.BEGAN, ev.REARRANGED, ev.NO_MORE_TRIALS, ev.COMMAND, ev.TOTAL, ev.LEFT_OUT),
        ):
            if kind == "result":
                data = last[trial_id] if last and seq in known else self._result(trial_id, attempt, data)
                if not data:
                    continue
            elif kind == ev.REARRANGED:
                data = self._config(trial_id, data)
                if not data:
                    continue
            elif kind in (ev.COMMAND, ev.TOTAL, ev.LEFT_OUT):
                # An entry may be a number instead of a dictionary, or None for an unlimited number of trials.
                held = self._whole(lambda text: {"value": decode(text)}, data, f"an entry {kind!r}")
                if not held:
                    continue
                data = held["value"]
            yield LogEntry(kind, trial_id, data)

    def _result(self, trial_id: str, attempt: int, metrics: str) -> dict[str, Any]:
        """Return a report with automatic keys such as `trial_id`; {} if the report is damaged."""
        report = self._report(trial_id, metrics)
        return full_result(report, self._origin(trial_id, attempt), done=False) if report else {}

    def _report(self, trial_id: str, metrics: str) -> dict[str, Any]:
        return self._whole(decode, metrics, f"a report of trial {trial_id}")

    def _config(self, trial_id: str, text: str) -> dict[str, Any]:
        return self._whole(_decode_ascii, text, _CONFIG.format(trial_id))

    def require_configurations(self, trial_ids: Iterable[str]) -> None:
        """Check that the method `trials` could read the configurations of these trials.

        Raises:
            StoreError: a configuration is damaged, so its trial can't run.
        """
        for what in sorted(self._damaged & set(map(_CONFIG.format, trial_ids))):
            raise StoreError(
                f"{self.folder / FILENAME} is damaged: {what} can't be read, so this trial can't continue. "
                "Restore without the trial: use resume_config=tune.ResumeConfig(...) with SKIP for its status"
            )

    def _member(self, kind: type[_Member], text: str, trial_id: str) -> _Member:
        try:
            return kind(text)
        except ValueError as error:
            raise StoreError(
                f"{self.folder / FILENAME} is damaged: {text!r} of trial {trial_id} is not a {kind.__name__}"
            ) from error

    def _whole(self, read: Callable[[str], Any], text: str, what: str) -> dict[str, Any]:
        """Return the dictionary that `read` finds in a text; warn once and return {} for a damaged text."""
        try:
            return dict(read(text))
        except _NOT_READ:
            if what not in self._damaged:
                self._damaged.add(what)
                words = "%s is damaged: %s can't be read and is left out; all other data is kept"
                logger.warning(words, self.folder / FILENAME, what)
            return {}

    def _origin(self, trial_id: str, attempt: int) -> Origin:
        if (trial_id, attempt) not in self._origins:
            self._origins |= self._read_origins(trial_id)
        return self._origins[trial_id, attempt]

    def _take_origins(self) -> None:
        """Read the origins (process and configuration) of all attempts, if a new attempt has started."""
        (as_of,) = self._rows("SELECT count(*), max(started) FROM attempts")
        if as_of != self._origins_as_of:
            self._origins, self._origins_as_of = self._read_origins(), as_of

    def _read_origins(self, of: str | None = None) -> dict[tuple[str, int], Origin]:
        """Return the origins (process and configuration) of one trial's attempts, or of all attempts."""
        return {
            (trial_id, attempt): Origin(trial_id, tag, self._config(trial_id, config), pid, hostname, node_ip)
            for trial_id, attempt, tag, config, pid, hostname, node_ip in self._rows(
                "SELECT a.trial_id, a.attempt, t.tag, coalesce(a.config, t.config), a.pid, a.hostname, "
                "a.node_ip FROM attempts a JOIN trials t USING (trial_id)"
                + (" WHERE a.trial_id = ?" if of else ""),
                *([of] if of else []),
            )
        }

    def _rows(self, sql: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        try:
            with contextlib.closing(self._connection.execute(sql, values)) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise StoreError(f"{self.folder / FILENAME} is damaged or cannot be read: {error}") from error
