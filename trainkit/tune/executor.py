"""Carries the controller's actions out on the runtime: one actor, in a process of its own, per trial.

Start -> setup    Advance -> advance    Stop -> stop          one call is out per trial, never two
   Started           Reported              Finished           Failed, from any of them

Release -> leave: the process ends in order, and is killed if that takes longer than it may.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.errors import (
    ActorDiedError,
    ConfigError,
    MetricError,
    SerializationError,
    TaskError,
    TrainkitError,
)
from trainkit.runtime import api, preload
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.runtime.remote import ActorHandle
from trainkit.runtime.specs import ObjectRef
from trainkit.tune import events as ev
from trainkit.tune.placement import Bound
from trainkit.tune.protocol import Place, Progress
from trainkit.tune.specification import SpecMaker
from trainkit.tune.trial import Failure
from trainkit.tune.trial_actor import TrialActor

logger = logging.getLogger("trainkit.tune")

# Each trial is a process: what it needs of ours is there when it is forked.
preload.register("trainkit.tune.trial_actor")


@dataclass(slots=True)
class _Running:
    """A trial's process and the call that is out to it."""

    trial_id: str
    attempt: int
    iteration: int
    actor: ActorHandle
    group: PlacementGroup | None
    ref: ObjectRef[Any]
    phase: str


@dataclass(slots=True)
class _Leaving:
    """A process that has been told to end: `ref` is done once it has, which it must by `deadline`."""

    actor: ActorHandle
    group: PlacementGroup | None
    ref: ObjectRef[Any]
    deadline: float


