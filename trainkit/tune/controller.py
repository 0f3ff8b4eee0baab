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
import traceback
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune import events as ev
from trainkit.tune.autofill import Origin, full_result
from trainkit.tune.capacity import Ledger
from trainkit.tune.judging import Judge
from trainkit.tune.plan import BROKEN, FAIL_FAST, INTERRUPTED, RESUMABLE, TIME_BUDGET, Plan
from trainkit.tune.proposals import Proposals
from trainkit.tune.retention import checkpoint_score, to_drop
from trainkit.tune.schedulers.base import TrialScheduler, Verdict, stop_words
from trainkit.tune.suggesting import TrialSource
from trainkit.tune.trial import Failure, SavedCheckpoint, Trial, TrialStatus

FINISHED = (TrialStatus.TERMINATED, "finished")


@dataclass(slots=True)
class _Live:
    """A trial that has a process: what it will be once that ends, and by when it must."""

    trial: Trial
    origin: Origin | None = None
    outcome: tuple[TrialStatus, str] | None = None
    failure: Failure | None = None
    deadline: float = math.inf


class Controller:
    """See the module.

    Args:
        plan: the experiment's rules.
        source: where trials come from.
        proposals, scheduler: told of results; both rebuilt already when an experiment is resumed.
        ledger: what trials may reserve.
        trials: of the resumed experiment, in order; those PENDING will run.
        with_metric: ids of `trials` that have reported the metric.
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
    ) -> None:
        self.trials: list[Trial] = list(trials)
        self.ledger = ledger
        self.ending = ""
        self.error: Exception | None = None
        """Why no trial can be started any more, for `fit` to raise once those that ran have ended."""
        self._plan = plan
        self._source = source
        self._proposals = proposals
        self._scheduler = scheduler
        self._judge = Judge(plan, scheduler, with_metric)
        self._by_id = {trial.trial_id: trial for trial in self.trials}
        self._live: dict[str, _Live] = {}
        self._pending = [trial.index for trial in self.trials if trial.status is TrialStatus.PENDING]
        self._budget_ends = math.inf
        self._step = ev.Step()
        self._handlers = {
            ev.Started: self._on_started,
            ev.Reported: self._on_reported,
            ev.Finished: self._on_finished,
            ev.Failed: self._on_failed,
        }

    # --- what the loop calls ----------------------------------------------------------------------

    def begin(self, time: float) -> ev.Step:
        """Start the first trials; the time budget runs from here."""
        if self._plan.time_budget_s is not None:
            self._budget_ends = time + self._plan.time_budget_s
        for trial in self.trials:  # a kill may have come between the end of one and this
            if trial.status.is_finished:
                self._drop_checkpoints(trial, running=False)
        self._fill(time)
        return self._take()

    def handle(self, batch: Sequence[ev.Event]) -> ev.Step:
        """Take in what has happened, in order of time; at least one event, be it a Tick."""
        for event in batch:
            if isinstance(event, ev.Interrupted):
                self._end(INTERRUPTED, event.time)
            elif not isinstance(event, ev.Tick):
                live = self._live.get(event.trial_id)
                if live is not None and live.trial.attempt == event.attempt:
                    self._handlers[type(event)](live, event)  # type: ignore[operator]
        now = batch[-1].time
        if now >= self._budget_ends:
            self._end(TIME_BUDGET, now)
        self._kill_overdue(now)
        self._fill(now)
        return self._take()

    @property
    def done(self) -> bool:
        """True when nothing runs and nothing will."""
        return not self._live and (self.ending != "" or (not self._pending and self._source.exhausted))

    @property
    def deadline(self) -> float:
        """When to send a Tick at the latest; infinity: only events matter."""
        waiting = self._budget_ends if not self.ending else math.inf
        return min([waiting, *(live.deadline for live in self._live.values())])

    def close(self, time: float) -> ev.Step:
        """Say what becomes of trials that never got their turn; call once, when `done`."""
        if self.ending in (TIME_BUDGET, FAIL_FAST):
            for index in self._pending:
                self._set(self.trials[index], time, TrialStatus.TERMINATED, f"{self.ending}: not run")
            self._pending = []
        self._step.records.append(
            ev.Noted(time, "ended", self.ending or self._source.reason or "all trials have ended")
        )
        return self._take()

    # --- starting ---------------------------------------------------------------------------------

    def _fill(self, time: float) -> None:
        """Start trials while there are some and they fit; the first that doesn't keeps its place."""
        try:
            while not self.ending and self._start_next(time):
                pass
        except Exception as error:  # of the searcher or the scheduler: what has happened is still recorded
            self.error = error
            self._end(BROKEN, time)

    def _start_next(self, time: float) -> bool:
        trial = self._next_pending() or self._suggested(time)
        if trial is None:
            return False
        if trial.status.is_finished:
            return True
        if not self.ledger.reserve(trial.trial_id, trial.request):
            insort(self._pending, trial.index)
            if not self._live:  # nothing will ever be given back that it could wait for
                self.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
                raise RuntimeError(f"trial {trial.name} does not fit, though nothing else runs")
            return False
        self._live[trial.trial_id] = _Live(trial)
        trial.iteration = trial.checkpoint.iteration if trial.checkpoint else 0
        self._step.actions.append(ev.Start(trial, trial.attempt, trial.iteration, trial.checkpoint))
        return True

    def _next_pending(self) -> Trial | None:
        if not self._pending:
            return None
        waiting = [self.trials[index].trial_id for index in self._pending]
        chosen = self._scheduler.choose_trial_to_run(waiting)
        if chosen is None:
            return None
        trial = self._by_id[chosen]
        self._pending.remove(trial.index)
        return trial

    def _suggested(self, time: float) -> Trial | None:
        if not self.ledger.has_room():
            return None
        trial = self._source.next_trial()
        if trial is None:
            if not self._live and not self._pending and not self._source.exhausted:
                raise ConfigError(
                    f"{self._proposals.name} suggests nothing though no trial runs: "
                    "it must return a configuration, or Searcher.FINISHED"
                )
            return None
        self.trials.append(trial)
        self._by_id[trial.trial_id] = trial
        self._scheduler.on_trial_add(trial.trial_id)
        self._step.records.append(ev.TrialAdded(trial))
        try:
            trial.request = self._source.request(trial)
            self.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
        except Exception as error:
            failure = Failure(type(error).__name__, str(error), traceback.format_exc(), retry=False)
            self._fail(trial, failure, time)
        return trial

    # --- a trial's events -------------------------------------------------------------------------

    def _on_started(self, live: _Live, event: ev.Started) -> None:
        trial = live.trial
        live.origin = Origin(
            trial.trial_id, trial.tag, trial.config, event.pid, event.hostname, event.node_ip
        )
        trial.status, trial.reason = TrialStatus.RUNNING, ""
        self._step.records.append(
            ev.AttemptStarted(
                trial,
                trial.attempt,
                event.time,
                event.pid,
                event.hostname,
                event.node_ip,
                trial.iteration,
            )
        )
        self._go_on(live, event.time)

    def _on_reported(self, live: _Live, event: ev.Reported) -> None:
        trial, origin = live.trial, live.origin
        if origin is None:
            raise RuntimeError(f"trial {trial.trial_id} reported before it was started")
        result = full_result(event.metrics, origin, done=event.done)
        trial.iteration = event.iteration
        trial.last_result = result
        self._step.records.append(
            ev.ResultAdded(trial, trial.attempt, event.iteration, event.time, event.metrics, result)
        )
        if event.checkpoint is not None:
            self._keep(trial, event.checkpoint)
        self._note_problem(trial, event.problem, event.time)
        self._proposals.on_trial_result(trial.trial_id, result)
        # What is decided on this very report goes before an end that was asked of all trials.
        live.outcome = self._judged(live, result) or (FINISHED if event.done else live.outcome)
        result["done"] = live.outcome is not None
        if event.done:
            self._finish(live, event.time)
        else:
            self._go_on(live, event.time)

    def _judged(self, live: _Live, result: dict[str, Any]) -> tuple[TrialStatus, str] | None:
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

    def _go_on(self, live: _Live, time: float) -> None:
        """Let the trial run to its next report, or end it where it waits."""
        if live.outcome is None:
            self._step.actions.append(ev.Advance(live.trial.trial_id))
            return
        live.deadline = time + self._plan.cleanup_s
        save = bool(self._plan.checkpoints.checkpoint_at_end) or self.ending in RESUMABLE
        self._step.actions.append(ev.Stop(live.trial.trial_id, save))

    def _on_finished(self, live: _Live, event: ev.Finished) -> None:
        if event.checkpoint is not None:
            self._keep(live.trial, event.checkpoint, iteration=event.iteration)
        self._note_problem(live.trial, event.problem, event.time)
        live.outcome = live.outcome or FINISHED
        self._finish(live, event.time)

    def _on_failed(self, live: _Live, event: ev.Failed) -> None:
        self._fail(live.trial, event.failure, event.time)

    def _note_problem(self, trial: Trial, problem: str, time: float) -> None:
        """What a clean-up raised: worth keeping, but the trial's outcome is settled."""
        if problem:
            self._step.records.append(ev.Noted(time, "cleanup", problem, trial.trial_id))

    # --- ends -------------------------------------------------------------------------------------

    def _finish(self, live: _Live, time: float) -> None:
        """The trial's process has nothing more to do: settle what the trial now is."""
        trial, (status, reason) = live.trial, live.outcome or FINISHED
        if live.failure is not None:
            self._fail(trial, live.failure, time)
            return
        must_report = status is TrialStatus.TERMINATED and not self.ending
        if must_report and (failure := self._judge.at_end(trial)):
            self._fail(trial, failure, time)
            return
        self._let_go(trial)
        if status is TrialStatus.PENDING:
            trial.attempt += 1
        self._set(trial, time, status, reason)
        if status is TrialStatus.TERMINATED:
            self._drop_checkpoints(trial, running=False)
            self._scheduler.on_trial_complete(trial.trial_id)
            self._proposals.on_trial_complete(trial.trial_id, trial.last_result)

    def _fail(self, trial: Trial, failure: Failure, time: float) -> None:
        self._let_go(trial)
        trial.failures += 1
        allowed = self._plan.failure.max_failures
        if failure.retry and (allowed == -1 or trial.failures <= allowed):
            trial.attempt += 1
            limit = "" if allowed == -1 else f" of {allowed}"
            reason = f"retry {trial.failures}{limit} after {failure.kind}"
            self._set(trial, time, TrialStatus.PENDING, reason, failure, retried=True)
            insort(self._pending, trial.index)
            return
        trial.failure = failure
        self._set(trial, time, TrialStatus.ERROR, f"{failure.kind}: {failure.message}"[:200], failure)
        self._drop_checkpoints(trial, running=False)
        self._scheduler.on_trial_error(trial.trial_id)
        self._proposals.on_trial_complete(trial.trial_id, trial.last_result or None, error=True)
        if self._plan.failure.fail_fast:
            self._end(FAIL_FAST, time)

    def _let_go(self, trial: Trial) -> None:
        if self._live.pop(trial.trial_id, None) is not None:
            self.ledger.release(trial.trial_id)
            self._step.actions.append(ev.Release(trial.trial_id))

    def _end(self, why: str, time: float) -> None:
        """Stop every trial at its next report, and start no other."""
        if self.ending:
            return
        self.ending = why
        self._step.records.append(ev.Noted(time, "ending", why))
        status = TrialStatus.PENDING if why in RESUMABLE else TrialStatus.TERMINATED
        for live in self._live.values():
            if live.outcome is None:
                live.outcome = (status, why)
                live.deadline = time + self._plan.grace_s

    def _kill_overdue(self, now: float) -> None:
        for live in [live for live in self._live.values() if now >= live.deadline]:
            status, reason = live.outcome or FINISHED
            live.outcome = status, f"{reason}; killed, as it did not end in time"
            self._step.actions.append(ev.Kill(live.trial.trial_id))
            self._finish(live, now)

    # --- checkpoints and states -------------------------------------------------------------------

    def _keep(self, trial: Trial, dirname: str, iteration: int | None = None) -> None:
        number = int(dirname.rsplit("_", 1)[1])
        saved = SavedCheckpoint.after(
            number,
            dirname,
            trial.iteration if iteration is None else iteration,
            checkpoint_score(self._plan.checkpoints, trial.last_result),
            trial.last_result,
        )
        trial.checkpoints.append(saved)
        trial.next_checkpoint = number + 1
        self._step.records.append(ev.CheckpointAdded(trial, trial.attempt, saved))
        self._drop_checkpoints(trial, running=True)

    def _drop_checkpoints(self, trial: Trial, *, running: bool) -> None:
        for checkpoint in to_drop(self._plan.checkpoints, trial.checkpoints, running=running):
            trial.checkpoints.remove(checkpoint)
            self._step.records.append(ev.CheckpointDropped(trial, checkpoint))
            self._step.actions.append(ev.DeleteCheckpoint(trial, checkpoint))

    def _set(
        self,
        trial: Trial,
        time: float,
        status: TrialStatus,
        reason: str,
        failure: Failure | None = None,
        *,
        retried: bool = False,
    ) -> None:
        trial.status, trial.reason = status, reason
        self._step.records.append(
            ev.StatusChanged(trial, time, status, reason, trial.attempt, trial.failures, failure, retried)
        )

    def _take(self) -> ev.Step:
        step, self._step = self._step, ev.Step()
        return step
