"""Values read back from the store: log entries, past results and times of attempts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import TrialStatus


@dataclass(frozen=True, slots=True)
class Began:
    """Entry of the log: the experiment began to run, or went on after a restore."""


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
    """Entry of the log: a trial ended, in ERROR or not; not `final` where it was gone on with."""

    trial_id: str
    error: bool
    final: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """Entry of the log: a trial that had ended runs again from here on."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Entry of the log: a trial's process has ended, and it waits for the scheduler's word."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Entry of the log: a trial that was to be paused, or is, goes on."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Changed:
    """Entry of the log: a trial has another configuration from here on, and perhaps the state of `donor`."""

    trial_id: str
    config: dict[str, Any]
    donor: str | None


@dataclass(frozen=True, slots=True)
class Regranted:
    """Entry of the log: a paused trial reserves something else from here on."""

    trial_id: str
    request: PlacementGroupFactory
    before: PlacementGroupFactory


@dataclass(frozen=True, slots=True)
class NoMoreTrials:
    """Entry of the log: the scheduler need not wait for further trials."""


LogEntry = Began | Suggested | Report | Ended | Again | Paused | Resumed | Changed | Regranted | NoMoreTrials


Result = dict[str, Any]


class PastResults(Sequence[Result]):
    """A trial's results, oldest first; how many there are is known without reading them.

    Args:
        length: how many.
        read: reads them.
    """

    def __init__(self, length: int, read: Callable[[], list[Result]]) -> None:
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
            self._results = self._read()
        return self._results[index]


SIMULATED = "simulated"
"""The host of a simulation's workers."""


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt, from its start to its end.

    Attributes:
        trial_id: whose attempt it is.
        attempt: from 0.
        place: what it ran in: the host and the process, or a simulation's worker.
        started: in seconds: since 1970, or of a simulation's clock.
        ended: the same; None: it runs, or nobody saw its end.
        status: where the trial stood then: PENDING where it was to be gone on with; RUNNING: see `ended`.
        reason: why, in words.

        outcome: what became of it: finished, stopped, paused, failed, cut (by the experiment's end), running.
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
    """Return the outcome of an attempt in a word.

    Args:
        status: where its trial stood at its end; RUNNING: it has not ended.
        reason: why, in words.
        failed: the attempt failed, whatever became of the trial.
        endings: what has ended the experiment early, each time, in words.
    """
    if failed or status is TrialStatus.ERROR:
        return "failed"
    if status is TrialStatus.RUNNING:
        return "running"
    if status is TrialStatus.PAUSED:
        return "paused"
    if status is TrialStatus.PENDING or any(reason.startswith(ending) for ending in endings):
        return "cut"
    return "finished" if reason == "finished" or "reached " in reason else "stopped"


_SQL = """
SELECT trial_id, attempt, hostname, pid, started, e.time, e.kind, e.detail FROM (
    SELECT a.*, (
        SELECT e.seq FROM events e WHERE e.trial_id = a.trial_id AND e.time >= a.started
        AND e.time <= coalesce(a.next, 9e99) AND e.kind IN ('PENDING', 'PAUSED', 'TERMINATED', 'ERROR')
        ORDER BY e.seq LIMIT 1
    ) AS seq FROM (
        SELECT *, lead(started) OVER (PARTITION BY trial_id ORDER BY attempt) AS next FROM attempts
    ) a
) LEFT JOIN events e USING (seq, trial_id) ORDER BY started, trial_id, attempt
"""


def read_spans(rows: Callable[..., Iterator[tuple[Any, ...]]]) -> list[Span]:
    """The attempts in an experiment's file, in the order of their starts; `rows` asks it."""
    endings = {detail for (detail,) in rows("SELECT detail FROM events WHERE kind = 'ending'")}
    spans = []
    for trial_id, attempt, hostname, pid, started, ended, kind, detail in rows(_SQL):
        status, reason = TrialStatus(kind or "RUNNING"), detail or ""
        # The file says of a retry only in words what it is: 'retry 1 of 2 after OutOfMemoryError'.
        failed = status is TrialStatus.PENDING and " after " in reason
        outcome = outcome_of(status, reason, failed=failed, endings=endings)
        spans.append(Span(trial_id, attempt, (hostname, pid), started, ended, status, reason, outcome))
    return spans
