"""Reads an experiment's file, also while it is written: facts, trials, reports, and the log to replay."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainkit.errors import StoreError
from trainkit.tune.autofill import Origin, full_result
from trainkit.tune.schema import FILENAME, open_database
from trainkit.tune.trial import Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.values import decode, decode_config


@dataclass(frozen=True, slots=True)
class Suggested:
    """Entry of the log: a trial was added, with this configuration as stored."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Report:
    """Entry of the log: a trial reported."""

    trial_id: str
    attempt: int
    iteration: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """Entry of the log: a trial ended for good, in ERROR or not."""

    trial_id: str
    error: bool


LogEntry = Suggested | Report | Ended


class ExperimentReader:
    """Reads the experiment in `folder`.

    Raises:
        StoreError: there is none, or its file is damaged or foreign.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection = open_database(folder / FILENAME, read_only=True)
        self._origins: dict[tuple[str, int], Origin] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def facts(self) -> dict[str, Any]:
        """What holds for the whole experiment, by name."""
        return {key: decode_config(value) for key, value in self._rows("SELECT key, value FROM experiment")}

    def trials(self) -> list[Trial]:
        """All trials in the order suggested, as they were when last committed."""
        checkpoints: dict[str, list[SavedCheckpoint]] = defaultdict(list)
        numbers: dict[str, int] = {}
        for trial_id, dropped, number, dirname, iteration, score, metrics in self._rows(
            "SELECT c.trial_id, c.dropped, c.number, c.dirname, c.iteration, c.score, r.metrics "
            "FROM checkpoints c LEFT JOIN results r "
            "ON r.trial_id = c.trial_id AND r.attempt = c.attempt AND r.iteration = c.iteration "
            "ORDER BY c.trial_id, c.number"
        ):
            numbers[trial_id] = number + 1
            if not dropped:
                result = decode(metrics) if metrics else {}
                checkpoints[trial_id].append(SavedCheckpoint.after(number, dirname, iteration, score, result))
        last = self._last_results()
        trials = []
        for row in self._rows(
            "SELECT trial_id, trial_index, config, name, dirname, tag, status, reason, attempt, failures, "
            "error_kind, error_message, error_traceback FROM trials ORDER BY trial_index"
        ):
            trial_id, index, config, name, dirname, tag, status, reason, attempt, failures = row[:10]
            kind, message, trace = row[10:]
            report = last.get(trial_id)
            trials.append(
                Trial(
                    trial_id=trial_id,
                    index=index,
                    config=decode_config(config),
                    name=name,
                    dirname=dirname,
                    tag=tag,
                    status=TrialStatus(status),
                    reason=reason,
                    attempt=attempt,
                    failures=failures,
                    iteration=report.iteration if report else 0,
                    last_result=report.result if report else {},
                    checkpoints=checkpoints.get(trial_id, []),
                    failure=Failure(kind, message, trace or "") if status == "ERROR" else None,
                    next_checkpoint=numbers.get(trial_id, 0),
                )
            )
        return trials

    def started(self) -> set[tuple[str, int]]:
        """The attempts that ran: (trial, attempt)."""
        return set(self._read_origins())

    def stops(self) -> dict[str, dict[str, Any]]:
        """By trial, the reason of the stop that was decided on its last report, if one was."""
        return {
            trial_id: decode(reason)
            for trial_id, verdict, reason, decided, reported in self._rows(
                "SELECT d.trial_id, d.verdict, d.reason, max(d.seq), "
                "(SELECT max(r.seq) FROM results r WHERE r.trial_id = d.trial_id) "
                "FROM decisions d GROUP BY d.trial_id"
            )
            if verdict == "STOP" and decided > reported
        }

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        """The reports of a trial by iteration; of one reported twice, the later attempt's."""
        return [
            self._result(trial_id, attempt, metrics)
            for attempt, metrics in self._rows(
                "SELECT attempt, metrics FROM history WHERE trial_id = ? ORDER BY iteration", trial_id
            )
        ]

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """The same for each trial that has reported, in one pass."""
        current: str | None = None
        results: list[dict[str, Any]] = []
        for trial_id, attempt, metrics in self._rows(
            "SELECT trial_id, attempt, metrics FROM history ORDER BY trial_id, iteration"
        ):
            if trial_id != current:
                if current is not None:
                    yield current, results
                current, results = trial_id, []
            results.append(self._result(trial_id, attempt, metrics))
        if current is not None:
            yield current, results

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        """By checkpoint number, the report that it came with; {} for one saved without a report."""
        return {
            number: self._result(trial_id, attempt, metrics) if metrics else {}
            for number, attempt, metrics in self._rows(
                "SELECT c.number, c.attempt, r.metrics FROM checkpoints c LEFT JOIN results r "
                "ON r.trial_id = c.trial_id AND r.attempt = c.attempt AND r.iteration = c.iteration "
                "WHERE c.trial_id = ? ORDER BY c.number",
                trial_id,
            )
        }

    def decisions(self, trial_id: str) -> list[dict[str, Any]]:
        """What was decided on a trial's reports, in order: iteration, verdict and the reason's facts."""
        return [
            {"attempt": attempt, "iteration": iteration, "verdict": verdict, **decode(reason)}
            for attempt, iteration, verdict, reason in self._rows(
                "SELECT attempt, iteration, verdict, reason FROM decisions WHERE trial_id = ? ORDER BY seq",
                trial_id,
            )
        ]

    def metric_numbers(self, metric: str, *, best: str) -> dict[str, tuple[float | None, float | None]]:
        """By trial, the last and the best value of `metric`; None where it is missing or no finite number.

        Args:
            metric: its name, or a path such as "eval/loss".
            best: "min" or "max".
        """
        plain = "$." + json.dumps(metric)
        nested = "$." + ".".join(map(json.dumps, metric.split("/")))
        value = "coalesce(json_extract(metrics, ?), json_extract(metrics, ?))"
        numbers = f"SELECT trial_id, iteration, attempt, {value} AS value FROM history"
        finite = "CASE WHEN typeof(value) IN ('integer', 'real') THEN value END"
        order = {"min": "min", "max": "max"}[best]
        last = {
            trial_id: number
            for trial_id, _, number in self._rows(
                f"SELECT trial_id, max(iteration), {finite} FROM ({numbers}) GROUP BY trial_id", plain, nested
            )
        }
        return {
            trial_id: (last[trial_id], number)
            for trial_id, number in self._rows(
                f"SELECT trial_id, {order}({finite}) FROM ({numbers}) GROUP BY trial_id", plain, nested
            )
        }

    def curve(self, trial_id: str, metric: str) -> list[tuple[int, float]]:
        """(iteration, value) of each report with a finite number as `metric`."""
        plain = "$." + json.dumps(metric)
        nested = "$." + ".".join(map(json.dumps, metric.split("/")))
        return [
            (iteration, value)
            for iteration, value in self._rows(
                "SELECT iteration, coalesce(json_extract(metrics, ?), json_extract(metrics, ?)) AS value "
                "FROM history WHERE trial_id = ? ORDER BY iteration",
                plain,
                nested,
                trial_id,
            )
            if isinstance(value, (int, float))
        ]

    def ending(self) -> str:
        """Why the experiment has ended or is about to; '' while it goes on, or if it was killed."""
        newest = True
        for kind, detail in self._rows("SELECT kind, detail FROM events ORDER BY seq DESC"):
            if kind == "ending" or (kind == "ended" and newest):
                return str(detail)
            if kind == "ended":  # of an earlier run, which this one has gone on from
                break
            newest = False
        return ""

    def log(self) -> Iterator[LogEntry]:
        """All that searcher and scheduler were told, in the order they were told it."""
        for kind, trial_id, attempt, iteration, text in self._rows(
            "SELECT kind, trial_id, attempt, iteration, text FROM ("
            "SELECT seq, 'trial' AS kind, trial_id, 0 AS attempt, 0 AS iteration, '' AS text FROM trials "
            "UNION ALL SELECT seq, 'result', trial_id, attempt, iteration, metrics FROM results "
            "UNION ALL SELECT seq, 'end', trial_id, 0, 0, kind FROM events "
            "WHERE kind IN ('TERMINATED', 'ERROR')"
            ") ORDER BY seq"
        ):
            if kind == "trial":
                yield Suggested(trial_id)
            elif kind == "result":
                yield Report(trial_id, attempt, iteration, self._result(trial_id, attempt, text))
            else:
                yield Ended(trial_id, text == "ERROR")

    def _last_results(self) -> dict[str, Report]:
        # Beside max() SQLite takes the other columns from the row that holds the maximum.
        return {
            trial_id: Report(trial_id, attempt, iteration, self._result(trial_id, attempt, metrics))
            for trial_id, _, attempt, iteration, metrics in self._rows(
                "SELECT trial_id, max(seq), attempt, iteration, metrics FROM results GROUP BY trial_id"
            )
        }

    def _result(self, trial_id: str, attempt: int, metrics: str) -> dict[str, Any]:
        return full_result(decode(metrics), self._origin(trial_id, attempt), done=False)

    def _origin(self, trial_id: str, attempt: int) -> Origin:
        if (trial_id, attempt) not in self._origins:  # attempts may have started since the last look
            self._origins = self._read_origins()
        return self._origins[trial_id, attempt]

    def _read_origins(self) -> dict[tuple[str, int], Origin]:
        return {
            (trial_id, attempt): Origin(trial_id, tag, decode_config(config), pid, hostname, node_ip)
            for trial_id, attempt, tag, config, pid, hostname, node_ip in self._rows(
                "SELECT a.trial_id, a.attempt, t.tag, t.config, a.pid, a.hostname, a.node_ip "
                "FROM attempts a JOIN trials t USING (trial_id)"
            )
        }

    def _rows(self, sql: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        try:
            with contextlib.closing(self._connection.execute(sql, values)) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise StoreError(f"{self.folder / FILENAME} is damaged or cannot be read: {error}") from error
