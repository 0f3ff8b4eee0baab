"""Executor that runs each trial in its own actor."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainkit.errors import ActorDiedError, NodeDiedError, TaskError, TrainkitError, message_of
from trainkit.resources import describe
from trainkit.runtime import api, session
from trainkit.runtime.calls.remote import ActorHandle
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.scheduling import PlacementGroup, PlacementGroupSchedulingStrategy
from trainkit.tune.controller import events as ev
from trainkit.tune.core.checkpoint import link_checkpoint, remove_checkpoint, remove_unknown
from trainkit.tune.core.log import logger
from trainkit.tune.core.resources import Bound, PlacementGroupFactory
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.executor.base import Executor, event_of, put_shared
from trainkit.tune.executor.process_pool import ProcessPool
from trainkit.tune.executor.specs import SpecFactory
from trainkit.tune.trial.actor import TrialActor
from trainkit.tune.trial.messages import TrialSpec


@dataclass(slots=True)
class _Process:
    """Process that runs trials one after another."""

    name: str
    actor: ActorHandle
    group: PlacementGroup | None


@dataclass(slots=True)
class _Leaving:
    """Process that must end by `deadline`; `ref` is ready once the process has ended."""

    process: _Process
    ref: ObjectRef[Any]
    deadline: float


class LeavingProcesses:
    """Processes that received a request to end; overdue processes are killed.

    Args:
        now: function that returns the time in seconds, which never decreases.
        leave_s: maximum seconds from the request until the process has ended.
    """

    def __init__(self, *, now: Callable[[], float], leave_s: float) -> None:
        self._now = now
        self._leave_s = leave_s
        self._leaving: list[_Leaving] = []

    def __len__(self) -> int:
        return len(self._leaving)

    def let_leave(self, process: _Process) -> None:
        """Request that a process ends cleanly, which frees its resources.

        The process is asked to end, because a stored exception may keep a handle of the actor, and so the
        actor's process, alive.
        """
        ref = process.actor.leave.remote(os.getpid())
        self._leaving.append(_Leaving(process, ref, self._now() + self._leave_s))

    def see_off(self) -> None:
        """Remove the processes that have ended from this object, and kill overdue processes."""
        if not self._leaving:
            return
        refs = [leaving.ref for leaving in self._leaving]
        gone = set(api.wait(refs, num_returns=len(refs), timeout=0)[0])
        now, staying = self._now(), []
        for leaving in self._leaving:
            process = leaving.process
            if leaving.ref in gone:
                _give_back(process)
            elif now < leaving.deadline:
                staying.append(leaving)
            else:
                logger.warning("%r did not end within %g s and is killed", process.actor, self._leave_s)
                _end_now(process)
        self._leaving = staying

    def wait(self) -> None:
        """Wait until a process has ended or is overdue."""
        overdue_s = self.deadline - self._now()
        refs = [leaving.ref for leaving in self._leaving]
        api.wait(refs, num_returns=1, timeout=max(0.0, overdue_s) if math.isfinite(overdue_s) else None)

    @property
    def deadline(self) -> float:
        """The earliest time by which a process must have ended; infinity without processes."""
        return min((leaving.deadline for leaving in self._leaving), default=math.inf)

    def with_bundles(self) -> list[ObjectRef[Any]]:
        """Return the refs of processes with placement groups, which `see_off` must release."""
        return [leaving.ref for leaving in self._leaving if leaving.process.group is not None]

    def take_all(self) -> list[_Process]:
        """Remove and return the processes that have not ended; the caller must kill them at once."""
        doomed, self._leaving = self._leaving, []
        return [leaving.process for leaving in doomed]


def _end_now(process: _Process) -> None:
    """Kill a process and release its placement group."""
    with contextlib.suppress(NodeDiedError):  # the process died with its node
        api.kill(process.actor)
    _give_back(process)


def _give_back(process: _Process) -> None:
    """Release the placement group of an ended process, if the process has one."""
    if process.group is not None:
        with contextlib.suppress(NodeDiedError):
            api.remove_placement_group(process.group)


_IN_ORDER = (TrialStatus.TERMINATED, TrialStatus.PAUSED)


@dataclass(slots=True)
class _Running:
    """Trial that runs in a process, with the call that the process has not answered yet.

    Attributes:
        spec: specification that the process receives.
        phase: name of the unanswered call: wait_here, setup, begin, advance, save or stop.
        sound: True if nothing has failed in the process. Only a sound process may run another trial.
    """

    start: ev.Start
    spec: TrialSpec
    process: _Process
    ref: ObjectRef[Any]
    phase: str
    iteration: int
    sound: bool = True


class ActorExecutor(Executor):
    """Executor that runs each trial in an actor.

    Args:
        bound: the trainable with its parameters.
        specs: factory of the specification for each trial's process.
        now: function that returns the time for events.
        leave_s: maximum seconds until a process that is no longer needed has ended.
        reuse: True: processes of cleanly ended trials run further trials.
        timed: True: attempts have a timeout, so an event is sent when an attempt gets its resources.
    """

    def __init__(
        self,
        bound: Bound,
        specs: SpecFactory,
        *,
        now: Callable[[], float],
        leave_s: float = math.inf,
        reuse: bool = False,
        timed: bool = False,
    ) -> None:
        super().__init__(now, session.SessionWatch())
        self._timed = timed
        self._shared = put_shared(bound)
        self._name = bound.name
        self._specs = specs
        self._folder = os.fspath(specs.folder)
        self._actor_class: Any = api.remote(TrialActor)
        self._running: dict[str, _Running] = {}
        self._departures = LeavingProcesses(now=now, leave_s=leave_s)
        self._reuse = reuse
        self._pool = self._new_pool()
        self._cut_off: list[Trial] = []
        """Trials whose processes were lost with the session."""
        self._names = map(str, itertools.count())

    def advance(self, action: ev.Advance) -> None:
        self._call(action.trial_id, "advance")

    def save(self, action: ev.Save) -> None:
        self._call(action.trial_id, "save")

    def stop(self, action: ev.Stop) -> None:
        self._call(action.trial_id, "stop", action.save)

    def delete_checkpoint(self, action: ev.DeleteCheckpoint) -> None:
        remove_checkpoint(f"{self._folder}/{action.trial.dirname}", action.checkpoint.dirname)

    def wait(self, timeout_s: float | None) -> None:
        """Return when a trial has an event, when a placement group must be released, or after `timeout_s`.

        After the wait, `collect` returns the event and releases the group.
        """
        if self._at_once or not self._running:
            return
        overdue_s = min(self._departures.deadline, self._pool.deadline) - self._now()
        if timeout_s is None or overdue_s < timeout_s:
            timeout_s = max(0.0, overdue_s) if math.isfinite(overdue_s) else None
        refs = [running.ref for running in self._running.values()] + self._departures.with_bundles()
        api.wait(refs, num_returns=1, timeout=timeout_s)

    def collect(self) -> list[ev.Event]:
        news = self._taken()
        for process in self._pool.overdue(self._now()):
            self._departures.let_leave(process)
        self._departures.see_off()
        if not self._running:
            return news
        if session.leaving:
            news += self._moves()
        by_id = {running.ref.id: running for running in self._running.values()}
        ready, _ = api.wait([running.ref for running in by_id.values()], num_returns=len(by_id), timeout=0)
        for ref in ready:
            running = by_id[ref.id]
            trial_id = running.start.trial.trial_id
            # After the loss of the session, unread replies are discarded, because the trials run again and
            # repeat their reports.
            if self._lost:
                break
            # A trial whose reply is read moves to the end of the dictionary, so that trials take turns.
            self._running[trial_id] = self._running.pop(trial_id)
            if (event := self._event(running)) is not None:
                news.append(event)
        # The event about the lost session follows the reports, because the reports are older.
        return news + self._taken() if self._lost else news

    def _moves(self) -> list[ev.Event]:
        return [
            ev.NodeEnding(trial_id, running.start.attempt, self._now())
            for trial_id, running in self._running.items()
            if running.process.actor._actor_id.hex() in session.leaving
        ]

    @property
    def idle(self) -> bool:
        return not self._running and not self._at_once

    def waits(self) -> str:
        pending = (each for each in self._running.values() if each.start.trial.status is TrialStatus.PENDING)
        first, engine = next(pending, None), session.running()
        # Only the local engine gives reasons for waiting; Ray does not.
        if first is None or engine is None or engine.name != "local":
            return ""
        trial, actor = first.start.trial.trial_id, first.process.actor._actor_id.hex()
        try:
            for request in engine.state("requests"):
                if request["id"] == actor:
                    return f"{trial} waits for {describe(request['asked'])}: {'; '.join(request['reasons'])}"
            row = next((row for row in engine.state("actors") if row["actor_id"] == actor), None)
        except NodeDiedError:  # the trial's own events report the loss of the node
            return ""
        if row is None or row["pid"] is None:
            imports = ", ".join(sorted(session.wanted() & {"torch", "pandas", "sklearn"}))
            return f"{trial} waits for its worker to start{imports and f', which is forked with {imports}'}"
        return f"{trial} starts: its worker (pid {row['pid']}) imports the trial's code and runs its setup"

    def dismiss(self) -> None:
        for process in self._pool.take_all():
            self._departures.let_leave(process)

    @property
    def gone(self) -> bool:
        self._departures.see_off()
        return not self._departures

    def wait_gone(self) -> None:
        self._departures.wait()

    def close(self) -> None:
        doomed = [running.process for running in self._running.values()] + self._pool.take_all()
        self._running.clear()
        for process in doomed + self._departures.take_all():
            try:
                _end_now(process)
            except TrainkitError:  # the error is ignored, because the other processes must be killed too
                logger.warning("%r could not be stopped", process.actor, exc_info=True)

    # --- a lost session ---------------------------------------------------------------------------

    def _forget_processes(self) -> list[Trial]:
        ran = [running.start.trial for running in self._running.values()]
        self._cut_off += ran
        self._running.clear()
        self._departures.take_all()
        self._pool = ProcessPool({})
        return ran

    def _begin_again(self) -> None:
        self._pool = self._new_pool()
        # All reports of these trials are committed by now, so checkpoints without a report can be removed.
        for trial in self._cut_off:
            self._tidy(trial)
        self._cut_off.clear()

    def _new_pool(self) -> ProcessPool[_Process]:
        """Return a pool without idle processes; the pool stays empty if processes are not reused."""
        return ProcessPool(session.engine().cluster_resources() if self._reuse else {})

    # --- requests to processes --------------------------------------------------------------------

    def start(self, action: ev.Start, *, fresh: bool = False) -> None:
        """Begin an attempt; with `fresh`, in a new process even if an idle process exists."""
        trial, attempt = action.trial, action.attempt
        process = None if fresh else self._pool.take(trial.request)
        try:
            spec = self._specs.of(action)
            if process is not None:
                phase, ref = "begin", process.actor.begin.remote(spec)
                if self._timed:
                    self._at_once.append(ev.Placed(trial.trial_id, attempt, self._now()))
            else:
                process = self._fork(trial.request, self._name if self._reuse else trial.name)
                if self._timed:
                    phase, ref = "wait_here", process.actor.wait_here.remote()
                else:
                    phase, ref = "setup", self._set_up(process, spec)
        except TrainkitError as error:
            if self._is_lost():
                return
            if process is not None:
                self._let_leave(process)
            self._at_once.append(self._failed(trial.trial_id, attempt, error))
            return
        self._running[trial.trial_id] = _Running(action, spec, process, ref, phase, action.iteration)

    def _set_up(self, process: _Process, spec: TrialSpec) -> ObjectRef[Any]:
        ref: ObjectRef[Any] = process.actor.setup.remote(spec, *self._shared)
        return ref

    def _fork(self, request: PlacementGroupFactory, label: str) -> _Process:
        name = next(self._names)
        for process in self._pool.admit(name, request):
            self._departures.let_leave(process)
        head = dict(request.head)
        options: dict[str, Any] = {"label": label}
        group = None
        try:
            if len(request.bundles) > 1 and request.group:
                group = api.placement_group(request.group, request.strategy)
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    group, 0 if head else -1, placement_group_capture_child_tasks=True
                )
            options |= {"num_cpus": head.pop("CPU", 0), "num_gpus": head.pop("GPU", 0)}
            options |= {"memory": head.pop("memory", None), "resources": head}
            actor = self._actor_class.options(**options).remote(self._reuse)
        except BaseException:
            if group is not None:
                api.remove_placement_group(group)
            self._pool.forget(name)
            raise
        return _Process(name, actor, group)

    def _call(self, trial_id: str, method: str, *args: Any) -> None:
        running = self._running[trial_id]
        running.ref, running.phase = getattr(running.process.actor, method).remote(*args), method

    def release(self, action: ev.Release) -> None:
        running = self._running.pop(action.trial_id, None)
        if running is None:
            return
        trial = running.start.trial
        if self._reuse and running.sound and trial.status in _IN_ORDER:
            self._pool.keep(running.process.name, running.process, trial.request, self._now())
        else:
            self._let_leave(running.process)
        if not running.sound:
            self._tidy(trial)

    def interrupt(self, action: ev.Interrupt) -> None:
        running = self._running.get(action.trial_id)
        if running is not None and running.phase == "advance":
            running.phase, running.sound = "stop", False
            api.cancel(running.ref)

    def kill(self, action: ev.Kill) -> None:
        running = self._running.pop(action.trial_id, None)
        if running is not None:
            self._pool.forget(running.process.name)
            _end_now(running.process)
            self._tidy(running.start.trial)

    def adopt(self, action: ev.Adopt) -> None:
        trial, time = action.trial, self._now()
        source = f"{self._folder}/{action.donor.dirname}/{action.checkpoint.dirname}"
        dirname, problem = None, ""
        try:
            folder, durable = f"{self._folder}/{trial.dirname}", self._specs.durable
            dirname = link_checkpoint(source, folder, action.dirname, durable=durable)
        # If the copy fails, no error is raised, because the trial can still resume from its own checkpoint.
        except OSError as error:
            problem = f"{source} cannot be copied: {type(error).__name__}: {error}"
        self._at_once.append(ev.Adopted(trial.trial_id, trial.attempt, time, dirname, problem))

    def _tidy(self, trial: Trial) -> None:
        """Remove a trial's complete or partial checkpoints that do not belong to a report."""
        remove_unknown(f"{self._folder}/{trial.dirname}", {kept.dirname for kept in trial.checkpoints})

    def _let_leave(self, process: _Process) -> None:
        self._pool.forget(process.name)
        self._departures.let_leave(process)

    # --- replies from processes -------------------------------------------------------------------

    def _event(self, running: _Running) -> ev.Event | None:
        start, time = running.start, self._now()
        trial_id, attempt = start.trial.trial_id, start.attempt
        try:
            answer = api.get(running.ref)
            if running.phase == "wait_here":
                running.phase, running.ref = "setup", self._set_up(running.process, running.spec)
                return ev.Placed(trial_id, attempt, time)
        except Exception as error:
            if self._is_lost():
                return None
            running.sound = False
            died = isinstance(error, ActorDiedError) and not isinstance(error, TaskError)
            if running.phase == "begin" and died:
                # The process died while it was idle, so the trial starts in a new process, and no failure is
                # counted.
                self._let_leave(self._running.pop(trial_id).process)
                self.start(start, fresh=True)
                return None
            # The trial's outcome is already decided, so the error does not change the outcome and is only
            # reported.
            if running.phase == "stop":
                return ev.Finished(trial_id, attempt, time, running.iteration, problem=message_of(error))
            return self._failed(trial_id, attempt, error)
        event = event_of(trial_id, attempt, time, answer)
        if isinstance(event, (ev.Reported, ev.Finished)):
            running.iteration = event.iteration
            running.sound = running.sound and not event.problem
        return event
