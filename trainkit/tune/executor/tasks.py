"""Executors that run each step of a trial as a task, or in the current process.

Start -> Started at once    Advance -> a task -> Reported    Stop -> Finished at once    Kill -> no process

The worker processes serve only this experiment and end with the experiment, because the next experiment may
need changed modules, variables and folders. A waiting step starts as soon as a worker process is free, even
while the controller is busy.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.runtime import api
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import SessionWatch
from trainkit.settings import EXPERIMENT_MARK
from trainkit.tune.controller import events as ev
from trainkit.tune.core.resources import Bound, PlacementGroupFactory
from trainkit.tune.core.trial import Trial
from trainkit.tune.executor.base import Executor, event_of, put_shared
from trainkit.tune.executor.process_pool import kind_of
from trainkit.tune.executor.specs import SpecFactory
from trainkit.tune.trial.messages import NO_PROCESS, Reply, TrialSpec, WorkerProcess, reply
from trainkit.tune.trial.steps import SharedArguments, run_step, step_of


@dataclass(slots=True)
class _RunningTask:
    """Trial with its current step.

    Attributes:
        spec: specification for the trial's next step.
        state: state after the trial's last step.
        refs: references to the unfinished parallel tasks of the step; empty: no step is running.
        answers: replies of the finished parallel tasks of the step.
    """

    trial: Trial
    attempt: int
    spec: TrialSpec
    state: Any = None
    refs: list[ObjectRef[Any]] = field(default_factory=list)
    answers: list[tuple[Reply, Any]] = field(default_factory=list)


class _StepExecutor(Executor):
    """Base class of `TaskExecutor` and `ProgramExecutor`; keeps the state of trials between steps.

    Args:
        bound: the trainable with its parameters.
        specs: factory of the specification for each trial.
        now: function that returns the time in seconds for events.
        session: watch over the runtime session of the trials; None: trials run in this process only.
        pid: process id to report for the trials.
    """

    def __init__(
        self,
        bound: Bound,
        specs: SpecFactory,
        now: Callable[[], float],
        session: SessionWatch | None,
        pid: int,
    ) -> None:
        super().__init__(now, session)
        self._bound = bound
        self._specs = specs
        self._place = WorkerProcess(pid=pid, hostname=socket.gethostname(), node_ip="127.0.0.1")
        self._running: dict[str, _RunningTask] = {}

    def start(self, action: ev.Start) -> None:
        trial = action.trial
        running = _RunningTask(trial, action.attempt, self._specs.of(action))
        self._running[trial.trial_id] = running
        try:
            if running.spec.makes_dir and self._session is not None:
                os.makedirs(running.spec.trial_dir, exist_ok=True)
        except OSError as error:
            self._at_once.append(self._failed(trial.trial_id, action.attempt, error))
            return
        self._at_once.append(event_of(trial.trial_id, action.attempt, self._now(), self._place))

    def stop(self, action: ev.Stop) -> None:
        at = self._running[action.trial_id]
        self._end(at)
        self._at_once.append(ev.Finished(action.trial_id, at.attempt, self._now(), at.spec.iteration))

    def release(self, action: ev.Release) -> None:
        self._running.pop(action.trial_id, None)  # running tasks are not cancelled, because they end soon

    def kill(self, action: ev.Kill) -> None:
        if action.trial_id in self._running:
            self._end(self._running.pop(action.trial_id))

    @property
    def idle(self) -> bool:
        return not self._running and not self._at_once

    def dismiss(self) -> None:
        """Do nothing, because this process continues."""

    def close(self) -> None:
        for running in self._running.values():
            self._end(running)
        self._running.clear()
        self.dismiss()

    def _forget_processes(self) -> list[Trial]:
        ran = [running.trial for running in self._running.values()]
        self._running.clear()
        return ran

    def _begin_again(self) -> None:
        return  # the shared arguments are in this process, so the lost session did not affect them

    def _end(self, running: _RunningTask) -> None:
        """Cancel the running tasks of the current step."""

    def _told(self, running: _RunningTask, answer: Reply) -> ev.Event:
        """Return the event for the result of a finished step, and update the specification for the next
        step.
        """
        event = event_of(running.trial.trial_id, running.attempt, self._now(), answer)
        if isinstance(event, ev.Reported):
            running.spec = replace(
                running.spec,
                iteration=event.iteration,
                time_total_s=event.metrics["time_total_s"],
                timesteps_total=event.metrics.get("timesteps_total"),
            )
        return event


class TaskExecutor(_StepExecutor):
    """Executor that runs each step as a task, for `SerializedTrainable` classes whose trials never pause.

    Args:
        bound: the trainable with its parameters.
        specs: factory of the specification for each trial.
        now: function that returns the time in seconds for events.
    """

    def __init__(self, bound: Bound, specs: SpecFactory, *, now: Callable[[], float]) -> None:
        super().__init__(bound, specs, now, SessionWatch(), NO_PROCESS)
        self._shared = SharedArguments(*put_shared(bound))
        self._steps: dict[Hashable, Any] = {}
        self._own = {"env_vars": {EXPERIMENT_MARK: uuid.uuid4().hex}}

    def advance(self, action: ev.Advance) -> None:
        running = self._running[action.trial_id]
        if running.refs:  # other tasks of the step have not reported yet
            return
        running.answers.clear()
        try:
            step = self._step_for(running.trial.request)
            for part in range(parts := self._bound.parts):
                spec = running.spec if parts == 1 else replace(running.spec, part=(part, parts))
                running.refs.append(step.remote(self._shared, spec, running.state))
        except TrainkitError as error:
            if not self._is_lost():
                self._at_once.append(self._failed(action.trial_id, running.attempt, error))

    def wait(self, timeout_s: float | None) -> None:
        refs = self._out()
        if refs and not self._at_once:
            api.wait(list(refs), num_returns=1, timeout=timeout_s)

    def collect(self) -> list[ev.Event]:
        news = self._taken()
        out = self._out()
        if out:
            ready, _ = api.wait(list(out), num_returns=len(out), timeout=0)
            # At most one step of each trial is handled, because the controller must answer a report before
            # the trial's next report.
            for running, ref in {id(out[ref]): (out[ref], ref) for ref in ready}.values():
                event = None if self._lost else self._event(running, ref)
                if event is not None:
                    news.append(event)
        # The event about the lost session follows the reports, because the reports are older.
        return news + self._taken() if self._lost else news

    def dismiss(self) -> None:
        for step in self._steps.values():
            api.end_processes(step)
        self._steps.clear()

    def _out(self) -> dict[ObjectRef[Any], _RunningTask]:
        return {ref: running for running in self._running.values() for ref in running.refs}

    def _step_for(self, request: PlacementGroupFactory) -> Any:
        """Return the remote function that runs a step with the resources of a trial."""
        kind = kind_of(request)
        if kind not in self._steps:
            rest = dict(request.head)
            asked: dict[str, Any] = {"num_cpus": rest.pop("CPU", 0), "memory": rest.pop("memory", None)}
            step = api.remote(run_step)
            asked |= {"resources": rest, "runtime_env": self._own}
            self._steps[kind] = step.options(name=self._bound.name, max_retries=0, **asked)
        return self._steps[kind]

    def _end(self, running: _RunningTask) -> None:
        while running.refs:
            api.cancel(running.refs.pop(), force=True)

    def _event(self, running: _RunningTask, ref: ObjectRef[Any]) -> ev.Event | None:
        running.refs.remove(ref)
        try:
            running.answers.append(api.get(ref))
        except Exception as error:
            if self._is_lost():
                return None
            self._end(running)
            return self._failed(running.trial.trial_id, running.attempt, error)
        progress, running.state = running.answers[0] if self._bound.parts == 1 else self._joined(running)
        return self._told(running, progress)

    def _joined(self, running: _RunningTask) -> tuple[Reply, Any]:
        reports = [progress[1] for progress, _ in running.answers]
        trainable = self._bound.trainable
        metrics, state = trainable.joined(reports, **self._bound.parameters)
        count = running.spec.iteration + 1
        metrics |= {"training_iteration": count, "iterations_since_restore": count}
        return reply(count, metrics, done=state is None), state


class ProgramExecutor(_StepExecutor):
    """Executor that runs the steps of `SerializedTrainable`s in this process; steps must be short.

    Args:
        bound: the trainable with its parameters.
        specs: factory of the specification for each trial.
        now: function that returns the time in seconds for events.
    """

    def __init__(self, bound: Bound, specs: SpecFactory, *, now: Callable[[], float]) -> None:
        super().__init__(bound, specs, now, None, os.getpid())

    def advance(self, action: ev.Advance) -> None:
        at = self._running[action.trial_id]
        try:
            answer, at.state = step_of(self._bound.trainable, self._bound.parameters, at.spec, at.state)
        except Exception as error:
            self._at_once.append(self._failed(action.trial_id, at.attempt, error))
            return
        self._at_once.append(self._told(at, answer))

    def wait(self, timeout_s: float | None) -> None:
        return  # the events are already available

    def collect(self) -> list[ev.Event]:
        return self._taken()
