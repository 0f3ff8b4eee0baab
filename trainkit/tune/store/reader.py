"""Reader of an experiment file, also while it is written."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from trainkit.errors import StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import Origin, checkpoint_score, full_result
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.policies import CheckpointConfig
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Attempt, Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.core.values import decode
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.schedulers.pbt.lineage import Exchange
from trainkit.tune.space.encoding import decode_config
from trainkit.tune.store.records import (
    Again,
    Began,
    Changed,
    Ended,
    LogEntry,
    NoMoreTrials,
    PastResults,
    Paused,
    Regranted,
    Report,
    Resumed,
    Span,
    Suggested,
    read_spans,
)
from trainkit.tune.store.schema import FILENAME, open_database


class ExperimentReader:
    """Reads the experiment in `folder`.

    Raises:
        StoreError: there is none, or its file is damaged or foreign.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection = open_database(folder / FILENAME, read_only=True)
        self._origins: dict[tuple[str, int], Origin] = {}
        self._origins_as_of: tuple[Any, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the experiment as a whole, by name."""
        return {key: decode_config(value) for key, value in self._rows("SELECT key, value FROM experiment")}

    def trials(self, policy: CheckpointConfig | None = None) -> list[Trial]:
        """All trials in the order suggested, as they were when last committed.

        Args:
            policy: by which their checkpoints are ranked; None: as they were ranked then.
        """
        checkpoints: dict[str, list[SavedCheckpoint]] = defaultdict(list)
        numbers: dict[str, int] = {}
        last = self._last_results()
        for trial_id, dropped, number, dirname, iteration, score, metrics in self._rows(
            "SELECT c.trial_id, c.dropped, c.number, c.dirname, c.iteration, c.score, r.metrics "
            "FROM checkpoints c LEFT JOIN results r "
            "ON r.trial_id = c.trial_id AND r.attempt = c.attempt AND r.iteration = c.iteration "
            "ORDER BY c.trial_id, c.number"
        ):
            numbers[trial_id] = number + 1
            if not dropped:
                result = decode(metrics) if metrics else {}
                # One of another trial's goes with no report; the time goes on from this one's last.
                spent = result or (last[trial_id].result if trial_id in last else {})
                if policy is not None:
                    score = checkpoint_score(policy, result)
                checkpoints[trial_id].append(SavedCheckpoint.after(number, dirname, iteration, score, spent))
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
        self._rearrange({trial.trial_id: trial for trial in trials})
        return trials

    def _rearrange(self, trials: Mapping[str, Trial]) -> None:
        """Give trials that go on otherwise than they were suggested what they go on with."""
        for trial_id, detail in self._rows(
            "SELECT trial_id, detail FROM events WHERE kind = ? ORDER BY seq", ev.REARRANGED
        ):
            arrangement = decode_config(detail)
            if trial_id in trials:  # else it was suggested since the trials were read
                trial = trials[trial_id]
                trial.alone = arrangement["alone"]
                if arrangement["granted"] is not None:
                    trial.request = trial.granted = PlacementGroupFactory(*arrangement["granted"])
                if arrangement["config"] is not None:
                    trial.tried.append(trial.config)
                    trial.config = arrangement["config"]

    def last_date(self) -> float:
        """When the last event was noted, in seconds since 1970; 0 if none was."""
        rows = self._rows("SELECT time FROM events ORDER BY seq DESC LIMIT 1")
        return next((float(time) for (time,) in rows), 0.0)

    def spent_s(self) -> float:
        """For how many seconds the experiment has run, over all its restores, until its last sign of life."""
        runs: list[tuple[int, float, float]] = []  # from which entry on, from when, until when
        for seq, kind, time in self._rows("SELECT seq, kind, time FROM events ORDER BY seq"):
            if kind == ev.BEGAN:
                runs.append((seq, time, time))
            elif runs:
                runs[-1] = (*runs[-1][:2], max(runs[-1][2], time))
        ends = [*(seq for seq, _, _ in runs[1:]), sys.maxsize]
        return sum(
            max(until, self._last_report(seq, end)) - since
            for (seq, since, until), end in zip(runs, ends, strict=False)  # a kill may come before the first
        )

    def _last_report(self, after: int, before: int) -> float:
        rows = self._rows(
            "SELECT metrics FROM results WHERE seq > ? AND seq < ? ORDER BY seq DESC LIMIT 1", after, before
        )
        stamp = next((decode(metrics).get("timestamp") for (metrics,) in rows), None)
        return float(stamp) if is_number(stamp) and stamp is not None else 0.0

    def started(self) -> set[tuple[str, int]]:
        """The attempts that ran: (trial, attempt)."""
        return {(row[0], row[1]) for row in self._rows("SELECT trial_id, attempt FROM attempts")}

    def stops(self) -> dict[str, dict[str, Any]]:
        """By trial, the reason of the stop that was decided on its last report, if one was."""
        return {
            trial_id: dict(decision.reason)
            for trial_id, decision in self.verdicts().items()
            if decision.verdict is Verdict.STOP
        }

    def verdicts(self) -> dict[str, Decision]:
        """By trial, what was decided last, if that was after its last report."""
        return {
            trial_id: Decision(Verdict(verdict), decode(reason))
            for trial_id, verdict, reason, decided, reported in self._rows(
                "SELECT d.trial_id, d.verdict, d.reason, max(d.seq), "
                "(SELECT max(r.seq) FROM results r WHERE r.trial_id = d.trial_id) "
                # A stop of an earlier attempt was one, until the trial was gone on with.
                "FROM decisions d JOIN trials t USING (trial_id) WHERE d.attempt = t.attempt "
                "GROUP BY d.trial_id"
            )
            if decided > reported
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
        """Yield the reports of each trial that has any, in one pass."""
        self._take_origins()
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

    def past(self) -> dict[str, PastResults]:
        """By trial that has reported, its history, to be read when it is looked at."""
        return {
            trial_id: PastResults(length, partial(self.history, trial_id))
            for trial_id, length in self._rows(
                "SELECT trial_id, count(DISTINCT iteration) FROM results GROUP BY trial_id"
            )
        }

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

    def checkpoint_folders(self) -> set[str]:
        """Of all checkpoints that were not dropped, the folder, as trial/checkpoint_000003."""
        return {
            f"{trial}/{checkpoint}"
            for trial, checkpoint in self._rows(
                "SELECT t.dirname, c.dirname FROM checkpoints c JOIN trials t USING (trial_id) "
                "WHERE NOT c.dropped"
            )
        }

    def decisions(self, trial_id: str | None = None) -> list[dict[str, Any]]:
        """Return the decisions on the reports of a trial, or of all, in order, with their facts."""
        return [
            {"trial_id": trial, "attempt": attempt, "iteration": at, "verdict": verdict, **decode(reason)}
            for trial, attempt, at, verdict, reason in self._rows(
                "SELECT trial_id, attempt, iteration, verdict, reason FROM decisions "
                "WHERE ?1 IS NULL OR trial_id = ?1 ORDER BY seq",
                trial_id,
            )
        ]

    def exchanges(self) -> list[Exchange]:
        """How trials went on with other configurations than they were suggested, in order."""
        details = (
            (trial_id, decode_config(detail))
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
        """The runs of a trial, in order; each ends where the next begins."""
        return [
            Attempt(number, decode_config(config), started, iteration, reports, outcome or "", pid, hostname)
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
        """When each attempt ran, and what became of it, in the order of their starts."""
        return read_spans(self._rows)

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        """By trial, when its first attempt began and when it ended for good, in seconds since 1970."""
        return {
            trial_id: (started, ended)
            for trial_id, started, ended in self._rows(
                "SELECT t.trial_id, (SELECT min(a.started) FROM attempts a WHERE a.trial_id = t.trial_id), "
                "e.ended FROM trials t LEFT JOIN (SELECT trial_id, max(time) AS ended FROM events "
                "WHERE kind IN ('TERMINATED', 'ERROR') GROUP BY trial_id) e USING (trial_id)"
            )
        }

    def log(self) -> Generator[LogEntry]:
        """All that searcher and scheduler were told, in the order they were told it."""
        self._take_origins()
        for kind, trial_id, attempt, iteration, text in self._rows(
            "SELECT kind, trial_id, attempt, iteration, text FROM ("
            "SELECT seq, 'trial' AS kind, trial_id, 0 AS attempt, 0 AS iteration, '' AS text FROM trials "
            "UNION ALL SELECT seq, 'result', trial_id, attempt, iteration, metrics FROM results "
            "UNION ALL SELECT e.seq, 'end', e.trial_id, t.status IN ('TERMINATED', 'ERROR') AND e.seq = "
            "max(e.seq) OVER (PARTITION BY e.trial_id), 0, e.kind FROM events e JOIN trials t "
            "USING (trial_id) WHERE e.kind IN ('TERMINATED', 'ERROR') "
            "UNION ALL SELECT seq, 'again', trial_id, 0, 0, '' FROM (SELECT seq, trial_id, kind, lag(kind) "
            "OVER (PARTITION BY trial_id ORDER BY seq) AS before FROM events WHERE kind IN "
            "('PENDING', 'TERMINATED', 'ERROR')) WHERE kind = 'PENDING' AND before <> 'PENDING' "
            "UNION ALL SELECT seq, 'RESUME', trial_id, 0, 0, '' FROM decisions WHERE verdict = 'RESUME' "
            "UNION ALL SELECT seq, kind, trial_id, 0, 0, detail FROM events "
            "WHERE kind IN (?, ?, ?, 'PAUSED')) ORDER BY seq",
            ev.BEGAN,
            ev.REARRANGED,
            ev.NO_MORE_TRIALS,
        ):
            match kind:
                case "trial":
                    yield Suggested(trial_id)
                case "result":
                    yield Report(trial_id, attempt, iteration, self._result(trial_id, attempt, text))
                case "end":
                    yield Ended(trial_id, text == "ERROR", bool(attempt))
                case "again":
                    yield Again(trial_id)
                case "PAUSED":
                    yield Paused(trial_id)
                case "RESUME":
                    yield Resumed(trial_id)
                case ev.BEGAN:
                    yield Began()
                case ev.NO_MORE_TRIALS:
                    yield NoMoreTrials()
                case ev.REARRANGED:
                    change = decode_config(text)
                    if change.get("before") is not None:
                        requests = (PlacementGroupFactory(*change[key]) for key in ("granted", "before"))
                        yield Regranted(trial_id, *requests)
                    if change["config"] is not None:
                        yield Changed(trial_id, change["config"], change["donor"])

    def _last_results(self) -> dict[str, Report]:
        self._take_origins()  # in one go, as every trial's are needed
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
        if (trial_id, attempt) not in self._origins:
            self._origins |= self._read_origins(trial_id)
        return self._origins[trial_id, attempt]

    def _take_origins(self) -> None:
        """Read all of them, unless no attempt has begun since the last time."""
        (as_of,) = self._rows("SELECT count(*), max(started) FROM attempts")
        if as_of != self._origins_as_of:
            self._origins, self._origins_as_of = self._read_origins(), as_of

    def _read_origins(self, of: str | None = None) -> dict[tuple[str, int], Origin]:
        """Of one trial, or of all."""
        return {
            (trial_id, attempt): Origin(trial_id, tag, decode_config(config), pid, hostname, node_ip)
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
