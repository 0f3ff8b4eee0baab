"""Store of an experiment in memory.

A commit only appends records to a list, so it takes almost no time. The reader sorts the records by trial
when they are first read, and later sorts only new records.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from trainkit.tune.controller import events as ev
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.trial import Attempt, Trial, TrialStatus
from trainkit.tune.store.ownership import Ownership, make_private
from trainkit.tune.store.reader import PastResults, Span, outcome_of

_ENDS = (TrialStatus.TERMINATED, TrialStatus.ERROR)


class MemoryStore:
    """Store for the records of an experiment that has no file.

    Args:
        facts: stored properties of the whole experiment, by name.
        folder: folder of the trials, with a lock that shows other processes who owns the folder; None: no
            folder.

    Attributes:
        facts: stored properties of the whole experiment, by name.
        records: all committed records, in order.
    """

    def __init__(self, facts: Mapping[str, Any], folder: Path | None = None) -> None:
        if folder is not None:
            make_private(folder)
        self._ownership = None if folder is None else Ownership(folder)
        self.facts = dict(facts)
        self.records: list[ev.Record] = []
        self._reader = MemoryReader(self)

    def commit(self, records: Sequence[ev.Record]) -> None:
        """Store `records`; a report is stored as its complete result, which includes the reported metrics."""
        for changed in [told for told in records if type(told) is ev.SettingsChanged]:
            settings = {**self.facts["tune_config"], **changed.settings}
            self.facts |= {"tune_config": settings, "total_samples": changed.total_samples}
        self.records += [
            ev.ResultAdded(told.trial, told.attempt, told.iteration, told.time, told.result, told.result)
            if type(told) is ev.ResultAdded
            else told
            for told in records
        ]

    def amend(self, record: ev.ResultAdded) -> None:
        """Do nothing, because the stored result already contains the added values."""

    def set_fact(self, key: str, value: Any) -> None:
        """Set one stored property of the experiment; replace the former value."""
        self.facts[key] = value

    def close(self) -> None:
        """Release the lock of the folder, and remove the lock file."""
        if self._ownership is not None:
            self._ownership.remove()

    def reader(self) -> MemoryReader:
        """Return a reader with the methods of a file's reader."""
        return self._reader


