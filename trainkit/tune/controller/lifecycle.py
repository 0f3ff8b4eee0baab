"""Life of a trial: its way from status to status, and the early end of the experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import (
    FINISHED,
    ActiveAttempt,
    Origin,
    drop_checkpoints,
    full_result,
    keep_checkpoint,
    note_problem,
    set_status,
)
from trainkit.tune.controller.estimate import TimeEstimate
from trainkit.tune.controller.failures import TIMEOUT, Retry, timeout_words, what_follows
from trainkit.tune.controller.paused import PausedTrials
from trainkit.tune.controller.rules import (
    BROKEN,
    FAIL_FAST,
    FAILED_TRIALS,
    TIME_BUDGET,
    Ending,
    Judge,
    Plan,
    StopRules,
)
from trainkit.tune.controller.run_queue import RunQueue
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Verdict, words_for
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.proposals import Proposals
from trainkit.tune.search.trial_source import TrialSource

T = TypeVar("T")


class EarlyEnd:
    """What may end the experiment, and what has.

    Args:
        plan: the experiment's rules.
        stop: the rules in `plan.stop`, told already of the reports of before.
        spent_s: how long the experiment has run before, in seconds.
        step: where records gather.
        live: trials with a process, which an end must wait for.

    Attributes:
        reached: what has ended the experiment; None as long as it goes on.
        error: what searcher, scheduler or stopper raised first, if one did, or what broke the experiment off.
    """

    def __init__(
        self, plan: Plan, stop: StopRules, spent_s: float, step: ev.Step, live: Mapping[str, ActiveAttempt]
    ) -> None:
        self.reached: Ending | None = None
        self.error: Exception | None = None
        self._plan = plan
        self._stop = stop
        self._spent_s = spent_s
        self._step = step
        self._live = live
        self.begin(0.0)

    def begin(self, time: float) -> None:
        """The experiment runs from here on."""
        budget_s = self._plan.time_budget_s
        self._began = time
        self._budget_ends = math.inf if budget_s is None else time + budget_s

    @property
    def deadline(self) -> float:
        """When to ask again at the latest."""
        if self.reached is not None:
            return math.inf
        if self._stop.ends_none:
            return self._budget_ends
        return min(self._budget_ends, self._began + self._stop.deadline_s - self._spent_s)

    def ask(self, time: float) -> None:
        """End the experiment if it is time to."""
        if self.reached is not None or (self._stop.ends_none and time < self._budget_ends):
            return
        if (ending := self.guarded(time, self._due, time)) is not None:
            self.end(ending, time)

    def _due(self, time: float) -> Ending | None:
        if time >= self._budget_ends:
            return TIME_BUDGET
        why = self._stop.end(self._spent_s + time - self._began)
        return Ending(why) if why else None

    def guarded(self, time: float, ask: Callable[..., T], *args: Any) -> T | None:
        """Ask searcher, scheduler or stopper; where they raise, end the experiment, all of it recorded."""
        try:
            return ask(*args)
        except Exception as error:
            self.error = self.error or error
            self.end(BROKEN, time)
            return None

    def break_off(self, error: Exception, time: float) -> None:
        """End the experiment by an error, unless something else has ended it."""
        if self.reached is None:
            self.error = error
            self.end(BROKEN, time)

    def end(self, ending: Ending, time: float) -> None:
        """Stop every trial at its next report, and start no other."""
        if self.reached is not None:
            return
        self.reached = ending
        self._step.records.append(ev.Noted(time, "ending", ending.why))
        status = TrialStatus.PENDING if ending.resumable else TrialStatus.TERMINATED
        for live in self._live.values():
            live.must_end((status, ending.why), time + self._plan.grace_s)


# Names of their own, as a report looks at a dozen: of an enumeration each is looked up by a function.
PENDING, RUNNING, PAUSED = TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED
TERMINATED, ERROR = TrialStatus.TERMINATED, TrialStatus.ERROR

NOBODY_SAVES = (
    "No trial has given a checkpoint yet, so the experiment ends here, and the others don't fail one by one. "
    "What was reported is kept: go on by tune.Tuner.restore(path, trainable, restart_errored=True).fit()"
)


LOST = "the runtime's node died"
"""Reason of a trial that waits, having lost its process with the session."""


class Lifecycle:
    """See the module.

    Args:
        plan: the experiment's rules.
        step: where records and actions gather.
        live: trials with a process, by id.
        source: knows what a trial needs.
        proposals, scheduler, judge: told of results, and asked.
        ledger: what trials reserve.
        pace: told when they run.
        turns: of those that wait.
        pauses: of those that are paused.
        endings: of the experiment.
        failed: how many trials have failed before.
    """

    def __init__(
        self,
        plan: Plan,
        step: ev.Step,
        live: dict[str, ActiveAttempt],
        source: TrialSource,
        proposals: Proposals,
        scheduler: CheckedScheduler,
        judge: Judge,
        ledger: ResourceLedger,
        pace: TimeEstimate,
        turns: RunQueue,
        pauses: PausedTrials,
        endings: EarlyEnd,
        failed: int,
    ) -> None:
        self._plan = plan
        self._step = step
        self._live = live
        self._source = source
        self._proposals = proposals
        self._scheduler = scheduler
        self._judge = judge
        self._ledger = ledger
        self._pace = pace
        self._turns = turns
        self._pauses = pauses
        self._endings = endings
        self._failed = failed
        self._watched: dict[str, ActiveAttempt] = {}
        """Those that have a limit; until an end of the experiment gives all of them one."""

    def handle(
        self, event: ev.Placed | ev.Started | ev.Reported | ev.Finished | ev.Saved | ev.Failed
    ) -> None:
        """Take in what a trial's process has said; nothing if it was the process of an earlier attempt."""
        live = self._live.get(event.trial_id)
        if live is not None and live.trial.attempt == event.attempt:
            _HANDLERS[type(event)](self, live, event)

    # --- a trial's events -------------------------------------------------------------------------

    def _on_placed(self, live: ActiveAttempt, event: ev.Placed | ev.Started) -> None:
        if self._plan.trial_timeout_s is not None and math.isinf(live.times_out):
            live.times_out = event.time + self._plan.trial_timeout_s
            self.watch(live)

    def _on_started(self, live: ActiveAttempt, event: ev.Started) -> None:
        self._on_placed(live, event)  # where nobody can say when it had its resources
        trial = live.trial
        place = (event.pid, event.hostname, event.node_ip)
        live.origin = Origin(trial.trial_id, trial.tag, trial.config, *place)
        trial.status, trial.reason = RUNNING, ""
        self._step.records.append(
            ev.AttemptStarted(trial, trial.attempt, event.time, *place, iteration=trial.iteration)
        )
        self._go_on(live, event.time)

    def _on_reported(self, live: ActiveAttempt, event: ev.Reported) -> None:
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
        self._endings.guarded(event.time, self._proposals.on_trial_result, trial.trial_id, result)
        # What is decided on this very report goes before an end that was asked of all trials.
        self._endings.guarded(event.time, self._decide, live, result, event)
        self._endings.guarded(event.time, self._judge.require_metric, result)
        self._endings.ask(event.time)
        result["done"] = live.outcome is not None and live.outcome[0].is_finished
        if event.done:
            self._finish(live, event.time)
        else:
            self._go_on(live, event.time)

    def _decide(self, live: ActiveAttempt, result: dict[str, Any], event: ev.Reported) -> None:
        """Settle what the trial will be by this report."""
        trial = live.trial
        live.outcome = FINISHED if event.done else live.outcome
        says_done = not event.done and bool(event.metrics.get("done"))
        decision = self._judge.on_report(trial.trial_id, result, done=says_done)
        if isinstance(decision, Failure):
            live.outcome, live.failure = (ERROR, ""), decision
            return
        self._pauses.require_known(trial.trial_id, decision)
        if decision.reason or decision.verdict is not Verdict.CONTINUE:
            self._step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
        if decision.verdict is Verdict.STOP:
            live.outcome = TERMINATED, words_for(decision, self._scheduler.label)
        elif decision.verdict is Verdict.PAUSE and live.may_pause:
            live.outcome = PAUSED, words_for(decision, self._scheduler.label)
            live.pause = decision
        self.heed(event.time)
        if live.is_pausing and self._endings.reached is None and self._pauses.goes_on(live, event.time):
            live.outcome = None
            self.heed(event.time)
        live.saving = decision.save and live.outcome is None

    def _go_on(self, live: ActiveAttempt, time: float) -> None:
        """Let the trial run to its next report, or end it where it waits."""
        if live.outcome is None:
            trial_id = live.trial.trial_id
            self._step.actions.append(ev.Save(trial_id) if live.saving else ev.Advance(trial_id))
            return
        live.deadline = time + self._plan.cleanup_s
        self.watch(live)
        goes_on = live.outcome[0] in (PENDING, PAUSED)
        save = bool(self._plan.checkpoints.checkpoint_at_end) or goes_on
        self._step.actions.append(ev.Stop(live.trial.trial_id, save))

    def _on_saved(self, live: ActiveAttempt, event: ev.Saved) -> None:
        live.saving = False
        if event.checkpoint is not None:
            keep_checkpoint(self._step, self._plan.checkpoints, live.trial, event.checkpoint, event.iteration)
        self._go_on(live, event.time)

    def _on_finished(self, live: ActiveAttempt, event: ev.Finished) -> None:
        if event.checkpoint is not None:
            keep_checkpoint(self._step, self._plan.checkpoints, live.trial, event.checkpoint, event.iteration)
        note_problem(self._step, live.trial, event.time, event.problem)
        live.outcome = live.outcome or FINISHED
        self._finish(live, event.time, event.problem)

    def _on_failed(self, live: ActiveAttempt, event: ev.Failed) -> None:
        self.fail(live.trial, event.failure, event.time)

    # --- ends of a trial --------------------------------------------------------------------------

    def _finish(self, live: ActiveAttempt, time: float, problem: str = "") -> None:
        """The trial's process has nothing more to do, and may have ended with a problem: settle the rest."""
        trial, (status, reason) = live.trial, live.outcome or FINISHED
        if live.failure is not None:
            self.fail(trial, live.failure, time)
            return
        must_report = status is TERMINATED and not live.excused
        if must_report and (failure := self._judge.at_end(trial)):
            self.fail(trial, failure, time)
            return
        self._let_go(trial, time)
        if status is PAUSED:
            decision = live.pause or Decision(Verdict.PAUSE)
            refused = self._endings.guarded(time, self._pauses.begin, trial, decision, time, reason, problem)
            if refused is not None:
                self.fail(trial, refused, time)
                if not refused.retry and self._pauses.nobody_saves:
                    self._endings.break_off(ConfigError(f"{refused.message}. {NOBODY_SAVES}"), time)
        elif status is PENDING:
            trial.attempt += 1
            set_status(self._step, trial, time, status, reason)
        else:
            self.terminate(trial, time, reason)

    def terminate(self, trial: Trial, time: float, reason: str) -> None:
        """The trial, which has no process, has ended in order."""
        self._pace.ended(trial.trial_id)
        set_status(self._step, trial, time, TERMINATED, reason)
        drop_checkpoints(self._step, self._plan.checkpoints, trial, running=False)
        trial_id, result = trial.trial_id, trial.last_result or None
        # The searcher first: the scheduler may end others by this, and a replay tells all in one order.
        self._endings.guarded(time, self._proposals.on_trial_complete, trial_id, result)
        self._endings.guarded(time, self._scheduler.on_trial_complete, trial_id)
        self.heed(time)

    def fail(self, trial: Trial, failure: Failure, time: float) -> None:
        """The trial has failed, and is run again or not."""
        self._let_go(trial, time)
        follows = what_follows(trial, failure, self._plan.failure)
        if isinstance(follows, Retry):
            self._retry(trial, failure, follows, time)
            return
        trial.failures += 1
        trial.failure = follows
        self._pace.ended(trial.trial_id)
        reason = f"{follows.kind}: {follows.message}"[:200]
        set_status(self._step, trial, time, ERROR, reason, follows)
        drop_checkpoints(self._step, self._plan.checkpoints, trial, running=False)
        trial_id, result = trial.trial_id, trial.last_result or None
        self._endings.guarded(time, self._proposals.on_trial_complete, trial_id, result, True)
        self._endings.guarded(time, self._scheduler.on_trial_error, trial_id)
        self.heed(time)
        if self._plan.failure.fail_fast:
            self._endings.end(FAIL_FAST, time)
        self._failed += 1
        limit = self._plan.failure.max_failed_trials
        if limit is not None and self._failed >= limit:
            self._endings.end(FAILED_TRIALS, time)

    def _retry(self, trial: Trial, failure: Failure, retry: Retry, time: float) -> None:
        trial.failures += retry.counts
        trial.attempt += 1
        trial.alone = trial.alone or retry.alone
        if retry.config is not None:
            trial.tried.append(trial.config)
            trial.config = retry.config
        if retry.alone or retry.config is not None:
            self._step.records.append(ev.Rearranged(trial, time, retry.config))
        if retry.config is not None:
            self._endings.guarded(time, self._scheduler.on_trial_change, trial.trial_id, trial.config)
            self.heed(time)
        set_status(self._step, trial, time, PENDING, retry.reason, failure, retried=True)
        if retry.config is None or self.request_for(trial, time):
            self._turns.waiting.add(trial)

    def _let_go(self, trial: Trial, time: float) -> None:
        self._watched.pop(trial.trial_id, None)
        if self._live.pop(trial.trial_id, None) is not None:
            self._pace.stopped(trial.trial_id, time)
            self._ledger.release(trial.trial_id)
            self._step.actions.append(ev.Release(trial.trial_id))

    def lose_all(self, time: float) -> None:
        """Every process is gone, by no trial's fault: what was decided stands, the rest runs again."""
        for live in list(self._live.values()):
            trial, outcome = live.trial, live.outcome
            if outcome is None or (live.is_pausing and not self._pauses.may_begin(trial, live.pause)):
                self._let_go(trial, time)
                trial.attempt += 1
                set_status(self._step, trial, time, PENDING, LOST)
                self._turns.waiting.add(trial)
            else:
                self._finish(live, time, LOST)

    def watch(self, live: ActiveAttempt) -> None:
        """The attempt has a limit from now on."""
        self._watched[live.trial.trial_id] = live

    @property
    def _limited(self) -> Mapping[str, ActiveAttempt]:
        return self._watched if self._endings.reached is None else self._live

    @property
    def limit(self) -> float:
        """When the first of them is killed, whatever it does; infinity: none is."""
        limited = self._limited
        return min([live.limit for live in limited.values()]) if limited else math.inf

    def kill_overdue(self, now: float) -> None:
        """End those that take longer than they may."""
        if not (limited := self._limited):
            return
        for live in [live for live in limited.values() if now >= live.limit]:
            self._step.actions.append(ev.Kill(live.trial.trial_id))
            if live.outcome is None:
                words = timeout_words(self._plan.trial_timeout_s or 0.0)
                self.fail(live.trial, Failure(TIMEOUT, words), now)
                continue
            status, reason = live.outcome
            problem = "killed, as it did not end in time"
            live.outcome = status, f"{reason}; {problem}"
            self._finish(live, now, problem)

    def request_for(self, trial: Trial, time: float) -> bool:
        """Ask what the trial needs; False, and the trial has failed, if it can't be said or never be met."""
        try:
            trial.request = trial.granted or self._source.request(trial)
            self._ledger.require_feasible(trial.request, what=f"trial {trial.name}")
        except Exception as error:
            self.fail(trial, Failure.raised(error), time)
            return False
        return True

    def heed(self, time: float) -> None:
        """Carry out what the scheduler, having been told something, has decided on trials that wait."""
        if not self._scheduler.gives_verdicts:
            return
        verdicts = self._endings.guarded(time, self._scheduler.verdicts)
        if verdicts:
            for trial, reason in self._endings.guarded(time, self._pauses.heed, verdicts, time) or ():
                self.terminate(trial, time, reason)


# Of the class: an object that held its own methods would stay until the collector comes by, and with it all
# that trials are given.
_HANDLERS: Mapping[type[ev.Event], Callable[[Lifecycle, ActiveAttempt, Any], None]] = {
    ev.Placed: Lifecycle._on_placed,
    ev.Started: Lifecycle._on_started,
    ev.Reported: Lifecycle._on_reported,
    ev.Finished: Lifecycle._on_finished,
    ev.Saved: Lifecycle._on_saved,
    ev.Failed: Lifecycle._on_failed,
}
KINDS = tuple(_HANDLERS)
"""Of the events that `Lifecycle.handle` takes in."""
