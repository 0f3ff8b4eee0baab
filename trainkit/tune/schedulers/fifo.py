"""First in, first out: trials start in the order suggested, and none is stopped early."""

from __future__ import annotations

from typing import Any, ClassVar

from trainkit.tune.schedulers.base import CONTINUE, Decision, TrialScheduler


class FIFOScheduler(TrialScheduler):
    """Let every trial run to its end."""

    needs_metric: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()

    @property
    def arguments(self) -> dict[str, Any]:
        return {}

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        del trial_id, time, score
        return CONTINUE
