"""Order in which trials run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import overload

from trainkit.tune.controller.attempt import ActiveAttempt
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.trial_source import TrialSource


class WaitingTrials:
    """See the module.

    Args:
        trials: of the experiment, by index, a list that grows.
        status: of those that wait.
    """

    def __init__(self, trials: Sequence[Trial], status: TrialStatus = TrialStatus.PENDING) -> None:
        self._trials = trials
        self._parts = status is TrialStatus.PENDING
        self._shared = _Indices()
        self._alone = _Indices()
        self._by_id: dict[str, Trial] = {}
        self.sharing: Sequence[str] = _Ids(trials, self._shared, self._by_id, self._parts)
        """Ids of those that run beside others, or are paused; no copy, as there may be thousands."""
        for trial in trials:
            if trial.status is status:
                self.add(trial)

    def add(self, trial: Trial) -> None:
        """Take its place by index, whenever it comes."""
        self._line_of(trial).add(trial.index)
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
        self._line_of(trial).remove(trial.index)
        return True

    def _line_of(self, trial: Trial) -> _Indices:
        # Whether a paused trial goes on is the scheduler's word, beside what it goes on comes after that.
        return self._alone if trial.alone and self._parts else self._shared

    @property
    def first_alone(self) -> Trial | None:
        """The first of those that run when nothing else does."""
        first = self._alone.first
        return None if first is None else self._trials[first]

    def __iter__(self) -> Iterator[Trial]:
        return (self._trials[index] for index in sorted([*self._shared, *self._alone]))

    def __len__(self) -> int:
        return len(self._by_id)


class _Indices:
    """Whole numbers that come and go by the thousand, the first of which is asked for much oftener than all.

    So they are a set, and a heap that may hold numbers which have gone.
    """

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._heap: list[int] = []

    def add(self, index: int) -> None:
        self._held.add(index)
        heappush(self._heap, index)

    def remove(self, index: int) -> None:
        self._held.remove(index)
        if len(self._heap) > 2 * len(self._held) + 100:
            self._heap = sorted(self._held)  # which is a heap too

    @property
    def first(self) -> int | None:
        """The lowest; None: there is none."""
        while self._heap and self._heap[0] not in self._held:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)


class _Ids(Sequence[str]):
    """The ids of some trials, without a copy."""

    def __init__(
        self, trials: Sequence[Trial], indices: _Indices, known: Mapping[str, Trial], parts: bool
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

    def __iter__(self) -> Iterator[str]:
        return (self._trials[index].trial_id for index in self._indices)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if place == 0 and (first := self._indices.first) is not None:
            return self._trials[first].trial_id
        return list(self)[place]


class RunQueue:
    """See the module.

    Args:
        trials: of the experiment, by index, a list that grows; those PENDING and PAUSED wait.
        source: where further ones come from.
        scheduler: chooses among those that wait.
    """

    def __init__(self, trials: Sequence[Trial], source: TrialSource, scheduler: CheckedScheduler) -> None:
        self.waiting = WaitingTrials(trials)
        self.paused = WaitingTrials(trials, TrialStatus.PAUSED)
        self._source = source
        self._scheduler = scheduler

    @property
    def over(self) -> bool:
        """True when no trial waits and none will come."""
        return not self.waiting and not self.paused and self._source.exhausted

    @property
    def exhausted(self) -> bool:
        """True once there will be no further trial."""
        return self._source.exhausted

    @property
    def to_come(self) -> int | None:
        """How many trials will yet be started; None: without end."""
        suggested = self._source.to_come
        return None if suggested is None else suggested + len(self.waiting)

    def next(self, running: Mapping[str, ActiveAttempt], *, has_room: bool) -> Trial | None:
        """Return the trial to start or go on with, which is in no line any more; None: none now.

        Args:
            running: trials that have a process, by id.
            has_room: whether another trial may fit, so that one may be suggested or its pause may end.
        """
        if len(running) == 1 and next(iter(running.values())).trial.alone:  # then nothing else does
            return None
        alone = self.waiting.first_alone
        # What never ends would never leave a trial alone, so there it is its turn as soon as may be.
        if alone is None or self._source.to_come is not None:
            trial = self._sharing(has_room=has_room)
            if trial is not None:
                return trial
        if alone is not None and not running:
            self.waiting.remove(alone)
            return alone
        return None

    def goes_on_at_once(self, trial: Trial) -> bool:
        """Whether a trial that is to be paused would be the next to go on."""
        self.paused.add(trial)
        chosen = self._chosen(self.paused.sharing, new=not self._source.exhausted)
        self.paused.remove(trial)
        return chosen == trial.trial_id

    def _sharing(self, *, has_room: bool) -> Trial | None:
        paused = self.paused.sharing if has_room else ()
        new = has_room and not self._source.exhausted
        chosen = self._chosen(paused, new=new)
        if chosen is None and new:
            if (trial := self._source.next_trial()) is not None:
                return trial
            chosen = self._chosen(paused, new=False)  # as none comes for now
        if chosen is None:
            return None
        return self.paused.take(chosen) if chosen in self.paused.sharing else self.waiting.take(chosen)

    def _chosen(self, paused: Sequence[str], *, new: bool) -> str | None:
        if not paused and not self.waiting.sharing:
            return None
        return self._scheduler.choose_trial_to_run(self.waiting.sharing, paused, new=new)
