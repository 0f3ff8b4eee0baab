"""When each attempt ran, and what became of it: what a timeline is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from trainkit.tune.trial import TrialStatus

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
    """What became of an attempt, in a word.

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
