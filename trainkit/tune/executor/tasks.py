"""Executor that runs each step of a trial as a task.

Start -> Started at once    Advance -> a task -> Reported    Stop -> Finished at once    Kill -> no process

The processes are kept for the steps of this experiment, and go when it has ended: the next one may find other
modules, variables and folders. A step that waits for one is sent to it the moment that it is free, whatever
the controller does meanwhile.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.runtime import api
from trainkit.runtime.specs import ObjectRef
from trainkit.settings import EXPERIMENT_MARK
from trainkit.tune.controller import events as ev
from trainkit.tune.core.resources import Bound, PlacementGroupFactory
from trainkit.tune.core.trial import Trial
from trainkit.tune.executor.base import (
    Executor,
    SpecFactory,
    event_of,
    failure_of,
    kind_of,
    put_named,
    remembered,
)
from trainkit.tune.trial.actor import SharedArguments, run_step
from trainkit.tune.trial.messages import NO_PROCESS, TrialSpec, WorkerProcess


@dataclass(slots=True)
class _RunningTask:
    """A trial, and the step that is out.

    Attributes:
        spec: what its next step is told.
        state: after its last step.
        ref: of the step that runs, or waits for a process; None: there is none.
    """

    trial: Trial
    attempt: int
    spec: TrialSpec
    state: Any = None
    ref: ObjectRef[Any] | None = None


class TaskExecutor(Executor):
    """Runs trials; as `Executor`, but for trainables that are `SerializedTrainable`s and never pause.

    Args:
        bound: the trainable with its parameters.
        specs: makes what each trial is told.
        now: the time that goes into events.
    """

    def __init__(self, bound: Bound, specs: SpecFactory, *, now: Callable[[], float]) -> None:
        super().__init__(now)
        self._shared = SharedArguments(
            put_named(f"the trainable {bound.name}", bound.trainable),
            {
                name: put_named(f"with_parameters({name}=...)", value)
                for name, value in bound.parameters.items()
            },
        )
        self._name = bound.name
        self._specs = specs
        self._steps: dict[Hashable, Any] = {}
        self._own = {"env_vars": {EXPERIMENT_MARK: uuid.uuid4().hex}}
        self._place = WorkerProcess(NO_PROCESS, socket.gethostname(), "127.0.0.1")
        self._running: dict[str, _RunningTask] = {}

    def advance(self, action: ev.Advance) -> None:
        running = self._running[action.trial_id]
        try:
            step = self._step_for(running.trial.request)
            running.ref = step.remote(self._shared, running.spec, running.state)
        except TrainkitError as error:
            if not self._is_lost():
                self._at_once.append(self._failed(running, error))

    def stop(self, action: ev.Stop) -> None:
        at = self._running[action.trial_id]
        self._at_once.append(ev.Finished(action.trial_id, at.attempt, self._now(), at.spec.iteration))

    def release(self, action: ev.Release) -> None:
        self._running.pop(action.trial_id, None)

    def kill(self, action: ev.Kill) -> None:
        self._end(self._running.pop(action.trial_id, None))

    def _unable(self, action: ev.Action) -> TypeError:
        return TypeError(f"trials whose steps are tasks have no checkpoints: {action!r}")

    def _forget_processes(self) -> list[Trial]:
        ran = [running.trial for running in self._running.values()]
        self._running.clear()
        return ran

    def _begin_again(self) -> None:
        return  # what all steps share is held by this process

    def wait(self, timeout_s: float | None) -> None:
        refs = self._out()
        if refs and not self._at_once:
            api.wait(list(refs), num_returns=1, timeout=timeout_s)

    def collect(self) -> list[ev.Event]:
        news = self._taken()
        out = self._out()
        if out:
            ready, _ = api.wait(list(out), num_returns=len(out), timeout=0)
            for ref in ready:
                event = None if self._lost else self._event(out[ref], ref)
                if event is not None:
                    news.append(event)
        # Behind all that was reported before the loss.
        return news + self._taken() if self._lost else news

    @property
    def idle(self) -> bool:
        return not self._running and not self._at_once

    def dismiss(self) -> None:
        for step in self._steps.values():
            api.end_processes(step)
        self._steps.clear()

    def close(self) -> None:
        for running in self._running.values():
            self._end(running)
        self._running.clear()
        self.dismiss()

    def _out(self) -> dict[ObjectRef[Any], _RunningTask]:
        return {running.ref: running for running in self._running.values() if running.ref is not None}

    def start(self, action: ev.Start) -> None:
        trial = action.trial
        running = _RunningTask(trial, action.attempt, self._specs.of(action))
        self._running[trial.trial_id] = running
        try:
            if running.spec.makes_dir:
                os.makedirs(running.spec.trial_dir, exist_ok=True)
        except OSError as error:
            self._at_once.append(self._failed(running, error))
            return
        self._at_once.append(event_of(trial.trial_id, action.attempt, self._now(), self._place))

    def _step_for(self, request: PlacementGroupFactory) -> Any:
        """The task, with what a trial asks for."""
        kind = kind_of(request)
        if kind not in self._steps:
            rest = dict(request.head)
            asked: dict[str, Any] = {"num_cpus": rest.pop("CPU", 0), "memory": rest.pop("memory", None)}
            step = api.remote(run_step)
            asked |= {"resources": rest, "runtime_env": self._own}
            self._steps[kind] = step.options(name=self._name, max_retries=0, **asked)
        return self._steps[kind]

    def _end(self, running: _RunningTask | None) -> None:
        if running is not None and running.ref is not None:
            api.cancel(running.ref, force=True)

    def _event(self, running: _RunningTask, ref: ObjectRef[Any]) -> ev.Event | None:
        running.ref = None
        try:
            progress, running.state = api.get(ref)
        except Exception as error:
            return None if self._is_lost() else self._failed(running, error)
        event = event_of(running.trial.trial_id, running.attempt, self._now(), progress)
        if isinstance(event, ev.Reported):
            running.spec = replace(
                running.spec,
                iteration=event.iteration,
                time_total_s=event.metrics["time_total_s"],
                timesteps_total=event.metrics.get("timesteps_total"),
            )
        return event

    def _failed(self, running: _RunningTask, error: Exception) -> ev.Failed:
        trial_id, attempt = running.trial.trial_id, running.attempt
        self.errors[trial_id, attempt] = remembered(error)
        return ev.Failed(trial_id, attempt, self._now(), failure_of(error))
