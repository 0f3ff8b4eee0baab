"""When a simulated experiment ends though its trials have not: so much work was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.tune.stoppers import Stopper


class WorkLimit(Stopper):
    """Ends the experiment once all trials together have run so many iterations.

    Args:
        max_work: iterations; those that are run again count again.
    """

    def __init__(self, max_work: float) -> None:
        self.max_work = max_work
        self._work = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._work += 1
        return False

    def stop_all(self) -> bool:
        return self._work >= self.max_work

    def reason(self) -> Mapping[str, Any]:
        return {"stopper": "max_work", "iterations": self._work}
