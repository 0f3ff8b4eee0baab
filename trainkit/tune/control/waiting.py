"""Trials that wait for their turn: in the order suggested, and some for the time when nothing else runs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from trainkit.tune.trial import Trial, TrialStatus


class WaitingLine:
    """See the module.

    Args:
        trials: of the experiment, by index, a list that grows.
        status: of those that wait.
    """

    def __init__(self, trials: Sequence[Trial], status: TrialStatus = TrialStatus.PENDING) -> None:
        self._trials = trials
        self._parts = status is TrialStatus.PENDING
        self._shared: list[int] = []
        self._alone: list[int] = []
        self._by_id: dict[str, Trial] = {}
        self.sharing: Sequence[str] = _Ids(trials, self._shared, self._by_id, self._parts)
        """Ids of those that run beside others, or are paused; no copy, as there may be thousands."""
        for trial in trials:
            if trial.status is status:
                self.add(trial)

    def add(self, trial: Trial) -> None:
        """Take its place by index, whenever it comes."""
        insort(self._line_of(trial), trial.index)
        self._by_id[trial.trial_id] = trial

    def take(self, trial_id: str) -> Trial:
        """Return the trial, which leaves the line."""
        trial = self._by_id[trial_id]
        self.remove(trial)
        return trial

    def remove(self, trial: Trial) -> bool:
        """Leave the line; False if it wasn't in it."""
        if self._by_id.pop(trial.trial_id, None) is None:
            return False
        line = self._line_of(trial)
        del line[bisect_left(line, trial.index)]
        return True

    def _line_of(self, trial: Trial) -> list[int]:
        # Whether a paused trial goes on is the scheduler's word, beside what it goes on comes after that.
        return self._alone if trial.alone and self._parts else self._shared

    @property
    def first_alone(self) -> Trial | None:
        """The first of those that run when nothing else does."""
        return self._trials[self._alone[0]] if self._alone else None

    def __iter__(self) -> Iterator[Trial]:
        return (self._trials[index] for index in sorted([*self._shared, *self._alone]))

    def __len__(self) -> int:
        return len(self._by_id)


class _Ids(Sequence[str]):
    """The ids of some trials, without a copy."""

    def __init__(
        self, trials: Sequence[Trial], indices: Sequence[int], known: Mapping[str, Trial], parts: bool
    ) -> None:
        self._parts = parts
        self._trials = trials
        self._indices = indices
        self._known = known

    def __contains__(self, trial_id: object) -> bool:
        trial = self._known.get(trial_id)  # type: ignore[call-overload]
        return trial is not None and not (trial.alone and self._parts)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._trials[index].trial_id for index in self._indices[place]]
        return self._trials[self._indices[place]].trial_id