class MemoryReader:
    """Reader of a `MemoryStore` that may still grow; see `ExperimentReader`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._read = 0
        self._results: defaultdict[str, list[ev.ResultAdded]] = defaultdict(list)
        self._decisions: list[ev.DecisionMade] = []
        self._attempts: defaultdict[str, list[ev.AttemptStarted]] = defaultdict(list)
        self._ends: defaultdict[str, list[ev.StatusChanged]] = defaultdict(list)
        self._exchanges: list[Exchange] = []
        self._endings: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        return dict(self._store.facts)

    def trials(self) -> list[Trial]:
        trials = []
        for trial in self._added():
            seen = copy.copy(trial)
            # The last result of a finished trial never changes, so it is shared instead of copied.
            if not trial.status.is_finished:
                seen.last_result = dict(trial.last_result)
            seen.checkpoints = list(trial.checkpoints)
            trials.append(seen)
        return trials

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        self._take()
        standing: list[ev.ResultAdded] = []
        for record in self._results.get(trial_id, ()):
            while standing and standing[-1].iteration >= record.iteration:
                standing.pop()
            standing.append(record)
        return [{**record.result, "done": False} for record in standing]

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        self._take()
        for trial_id in sorted(self._results):
            yield trial_id, self.history(trial_id)

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        self._take()
        results = {(each.attempt, each.iteration): each.result for each in self._results.get(trial_id, ())}
        return {
            record.checkpoint.number: dict(results.get((record.attempt, record.checkpoint.iteration), {}))
            for record in self._store.records
            if isinstance(record, ev.CheckpointAdded) and record.trial.trial_id == trial_id
        }

    def decisions(self, trial_id: str | None = None) -> list[dict[str, Any]]:
        self._take()
        return [
            {
                "trial_id": record.trial.trial_id,
                "attempt": record.attempt,
                "iteration": record.iteration,
                "verdict": str(record.decision.verdict),
                **record.decision.reason,
            }
            for record in self._decisions
            if trial_id is None or record.trial.trial_id == trial_id
        ]

    def exchanges(self) -> list[Exchange]:
        self._take()
        return list(self._exchanges)

    def stops(self) -> dict[str, dict[str, Any]]:
        self._take()
        last = {record.trial.trial_id: record for record in self._decisions}
        return {
            trial_id: dict(record.decision.reason)
            for trial_id, record in last.items()
            if record.decision.verdict == "STOP"
            and record.attempt == record.trial.attempt
            and record.iteration == self._results[trial_id][-1].iteration
        }

    def attempts(self, trial_id: str) -> list[Attempt]:
        self._take()
        reports = self._results.get(trial_id, ())
        spans = {span.attempt: span for span in self._spans_of(trial_id)}
        attempts = []
        for begun in self._attempts.get(trial_id, ()):
            made = [report for report in reports if report.attempt == begun.attempt]
            attempts.append(
                Attempt(
                    number=begun.attempt,
                    config=made[0].result["config"] if made else begun.trial.config,
                    started=begun.time,
                    iteration=begun.iteration,
                    reports=len(made),
                    outcome=spans[begun.attempt].reason,
                    pid=begun.pid,
                    hostname=begun.hostname,
                )
            )
        return attempts

    def past(self) -> dict[str, PastResults]:
        """Return {}, because an experiment in memory can't be restored."""
        return {}

    def spent_s(self) -> float:
        """Return 0, because an experiment in memory has no earlier runs."""
        return 0.0

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        self._take()
        times: dict[str, tuple[float | None, float | None]] = {}
        for trial in self._added():
            begun = self._attempts.get(trial.trial_id)
            ended = [end.time for end in self._ends.get(trial.trial_id, ()) if end.status in _ENDS]
            times[trial.trial_id] = (begun[0].time if begun else None, ended[-1] if ended else None)
        return times

    def spans(self) -> list[Span]:
        """Return the attempts of all trials, in the order of their starts."""
        self._take()
        spans = [span for trial in self._added() for span in self._spans_of(trial.trial_id)]
        return sorted(spans, key=lambda span: span.started)

    def _spans_of(self, trial_id: str) -> list[Span]:
        ends = iter(self._ends.get(trial_id, ()))
        spans = []
        for start in self._attempts.get(trial_id, ()):
            # A new status ends the current attempt, but a trial may also end while no attempt runs. So a
            # status from before the attempt's start is skipped.
            end = next((end for end in ends if end.time >= start.time and _closes(end, start)), None)
            status, reason = (TrialStatus.RUNNING, "") if end is None else (end.status, end.reason)
            failed = end is not None and end.failure is not None
            spans.append(
                Span(
                    trial_id,
                    start.attempt,
                    (start.hostname, start.pid),
                    start.time,
                    None if end is None else end.time,
                    status,
                    reason,
                    outcome_of(status, reason, failed=failed, endings=self._endings),
                )
            )
        return spans

    def _added(self) -> Iterator[Trial]:
        return (record.trial for record in self._store.records if isinstance(record, ev.TrialAdded))

    def _take(self) -> None:
        """Sort the records that were added since the last call, by kind and trial."""
        records, start = self._store.records, self._read
        self._read = len(records)
        for record in records[start:]:
            match record:
                case ev.ResultAdded():
                    self._results[record.trial.trial_id].append(record)
                case ev.DecisionMade():
                    self._decisions.append(record)
                case ev.AttemptStarted():
                    self._attempts[record.trial.trial_id].append(record)
                case ev.StatusChanged():
                    self._ends[record.trial.trial_id].append(record)
                case ev.Rearranged(trial, config=dict() as config, donor=donor):
                    donor_id = None if donor is None else donor.trial_id
                    before = self._results[trial.trial_id]
                    iteration = before[-1].iteration if before else 0
                    self._exchanges.append(
                        Exchange(trial.trial_id, iteration, config, donor_id, record.donor_iteration)
                    )
                case ev.Noted(_, "ending", detail):
                    self._endings.add(detail)


def _closes(end: ev.StatusChanged, start: ev.AttemptStarted) -> bool:
    """Return True if the status `end` ends this attempt.

    A PENDING status has the number of the next attempt; any other status has the number of the attempt that
    it ends.
    """
    waits = end.status is TrialStatus.PENDING
    return end.attempt > start.attempt if waits else end.attempt == start.attempt
