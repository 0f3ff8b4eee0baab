"""Whose turn it is: a trial that waits or is paused, a new one, or one that runs alone; no effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainkit.tune.control.live import Live
from trainkit.tune.control.waiting import WaitingLine
from trainkit.tune.schedulers.consulted import Consulted
from trainkit.tune.suggestion.suggesting import TrialSource
from trainkit.tune.trial import Trial, TrialStatus


class Turns:
    """See the module.

    Args:
        trials: of the experiment, by index, a list that grows; those PENDING and PAUSED wait.
        source: where further ones come from.
        scheduler: chooses among those that wait.
    """

    def __init__(self, trials: Sequence[Trial], source: TrialSource, scheduler: Consulted) -> None:
        self.waiting = WaitingLine(trials)
        self.paused = WaitingLine(trials, TrialStatus.PAUSED)
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

    def next(self, running: Mapping[str, Live], *, has_room: bool) -> Trial | None:
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
