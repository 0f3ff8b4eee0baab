"""Trials that wait to run: in the order suggested, and some for the time when nothing else runs."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence

from trainkit.tune.trial import Trial, TrialStatus


class WaitingLine:
    """See the module.

    Args:
        trials: of the experiment, by index, a list that grows; those PENDING wait.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials
        self._shared: list[int] = []
        self._alone: list[int] = []
        for trial in trials:
            if trial.status is TrialStatus.PENDING:
                self.add(trial)

    def add(self, trial: Trial) -> None:
        """Take its place by index, whenever it comes."""
        insort(self._alone if trial.alone else self._shared, trial.index)

    def remove(self, trial: Trial) -> bool:
        """Leave the line; False if it wasn't in it."""
        line = self._alone if trial.alone else self._shared
        if trial.index not in line:
            return False
        line.remove(trial.index)
        return True

    @property
    def sharing(self) -> list[Trial]:
        """Those that run beside others."""
        return [self._trials[index] for index in self._shared]

    @property
    def first_alone(self) -> Trial | None:
        """The first of those that run when nothing else does."""
        return self._trials[self._alone[0]] if self._alone else None

    def __iter__(self) -> Iterator[Trial]:
        return (self._trials[index] for index in sorted([*self._shared, *self._alone]))

    def __len__(self) -> int:
        return len(self._shared) + len(self._alone)
