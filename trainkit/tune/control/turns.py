"""Whose turn it is: a trial that waits, a new one of the searcher's, or one that runs alone; no effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainkit.errors import ConfigError
from trainkit.tune.control.waiting import WaitingLine
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.suggestion.suggesting import TrialSource
from trainkit.tune.trial import Trial


class Turns:
    """See the module.

    Args:
        trials: of the experiment, by index, a list that grows; those PENDING wait.
        source: where further ones come from.
        scheduler: chooses among those that wait.
    """

    def __init__(self, trials: Sequence[Trial], source: TrialSource, scheduler: TrialScheduler) -> None:
        self.waiting = WaitingLine(trials)
        self._trials = trials
        self._source = source
        self._scheduler = scheduler

    @property
    def over(self) -> bool:
        """True when no trial waits and none will come."""
        return not self.waiting and self._source.exhausted

    @property
    def to_come(self) -> int | None:
        """How many trials will yet be started; None: without end."""
        suggested = self._source.to_come
        return None if suggested is None else suggested + len(self.waiting)

    def next(self, running: Iterable[Trial], *, has_room: bool) -> Trial | None:
        """Return the trial to start, which is in no line any more; None: none now.

        Args:
            running: trials that have a process.
            has_room: whether a new trial may fit, so that one may be suggested.

        Raises:
            ConfigError: nothing runs or waits, yet the searcher suggests nothing.
        """
        running = list(running)
        if any(trial.alone for trial in running):
            return None
        alone = self.waiting.first_alone
        # What never ends would never leave a trial alone, so there it is its turn as soon as may be.
        if alone is None or self._source.to_come is not None:
            trial = self._sharing() or (self._suggested(idle=not running) if has_room else None)
            if trial is not None:
                return trial
        if alone is not None and not running:
            self.waiting.remove(alone)
            return alone
        return None

    def _sharing(self) -> Trial | None:
        if not self.waiting.sharing:
            return None
        chosen = self._scheduler.choose_trial_to_run(self.waiting.sharing)
        return None if chosen is None else self.waiting.take(chosen)

    def _suggested(self, *, idle: bool) -> Trial | None:
        trial = self._source.next_trial()
        if trial is None and idle and not self.over and not self.waiting:
            raise ConfigError(
                f"{self._source.searcher_name} suggests nothing though no trial runs: "
                "it must return a configuration, or Searcher.FINISHED"
            )
        return trial
