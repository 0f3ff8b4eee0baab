"""Controller of an experiment: a state machine from events to records and actions.

It reads no clock and no file and starts nothing: time comes with each event, chance from the searcher's
and the scheduler's generators, and what it wants done it returns. Whoever runs it commits the records
before carrying out the actions, so a report is acknowledged only once it can't be lost.

A trial's way:    PENDING -- Start --> starting -- Started --> running -- Reported --> ...
                     ^                                            |
                     |  retry, or resume after an interruption    +-- Stop --> stopping -- Finished -->
                     +--------------------------------------------+        PAUSED, TERMINATED or ERROR
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError, NodeDiedError
from trainkit.runtime.restart_policy import MOST_LOSSES
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt, drop_checkpoints
from trainkit.tune.controller.estimate import TimeEstimate
from trainkit.tune.controller.failures import Losses, too_many_losses
from trainkit.tune.controller.lifecycle import KINDS, EarlyEnd, Lifecycle
from trainkit.tune.controller.paused import PausedTrials
from trainkit.tune.controller.rules import (
    BY_SIGTERM,
    INTERRUPTED,
    MOST_AT_ONCE,
    Ending,
    Judge,
    Plan,
    StopRules,
)
from trainkit.tune.controller.run_queue import RunQueue
from trainkit.tune.core.capacity import ExperimentView, ResourceLedger
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, TrialScheduler
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.proposals import Proposals
from trainkit.tune.search.trial_source import TrialSource

NOT_PROMOTED = "not promoted"


class Controller:
    """See the module.

    Args:
        plan: the experiment's rules.
        source: where trials come from.
        proposals, scheduler: told of results; both rebuilt already when an experiment is resumed.
        ledger: what trials may reserve.
        trials: of the resumed experiment, in order; those PENDING will run.
        with_metric: ids of `trials` that have reported the metric.
        stop: the rules in `plan.stop`, told already of the reports of before; None: as they are.
        spent_s: how long the experiment has run before, in seconds.
        owed: by trial that is paused, what was decided on it and cut off before it was carried out.
    """

    def __init__(
        self,
        plan: Plan,
        source: TrialSource,
        proposals: Proposals,
        scheduler: TrialScheduler,
        ledger: ResourceLedger,
        trials: Sequence[Trial] = (),
        with_metric: Iterable[str] = (),
        *,
        stop: StopRules | None = None,
        spent_s: float = 0.0,
        owed: Mapping[str, Decision] | None = None,
    ) -> None:
        self._owed = owed or {}
        self.trials: list[Trial] = list(trials)
        self.ledger = ledger
        self.pace = TimeEstimate(plan.max_iteration)
        self._plan = plan
        self._source = source
        self._scheduler = consulted = CheckedScheduler(scheduler)
        rules = StopRules.of(plan.stop) if stop is None else stop
        self._turns = RunQueue(self.trials, source, consulted)
        self._by_id = {trial.trial_id: trial for trial in self.trials}
        self._live: dict[str, ActiveAttempt] = {}
        self._step = ev.Step()
        self._endings = EarlyEnd(plan, rules, spent_s, self._step, self._live)
        self._pauses = PausedTrials(
            plan, self._step, consulted, proposals, self._turns, self._by_id, self._live
        )
        self._lives = Lifecycle(
            plan,
            self._step,
            self._live,
            source,
            proposals,
            consulted,
            Judge(plan, consulted, rules, with_metric, proposals.on_trial_decision),
            ledger,
            self.pace,
            self._turns,
            self._pauses,
            self._endings,
            failed=sum(trial.status is TrialStatus.ERROR for trial in self.trials),
        )
        self._losses = Losses()
        self._none_come = False
        """The scheduler knows that it need not wait for further trials."""
        self._more_by = math.inf
        consulted.see(ExperimentView(self.trials, self._by_id, ledger))

    # --- what the loop calls ----------------------------------------------------------------------

    def begin(self, time: float) -> ev.Step:
        """Start the first trials; the time budget runs from here."""
        self._endings.begin(time)
        self._step.records.append(ev.Noted(time, ev.BEGAN))
        self._endings.guarded(time, self._scheduler.on_begin)
        for trial in self.trials:  # a kill may have come between the end of one and this
            if trial.status.is_finished:
                drop_checkpoints(self._step, self._plan.checkpoints, trial, running=False)
        self._endings.ask(time)
        self._lives.heed(time)  # what came of trials that a restore has ended
        self._endings.guarded(time, self._pauses.take_up, self._owed, time)
        self._fill(time)
        return self._step.take()

    def handle(self, batch: Sequence[ev.Event]) -> ev.Step:
        """Take in what has happened, in order of time; at least one event, be it a Tick."""
        for event in batch:
            _HANDLERS[type(event)](self, event)
        now = batch[-1].time
        if now >= self._endings.deadline:
            self._endings.ask(now)
        self._lives.kill_overdue(now)
        self._pauses.look_again(now)
        self._fill(now)
        return self._step.take()

    @property
    def ended_by(self) -> Ending | None:
        """What ends the experiment, or has ended it, before all its trials had; None: nothing."""
        return self._endings.reached

    @property
    def error(self) -> Exception | None:
        """What broke the experiment off, for `fit` to raise once those that ran have ended.

        Such as what searcher, scheduler or stopper raised.
        """
        return self._endings.error

    def fail_by(self, error: Exception) -> None:
        """Have `raise_error` raise `error`, unless something else has broken the experiment off."""
        self._endings.error = self._endings.error or error

    def raise_error(self) -> None:
        """Raise `error`, if there is one, and forget it.

        The frames in its traceback, and those that called them, hold this object: an error that it held would
        keep itself, and all that trials are given, until the collector comes by.
        """
        error, self._endings.error = self._endings.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    @property
    def ending(self) -> str:
        """The same in words; '' for nothing."""
        return self._endings.reached.why if self._endings.reached is not None else ""

    @property
    def done(self) -> bool:
        """True when nothing runs and nothing will."""
        return not self._live and (
            self._endings.reached is not None or (self._turns.over and not self._pauses)
        )

    @property
    def deadline(self) -> float:
        """When to send a Tick at the latest; infinity: only events matter."""
        return min(self._more_by, self._endings.deadline, self._lives.limit)

    def remaining_s(self, time: float) -> float | None:
        """How many seconds the experiment will take yet, so far as that can be said; None: it can't."""
        to_come = 0 if self._endings.reached is not None else self._turns.to_come
        return self.pace.remaining_s([live.trial for live in self._live.values()], to_come, time)

    def close(self, time: float) -> ev.Step:
        """Say what becomes of trials that never got their turn; call once, when `done`."""
        if self._endings.reached is not None and not self._endings.reached.resumable:
            for trial in list(self._turns.waiting):
                self._turns.waiting.remove(trial)
                self._lives.terminate(trial, time, f"{self.ending}: not run")
            self._let_paused_go(time, f"{self.ending}: {NOT_PROMOTED}")
        ended = self.ending or self._source.reason or "all trials have ended"
        self._step.records.append(ev.Noted(time, "ended", ended))
        return self._step.take()

    # --- starting ---------------------------------------------------------------------------------

    def _fill(self, time: float) -> None:
        """Start trials while there are some and they fit; the first that doesn't keeps its place."""
        self._more_by = math.inf
        for _ in range(MOST_AT_ONCE):
            if self._endings.reached is not None or not self._endings.guarded(time, self._start_next, time):
                return
        self._more_by = time

    def _start_next(self, time: float) -> bool:
        trial = self._turns.next(self._live, has_room=self.ledger.has_room())
        if trial is None:
            return self._nobody_comes(time)
        if trial.trial_id not in self._by_id and not self._take_in(trial, time):
            return True
        if trial.status is TrialStatus.PAUSED and trial.alone and self._live:
            self._pauses.end(trial, time)
            self._turns.waiting.add(trial)  # until nothing else runs
            self._lives.heed(time)
            return True
        if not self.ledger.reserve(trial.trial_id, trial.request):
            (self._turns.paused if trial.status is TrialStatus.PAUSED else self._turns.waiting).add(trial)
            if not self._live:  # nothing will ever be given back that it could wait for
                self.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
                raise RuntimeError(f"trial {trial.name} does not fit, though nothing else runs")
            return False
        if trial.status is TrialStatus.PAUSED:
            self._pauses.end(trial, time)
            self._lives.heed(time)
        live = ActiveAttempt(trial)
        self._live[trial.trial_id] = live
        self.pace.started(trial.trial_id, time)
        trial.iteration = trial.checkpoint.iteration if trial.checkpoint else 0
        self._step.actions.append(ev.Start(trial, trial.attempt, trial.iteration, trial.checkpoint))
        return True

    def _take_in(self, trial: Trial, time: float) -> bool:
        """A new trial; False if it failed at once."""
        self.trials.append(trial)
        self._by_id[trial.trial_id] = trial
        self._step.records.append(ev.TrialAdded(trial))
        self._scheduler.on_trial_add(trial.trial_id, trial.config)
        self._lives.heed(time)
        self._none_come = False
        return self._lives.request_for(trial, time)

    def _nobody_comes(self, time: float) -> bool:
        """No trial is to start; True if that may be another in a moment.

        Raises:
            ConfigError: nothing runs or waits, yet the searcher suggests nothing.
        """
        exhausted = self._turns.exhausted
        idle = not (self._live or self._pauses or self._turns.waiting)
        if not self._none_come and (exhausted or (idle and self._turns.paused)):
            self._none_come = True
            self._step.records.append(ev.Noted(time, ev.NO_MORE_TRIALS))
            self._scheduler.on_no_more_trials()
            self._lives.heed(time)
            return True
        if idle and self._turns.paused:  # nobody will choose them any more
            self._let_paused_go(time, NOT_PROMOTED)
            return True
        if idle and not exhausted:
            raise ConfigError(
                f"{self._source.searcher_name} suggests nothing though no trial runs: "
                "it must return a configuration, or Searcher.FINISHED"
            )
        return False

    def _let_paused_go(self, time: float, reason: str) -> None:
        for trial in [trial for trial in self.trials if trial.status is TrialStatus.PAUSED]:
            if self._pauses.remove(trial):  # the end of another may have ended it
                words = self._endings.guarded(time, self._pauses.why_not_chosen, trial)
                self._lives.terminate(trial, time, f"{reason}: {words}" if words else reason)

    # --- ends of the experiment -------------------------------------------------------------------

    def _on_life(self, event: Any) -> None:
        self._lives.handle(event)

    def _on_interrupted(self, event: ev.Interrupted) -> None:
        self._endings.end(BY_SIGTERM if event.by_sigterm else INTERRUPTED, event.time)

    def _on_callback_raised(self, event: ev.CallbackRaised) -> None:
        self._endings.end(Ending(event.why, resumable=True), event.time)

    def _on_session_lost(self, event: ev.SessionLost) -> None:
        """A lost node is nobody's failure: the experiment goes on in a new session."""
        self._step.records.append(ev.Noted(event.time, ev.SESSION_LOST, event.problem))
        if event.by:
            self._on_stop_asked(ev.StopAsked(event.time, event.by))
        in_a_row = self._losses.count(self.trials)
        self._lives.lose_all(event.time)
        # What was to be done with processes is void.
        self._step.actions[:] = [each for each in self._step.actions if isinstance(each, ev.FILES_ONLY)]
        if in_a_row > MOST_LOSSES:
            self._endings.break_off(NodeDiedError(too_many_losses(in_a_row, event.problem)), event.time)
        if self._endings.reached is None:
            self._step.actions.append(ev.Renew())

    def _on_tick(self, event: ev.Tick) -> None:
        """Time has passed, which `handle` looks at."""

    def _on_stop_asked(self, event: ev.StopAsked) -> None:
        """Another process asks for an end: of the experiment as Ctrl-C does, of a trial for good."""
        words, time, trial_id = f"stopped by {event.by}", event.time, event.trial_id
        self._step.records.append(ev.Noted(time, "stop asked", event.by, trial_id))
        if trial_id is None:
            self._endings.end(Ending(words, resumable=True), time)
        elif (live := self._live.get(trial_id)) is not None:
            live.must_end((TrialStatus.TERMINATED, words), time + self._plan.grace_s)
            self._lives.watch(live)
        elif (trial := self._by_id.get(trial_id)) is not None:
            if self._turns.waiting.remove(trial):
                self._lives.terminate(trial, time, f"{words}: not run")
            elif self._pauses.remove(trial):
                self._lives.terminate(trial, time, words)

    def _on_adopted(self, event: ev.Adopted) -> None:
        trial = self._endings.guarded(event.time, self._pauses.adopted, event)
        self._lives.heed(event.time)
        if trial is not None and not self._lives.request_for(trial, event.time):
            self._pauses.remove(trial)


_HANDLERS: Mapping[type[ev.Event], Callable[[Controller, Any], None]] = {
    **dict.fromkeys(KINDS, Controller._on_life),
    ev.Adopted: Controller._on_adopted,
    ev.StopAsked: Controller._on_stop_asked,
    ev.Interrupted: Controller._on_interrupted,
    ev.CallbackRaised: Controller._on_callback_raised,
    ev.SessionLost: Controller._on_session_lost,
    ev.Tick: Controller._on_tick,
}
