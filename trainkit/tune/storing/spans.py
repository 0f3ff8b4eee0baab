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
    """

    trial_id: str
    attempt: int
    place: tuple[str, int]
    started: float
    ended: float | None
    status: TrialStatus
    reason: str

    @property
    def outcome(self) -> str:
        """What became of it: finished, stopped, paused, failed, cut (with the experiment), or running."""
        match self.status:
            case TrialStatus.RUNNING:
                return "running"
            case TrialStatus.PAUSED:
                return "paused"
            case TrialStatus.ERROR:
                return "failed"
            case TrialStatus.PENDING:
                return "failed" if " after " in self.reason else "cut"
        if self.reason == "finished" or "reached " in self.reason:  # all that it was to do
            return "finished"
        return "stopped" if self.reason.startswith("stopped by ") else "cut"
