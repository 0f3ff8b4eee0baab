"""The experiment as a state machine: events in, records and actions out.

It reads no clock and no file and starts nothing: time comes with each event, chance from the searcher's
and the scheduler's generators, and what it wants done it returns. Whoever runs it commits the records
before carrying out the actions, so a report is acknowledged only once it can't be lost.

A trial's way:    PENDING -- Start --> starting -- Started --> running -- Reported --> ...
                     ^                                            |
                     |  retry, or resume after an interruption    +-- Stop --> stopping -- Finished -->
                     +--------------------------------------------+                TERMINATED or ERROR
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from trainkit.tune.control import events as ev
from trainkit.tune.control.autofill import Origin, full_result
from trainkit.tune.control.capacity import Ledger
from trainkit.tune.control.endings import Endings
from trainkit.tune.control.estimate import Pace
from trainkit.tune.control.failing import TIMEOUT, Retry, timeout_words, what_follows
from trainkit.tune.control.judging import Judge
from trainkit.tune.control.live import FINISHED, Live, Outcome
from trainkit.tune.control.plan import (
    BROKEN,
    FAIL_FAST,
    FAILED_TRIALS,
    INTERRUPTED,
    MOST_AT_ONCE,
    Ending,
    Plan,
)
from trainkit.tune.control.stopping import StopRules
from trainkit.tune.control.turns import Turns
from trainkit.tune.control.upkeep import drop_checkpoints, keep_checkpoint, note_problem, set_status
from trainkit.tune.schedulers.base import TrialScheduler, Verdict, stop_words
from trainkit.tune.suggestion.proposals import Proposals
from trainkit.tune.suggestion.suggesting import TrialSource
from trainkit.tune.trial import Failure, Trial, TrialStatus

T = TypeVar("T")


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
    """

    def __init__(
        self,
        plan: Plan,
        source: TrialSource,
        proposals: Proposals,
        scheduler: TrialScheduler,
        ledger: Ledger,
        trials: Sequence[Trial] = (),
        with_metric: Iterable[str] = (),
        *,
        stop: StopRules | None = None,
        spent_s: float = 0.0,
    ) -> None:
        self.trials: list[Trial] = list(trials)
        self.ledger = ledger
        self.error: Exception | None = None
        """What searcher, scheduler or stopper raised, for `fit` to raise once those that ran have ended."""
        self.pace = Pace(plan.max_iteration)
        self._plan = plan
        self._source = source
        self._proposals = proposals
        self._scheduler = scheduler
        rules = StopRules.of(plan.stop) if stop is None else stop
        self._judge = Judge(plan, scheduler, rules, with_metric)
        self._endings = Endings(plan, rules, spent_s)
        self._turns = Turns(self.trials, source, scheduler)
        self._by_id = {trial.trial_id: trial for trial in self.trials}
        self._live: dict[str, Live] = {}
        self._failed = sum(trial.status is TrialStatus.ERROR for trial in self.trials)
        self._step = ev.Step()
        self._more_by = math.inf
        self._handlers = {
            ev.Started: self._on_started,
            ev.Reported: self._on_reported,
            ev.Finished: self._on_finished,
            ev.Failed: lambda live, event: self._fail(live.trial, event.failure, event.time),
        }

    # --- what the loop calls ----------------------------------------------------------------------

    def begin(self, time: float) -> ev.Step:
        """Start the first trials; the time budget runs from here."""
        self._endings.begin(time)
        self._step.records.append(ev.Noted(time, ev.BEGAN))
        for trial in self.trials:  # a kill may have come between the end of one and this
            if trial.status.is_finished:
                drop_checkpoints(self._step, self._plan.checkpoints, trial, running=False)
        self._ask_for_an_end(time)
        self._fill(time)
        return self._take()

    def handle(self, batch: Sequence[ev.Event]) -> ev.Step:
        """Take in what has happened, in order of time; at least one event, be it a Tick."""
        for event in batch:
            match event:
                case ev.Tick():
                    pass
                case ev.Interrupted():
                    self._end(INTERRUPTED, event.time)
                case ev.StopAsked():
                    self._on_stop_asked(event)
                case _:
                    live = self._live.get(event.trial_id)
                    if live is not None and live.trial.attempt == event.attempt:
                        self._handlers[type(event)](live, event)  # type: ignore[operator]
        now = batch[-1].time
        if now >= self._endings.deadline:
            self._ask_for_an_end(now)
        self._kill_overdue(now)
        self._fill(now)
        return self._take()

    @property
    def ended_by(self) -> Ending | None:
        """What ends the experiment, or has ended it, before all its trials had; None: nothing."""
        return self._endings.reached

    @property
    def ending(self) -> str:
        """The same in words; '' for nothing."""
        return self.ended_by.why if self.ended_by is not None else ""

    @property
    def done(self) -> bool:
        """True when nothing runs and nothing will."""
        return not self._live and (self.ended_by is not None or self._turns.over)

    @property
    def deadline(self) -> float:
        """When to send a Tick at the latest; infinity: only events matter."""
        limits = [live.limit for live in self._live.values()]
        return min(self._more_by, self._endings.deadline, *limits)

    def remaining_s(self, time: float) -> float | None:
        """How many seconds the experiment will take yet, so far as that can be said; None: it can't."""
        to_come = 0 if self.ended_by is not None else self._turns.to_come
        return self.pace.remaining_s([live.trial for live in self._live.values()], to_come, time)

    def close(self, time: float) -> ev.Step:
        """Say what becomes of trials that never got their turn; call once, when `done`."""
        if self.ended_by is not None and not self.ended_by.resumable:
            for trial in list(self._turns.waiting):
                self._turns.waiting.remove(trial)
                self._terminate(trial, time, f"{self.ending}: not run")
        ended = self.ending or self._source.reason or "all trials have ended"
        self._step.records.append(ev.Noted(time, "ended", ended))
        return self._take()

    # --- starting ---------------------------------------------------------------------------------

    def _fill(self, time: float) -> None:
        """Start trials while there are some and they fit; the first that doesn't keeps its place."""
        self._more_by = math.inf
        for _ in range(MOST_AT_ONCE):
            if self.ended_by is not None or not self._guarded(time, self._start_next, time):
                return
        self._more_by = time

    def _start_next(self, time: float) -> bool:
        running = [live.trial for live in self._live.values()]
        trial = self._turns.next(running, has_room=self.ledger.has_room())
        if trial is None:
            return False
        if trial.trial_id not in self._by_id and not self._take_in(trial, time):
            return True
        if not self.ledger.reserve(trial.trial_id, trial.request):
            self._turns.waiting.add(trial)
            if not self._live:  # nothing will ever be given back that it could wait for
                self.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
                raise RuntimeError(f"trial {trial.name} does not fit, though nothing else runs")
            return False
        live = Live(trial)
        if self._plan.trial_timeout_s is not None:
            live.times_out = time + self._plan.trial_timeout_s
        self._live[trial.trial_id] = live
        self.pace.started(trial.trial_id, time)
        trial.iteration = trial.checkpoint.iteration if trial.checkpoint else 0
        self._step.actions.append(ev.Start(trial, trial.attempt, trial.iteration, trial.checkpoint))
        return True

    def _take_in(self, trial: Trial, time: float) -> bool:
        """A new trial; False if it failed at once."""
        self.trials.append(trial)
        self._by_id[trial.trial_id] = trial
        self._scheduler.on_trial_add(trial.trial_id)
        self._step.records.append(ev.TrialAdded(trial))
        return self._request_for(trial, time)

    def _request_for(self, trial: Trial, time: float) -> bool:
        """Ask what the trial needs; False, and the trial has failed, if it can't be said or never be met."""
        try:
            trial.request = self._source.request(trial)
            self.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
        except Exception as error:
            self._fail(trial, Failure.raised(error), time)
            return False
        return True

    # --- a trial's events -------------------------------------------------------------------------

    def _on_started(self, live: Live, event: ev.Started) -> None:
        trial = live.trial
        place = (event.pid, event.hostname, event.node_ip)
        live.origin = Origin(trial.trial_id, trial.tag, trial.config, *place)
        trial.status, trial.reason = TrialStatus.RUNNING, ""
        self._step.records.append(
            ev.AttemptStarted(trial, trial.attempt, event.time, *place, iteration=trial.iteration)
        )
        self._go_on(live, event.time)

    def _on_reported(self, live: Live, event: ev.Reported) -> None:
        trial, origin = live.trial, live.origin
        if origin is None:
            raise RuntimeError(f"trial {trial.trial_id} reported before it was started")
        result = full_result(event.metrics, origin, done=event.done)
        trial.iteration, trial.last_result = event.iteration, result
        self._step.records.append(
            ev.ResultAdded(trial, trial.attempt, event.iteration, event.time, event.metrics, result)
        )
        if event.checkpoint is not None:
            keep_checkpoint(self._step, self._plan.checkpoints, trial, event.checkpoint, trial.iteration)
        note_problem(self._step, trial, event.time, event.problem)
        self._guarded(event.time, self._proposals.on_trial_result, trial.trial_id, result)
        # What is decided on this very report goes before an end that was asked of all trials.
        decided = self._guarded(event.time, self._judged, live, result)
        live.outcome = decided or (FINISHED if event.done else live.outcome)
        self._ask_for_an_end(event.time)
        result["done"] = live.outcome is not None
        if event.done:
            self._finish(live, event.time)
        else:
            self._go_on(live, event.time)

    def _judged(self, live: Live, result: dict[str, Any]) -> Outcome | None:
        """What the trial will be by this report; None: it goes on."""
        trial = live.trial
        decision = self._judge.on_report(trial.trial_id, result)
        if isinstance(decision, Failure):
            live.failure = decision
            return TrialStatus.ERROR, ""
        if decision.reason or decision.verdict is Verdict.STOP:
            self._step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
        if decision.verdict is not Verdict.STOP:
            return None
        return TrialStatus.TERMINATED, stop_words(decision.reason, self._scheduler.label)

    def _go_on(self, live: Live, time: float) -> None:
        """Let the trial run to its next report, or end it where it waits."""
        if live.outcome is None:
            self._step.actions.append(ev.Advance(live.trial.trial_id))
            return
        live.deadline = time + self._plan.cleanup_s
        save = bool(self._plan.checkpoints.checkpoint_at_end) or live.outcome[0] is TrialStatus.PENDING
        self._step.actions.append(ev.Stop(live.trial.trial_id, save))

    def _on_finished(self, live: Live, event: ev.Finished) -> None:
        if event.checkpoint is not None:
            keep_checkpoint(self._step, self._plan.checkpoints, live.trial, event.checkpoint, event.iteration)
        note_problem(self._step, live.trial, event.time, event.problem)
        live.outcome = live.outcome or FINISHED
        self._finish(live, event.time)

    # --- ends of a trial --------------------------------------------------------------------------

    def _finish(self, live: Live, time: float) -> None:
        """The trial's process has nothing more to do: settle what the trial now is."""
        trial, (status, reason) = live.trial, live.outcome or FINISHED
        if live.failure is not None:
            self._fail(trial, live.failure, time)
            return
        must_report = status is TrialStatus.TERMINATED and not live.excused
        if must_report and (failure := self._judge.at_end(trial)):
            self._fail(trial, failure, time)
            return
        self._let_go(trial, time)
        if status is TrialStatus.PENDING:
            trial.attempt += 1
            set_status(self._step, trial, time, status, reason)
        else:
            self._terminate(trial, time, reason)

    def _terminate(self, trial: Trial, time: float, reason: str) -> None:
        self.pace.ended(trial.trial_id)
        set_status(self._step, trial, time, TrialStatus.TERMINATED, reason)
        drop_checkpoints(self._step, self._plan.checkpoints, trial, running=False)
        trial_id, result = trial.trial_id, trial.last_result or None
        self._guarded(time, self._scheduler.on_trial_complete, trial_id)
        self._guarded(time, self._proposals.on_trial_complete, trial_id, result)

    def _fail(self, trial: Trial, failure: Failure, time: float) -> None:
        self._let_go(trial, time)
        follows = what_follows(trial, failure, self._plan.failure)
        if isinstance(follows, Retry):
            self._retry(trial, failure, follows, time)
            return
        trial.failures += 1
        trial.failure = follows
        self.pace.ended(trial.trial_id)
        reason = f"{follows.kind}: {follows.message}"[:200]
        set_status(self._step, trial, time, TrialStatus.ERROR, reason, follows)
        drop_checkpoints(self._step, self._plan.checkpoints, trial, running=False)
        trial_id, result = trial.trial_id, trial.last_result or None
        self._guarded(time, self._scheduler.on_trial_error, trial_id)
        self._guarded(time, self._proposals.on_trial_complete, trial_id, result, True)
        if self._plan.failure.fail_fast:
            self._end(FAIL_FAST, time)
        self._failed += 1
        limit = self._plan.failure.max_failed_trials
        if limit is not None and self._failed >= limit:
            self._end(FAILED_TRIALS, time)

    def _retry(self, trial: Trial, failure: Failure, retry: Retry, time: float) -> None:
        trial.failures += retry.counts
        trial.attempt += 1
        trial.alone = trial.alone or retry.alone
        if retry.config is not None:
            trial.tried.append(trial.config)
            trial.config = retry.config
        if retry.alone or retry.config is not None:
            self._step.records.append(ev.Rearranged(trial, time, changed=retry.config is not None))
        set_status(self._step, trial, time, TrialStatus.PENDING, retry.reason, failure, retried=True)
        if retry.config is None or self._request_for(trial, time):
            self._turns.waiting.add(trial)

    def _let_go(self, trial: Trial, time: float) -> None:
        if self._live.pop(trial.trial_id, None) is not None:
            self.pace.stopped(trial.trial_id, time)
            self.ledger.release(trial.trial_id)
            self._step.actions.append(ev.Release(trial.trial_id))

    def _kill_overdue(self, now: float) -> None:
        for live in [live for live in self._live.values() if now >= live.limit]:
            self._step.actions.append(ev.Kill(live.trial.trial_id))
            if live.outcome is None:
                words = timeout_words(self._plan.trial_timeout_s or 0.0)
                self._fail(live.trial, Failure(TIMEOUT, words), now)
                continue
            status, reason = live.outcome
            live.outcome = status, f"{reason}; killed, as it did not end in time"
            self._finish(live, now)

    # --- ends of the experiment -------------------------------------------------------------------

    def _on_stop_asked(self, event: ev.StopAsked) -> None:
        """Another process asks for an end: of the experiment as Ctrl-C does, of a trial for good."""
        words, time, trial_id = f"stopped by {event.by}", event.time, event.trial_id
        self._step.records.append(ev.Noted(time, "stop asked", event.by, trial_id))
        if trial_id is None:
            self._end(Ending(words, resumable=True), time)
        elif (live := self._live.get(trial_id)) is not None:
            live.must_end((TrialStatus.TERMINATED, words), time + self._plan.grace_s)
        elif (trial := self._by_id.get(trial_id)) is not None and self._turns.waiting.remove(trial):
            self._terminate(trial, time, f"{words}: not run")

    def _ask_for_an_end(self, time: float) -> None:
        if self.ended_by is not None:
            return
        ending = self._guarded(time, self._endings.due, time)
        if ending is not None:
            self._end(ending, time)

    def _guarded(self, time: float, ask: Callable[..., T], *args: Any) -> T | None:
        """Ask searcher, scheduler or stopper; where they raise, end the experiment, all of it recorded."""
        try:
            return ask(*args)
        except Exception as error:
            self.error = self.error or error
            self._end(BROKEN, time)
            return None

    def _end(self, ending: Ending, time: float) -> None:
        """Stop every trial at its next report, and start no other."""
        if self.ended_by is not None:
            return
        self._endings.reached = ending
        self._step.records.append(ev.Noted(time, "ending", ending.why))
        status = TrialStatus.PENDING if ending.resumable else TrialStatus.TERMINATED
        for live in self._live.values():
            live.must_end((status, ending.why), time + self._plan.grace_s)

    def _take(self) -> ev.Step:
        step, self._step = self._step, ev.Step()
        return step
