"""When each attempt ran, and what became of it: what a timeline is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from trainkit.tune.trial import TrialStatus


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


def outcome_of(status: TrialStatus, reason: str, *, failed: bool, ending: str) -> str:
    """What became of an attempt, in a word.

    Args:
        status: where its trial stood at its end; RUNNING: it has not ended.
        reason: why, in words.
        failed: the attempt failed, whatever became of the trial.
        ending: what ended the experiment early, in words; '' for nothing.
    """
    if failed or status is TrialStatus.ERROR:
        return "failed"
    if status is TrialStatus.RUNNING:
        return "running"
    if status is TrialStatus.PAUSED:
        return "paused"
    if status is TrialStatus.PENDING or (ending and reason.startswith(ending)):
        return "cut"
    return "finished" if reason == "finished" or "reached " in reason else "stopped"
