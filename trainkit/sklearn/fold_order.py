"""In which order the folds of candidates are evaluated where workers share copies of the folds' samples.

Candidates are taken in blocks, in the order suggested. Of a block, all are evaluated on the first fold, then
all on the second, and so on: so workers are mostly at one fold, or some still at that before.

    block 0:  a b c d on fold 0,  a b c d on fold 1, ...   block 1:  e f g h on fold 0, ...

Nobody waits: a worker that finds no candidate left for a fold goes on to the next one. A candidate pauses
between two of its folds; one that would be the next to run does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from trainkit.sklearn.cv_results import folds_in
from trainkit.tune.schedulers.base import CONTINUE, NO_CONFIG, Decision, TrialScheduler, Verdict


class Turn(NamedTuple):
    """When a candidate's next fold is evaluated; the lowest first.

    Attributes:
        block: that the candidate is in.
        fold: its next one.
        place: of the candidate, in the order suggested.
    """

    block: int
    fold: int
    place: int


def turn_of(place: int, folds_done: int, block: int) -> Turn:
    """Return whose turn it is when, for a candidate that has so many folds behind it.

    Args:
        place: of the candidate, from 0 in the order suggested.
        folds_done: of the candidate.
        block: candidates in each block.
    """
    return Turn(place // block, folds_done, place)


class FoldOrder(TrialScheduler):
    """Has candidates pause after each fold, and go on in the order above.

    Args:
        block: candidates in each block.
    """

    needs_metric: ClassVar[bool] = False
    label: ClassVar[str] = "the order of folds"

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block
        self._places: dict[str, int] = {}
        self._done: dict[str, int] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        return {"block": self.block}

    @property
    def pauses(self) -> bool:
        return True

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        del config
        self._places[trial_id] = len(self._places)
        self._done[trial_id] = 0

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        self._done[trial_id] = folds_in(result)
        return CONTINUE if result.get("done") else Decision(Verdict.PAUSE, {"folds": self._done[trial_id]})

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        """How many folds are done decides, which neither of these says; see `on_result`."""
        del trial_id, time, score
        return CONTINUE

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        waiting = [*pending, *paused]
        if not waiting:
            return None
        first = min(waiting, key=self._turn)
        if new and turn_of(len(self._places), 0, self.block) < self._turn(first):
            return None
        return first

    def _turn(self, trial_id: str) -> Turn:
        return turn_of(self._places[trial_id], self._done[trial_id], self.block)