class Executor:
    """Runs trials.

    Args:
        bound: the trainable with its parameters.
        specs: makes what each trial's process is told.
        now: the time that goes into events.
        leave_s: how long a trial's process may take to end once nothing more is wanted of it.
    """

    def __init__(
        self,
        bound: Bound,
        specs: SpecMaker,
        *,
        now: Callable[[], float],
        leave_s: float = math.inf,
    ) -> None:
        api.ensure_serializable(bound.trainable, f"the trainable {bound.name}")
        self._trainable = bound.trainable
        self._parameters = {name: _put(name, value) for name, value in bound.parameters.items()}
        self._specs = specs
        self._folder = specs.folder
        self._now = now
        self._leave_s = leave_s
        self._actor_class: Any = api.remote(TrialActor)
        self._running: dict[str, _Running] = {}
        self._leaving: list[_Leaving] = []
        self._at_once: list[ev.Event] = []
        self.errors: dict[tuple[str, int], BaseException] = {}
        """By trial and attempt, what it raised."""

    def carry_out(self, actions: Sequence[ev.Action]) -> None:
        """Do what the controller wants done; returns at once."""
        for action in actions:
            match action:
                case ev.Advance(trial_id):
                    self._call(trial_id, "advance")
                case ev.Stop(trial_id, save):
                    self._call(trial_id, "stop", save)
                case ev.Start():
                    self._start(action)
                case ev.Release(trial_id):
                    self._release(trial_id)
                case ev.Kill(trial_id):
                    self._kill(trial_id)
                case ev.DeleteCheckpoint(trial, checkpoint):
                    shutil.rmtree(self._folder / trial.dirname / checkpoint.dirname, ignore_errors=True)

    def wait(self, timeout_s: float | None) -> None:
        """Return when some trial has news, or bundles are to be given back, or after `timeout_s`.

        Either is for `collect` to see to.
        """
        if self._at_once or not self._running:
            return
        overdue_s = self._first_deadline() - self._now()
        if timeout_s is None or overdue_s < timeout_s:
            timeout_s = max(0.0, overdue_s) if math.isfinite(overdue_s) else None
        refs = [running.ref for running in self._running.values()]
        # A process gives what it held back by itself, but its bundles, which others may wait for, we do.
        refs += [leaving.ref for leaving in self._leaving if leaving.group is not None]
        api.wait(refs, num_returns=1, timeout=timeout_s)

    def collect(self) -> list[ev.Event]:
        """Return all news that has arrived; doesn't wait."""
        news, self._at_once = self._at_once, []
        self._see_off()
        if not self._running:
            return news
        by_ref = {running.ref: running for running in self._running.values()}
        ready, _ = api.wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        for ref in ready:
            running = by_ref[ref]
            # To the end of the line, so that where trials take turns each gets its turn.
            self._running[running.trial_id] = self._running.pop(running.trial_id)
            news.append(self._event(running))
        return news

    @property
    def idle(self) -> bool:
        """True if no trial runs, and there is no news."""
        return not self._running and not self._at_once

    @property
    def gone(self) -> bool:
        """True once every process that was released has ended; else wait for that by `wait_gone`."""
        self._see_off()
        return not self._leaving

    def wait_gone(self) -> None:
        """Return when a released process has ended, or is overdue."""
        overdue_s = self._first_deadline() - self._now()
        refs = [leaving.ref for leaving in self._leaving]
        api.wait(refs, num_returns=1, timeout=max(0.0, overdue_s) if math.isfinite(overdue_s) else None)

    def close(self) -> None:
        """End every process at once."""
        # By its handle, each for itself: one that can't be ended must not save the others.
        doomed = [running.actor for running in self._running.values()]
        groups = [running.group for running in self._running.values()]
        doomed += [leaving.actor for leaving in self._leaving]
        groups += [leaving.group for leaving in self._leaving]
        self._running.clear()
        self._leaving.clear()
        for actor, group in zip(doomed, groups, strict=True):
            try:
                _end(actor, group)
            except TrainkitError:
                logger.warning("%r could not be ended", actor, exc_info=True)

    # --- calls out --------------------------------------------------------------------------------

    def _start(self, action: ev.Start) -> None:
        trial, attempt = action.trial, action.attempt
        group = actor = None
        try:
            os.makedirs(self._folder / trial.dirname, exist_ok=True)
            spec = self._specs.of(action)
            head = dict(trial.request.head)
            options: dict[str, Any] = {"label": trial.name}
            if len(trial.request.bundles) > 1 and trial.request.group:
                group = api.placement_group(trial.request.group, trial.request.strategy)
                options |= {"placement_group": group, "placement_group_bundle_index": 0 if head else -1}
            options |= {"num_cpus": head.pop("CPU", 0), "num_gpus": head.pop("GPU", 0), "resources": head}
            actor = self._actor_class.options(**options).remote()
            ref = actor.setup.remote(spec, self._trainable, self._parameters)
        except (TrainkitError, OSError) as error:
            self._let_leave(actor, group)
            self._remember(trial.trial_id, attempt, error)
            self._at_once.append(ev.Failed(trial.trial_id, attempt, self._now(), failure_of(error)))
            return
        self._running[trial.trial_id] = _Running(
            trial.trial_id, attempt, action.iteration, actor, group, ref, "setup"
        )

    def _call(self, trial_id: str, method: str, *args: Any) -> None:
        running = self._running[trial_id]
        running.ref = getattr(running.actor, method).remote(*args)
        running.phase = method

    def _release(self, trial_id: str) -> None:
        running = self._running.pop(trial_id, None)
        if running is not None:
            self._let_leave(running.actor, running.group)

    def _kill(self, trial_id: str) -> None:
        running = self._running.pop(trial_id, None)
        if running is not None:
            _end(running.actor, running.group)

    def _let_leave(self, actor: ActorHandle | None, group: PlacementGroup | None) -> None:
        """Have the process end in order, which frees what it holds.

        Told in so many words: it would also end with the last handle to it, but whoever keeps an
        exception may keep one.
        """
        if actor is not None:
            ref = actor.leave.remote(os.getpid())
            self._leaving.append(_Leaving(actor, group, ref, self._now() + self._leave_s))
        elif group is not None:
            api.remove_placement_group(group)

    def _see_off(self) -> None:
        """Forget the processes that have ended, and kill those that are overdue."""
        if not self._leaving:
            return
        refs = [leaving.ref for leaving in self._leaving]
        gone = set(api.wait(refs, num_returns=len(refs), timeout=0)[0])
        now, staying = self._now(), []
        for leaving in self._leaving:
            if leaving.ref not in gone and now < leaving.deadline:
                staying.append(leaving)
            elif leaving.ref not in gone:
                logger.warning("%r did not end within %g s and is killed", leaving.actor, self._leave_s)
                _end(leaving.actor, leaving.group)
            elif leaving.group is not None:
                api.remove_placement_group(leaving.group)
        self._leaving = staying

    def _first_deadline(self) -> float:
        return min((leaving.deadline for leaving in self._leaving), default=math.inf)

    def _remember(self, trial_id: str, attempt: int, error: BaseException) -> None:
        # Without the frames of this program, which it has nothing to do with and would keep alive.
        self.errors[trial_id, attempt] = error.with_traceback(None)

    # --- answers in -------------------------------------------------------------------------------

    def _event(self, running: _Running) -> ev.Event:
        trial_id, attempt, time = running.trial_id, running.attempt, self._now()
        try:
            answer = api.get(running.ref)
        except Exception as error:
            if running.phase == "stop":  # what it was is settled; how it ended is told
                return ev.Finished(trial_id, attempt, time, running.iteration, problem=str(error))
            self._remember(trial_id, attempt, error)
            return ev.Failed(trial_id, attempt, time, failure_of(error))
        match answer:
            case Place(pid, hostname, node_ip):
                return ev.Started(trial_id, attempt, time, pid, hostname, node_ip)
            case Progress(metrics=None):
                return ev.Finished(
                    trial_id, attempt, time, answer.iteration, answer.checkpoint, answer.problem
                )
            case Progress(iteration=iteration, metrics=dict(metrics)):
                running.iteration = iteration
                return ev.Reported(
                    trial_id,
                    attempt,
                    time,
                    iteration,
                    metrics,
                    answer.checkpoint,
                    answer.done,
                    answer.problem,
                )
        raise TypeError(f"a trial cannot answer {answer!r}")


def failure_of(error: BaseException) -> Failure:
    """What is kept of an exception; a mistake in the arguments would only be made again."""
    cause = error.cause if isinstance(error, TaskError) and error.cause is not None else error
    wrong = (MetricError, ConfigError, SerializationError)
    return Failure(
        kind=type(cause).__name__,
        message=str(cause),
        traceback=error.remote_traceback if isinstance(error, TaskError) else _last_words(error),
        retry=not isinstance(cause, wrong) and not isinstance(error, wrong),
    )


def _last_words(error: BaseException) -> str:
    return error.stderr_tail if isinstance(error, ActorDiedError) else ""


def _end(actor: ActorHandle, group: PlacementGroup | None) -> None:
    api.kill(actor)
    if group is not None:
        api.remove_placement_group(group)


def _put(name: str, value: Any) -> ObjectRef[Any]:
    if isinstance(value, ObjectRef):  # it is in the store already
        return value
    api.ensure_serializable(value, f"with_parameters({name}=...)")
    ref: ObjectRef[Any] = api.put(value)
    return ref
