"""The two ways a trial runs in a process: an actor, or a task per step."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.runtime import api, session
from trainkit.runtime.api import get
from trainkit.runtime.specs import ObjectRef
from trainkit.tune.core.registry import take_environments
from trainkit.tune.trial.messages import Reply, TrialSpec, WorkerProcess, reply
from trainkit.tune.trial.runners import Runner, make_runner
from trainkit.tune.trial.trainable import Trainable


class TrialActor:
    """Actor of a trial. `setup` comes first, then `advance` until it is done, or `stop`.

    Then `leave`; or, where it serves several trials, `begin` with the next one, and so on.

    Args:
        serves_many: what a class of the user's holds may be taken over by the next trial.
    """

    _runner: Runner | None = None

    def __init__(self, serves_many: bool = False) -> None:
        self._serves_many = serves_many

    def wait_here(self) -> None:
        """Return as soon as there is a process: what came before was waiting for resources."""

    def setup(self, spec: TrialSpec, trainable: Any, parameters: Mapping[str, Any]) -> WorkerProcess:
        """Take the first trial in; a class is constructed and restored here.

        Args:
            spec: the trial.
            trainable: the user's function or class.
            parameters: references to what `with_parameters` bound, by name.
        """
        self._trainable = trainable
        self._values = (
            dict(zip(parameters, get(list(parameters.values())), strict=True)) if parameters else {}
        )
        return self.begin(spec)

    def begin(self, spec: TrialSpec) -> WorkerProcess:
        """Take a trial in, with the trainable that is here; its folder may be made here too.

        Raises:
            OSError: there can be no such folder.
        """
        if spec.makes_dir:
            os.makedirs(spec.trial_dir, exist_ok=True)
        if spec.seed is not None and os.getpid() != spec.driver_pid:
            seed_generators(spec.seed)
        before, self._runner = self._runner, None
        if before is not None and before.take_over(spec):
            self._runner = before
        else:
            del before  # what the user's object holds is free before the next one is made
            self._runner = make_runner(spec, self._trainable, self._values, keep=self._serves_many)
        # No name is looked up: a resolver that hangs would hang every trial.
        return WorkerProcess(os.getpid(), socket.gethostname(), "127.0.0.1")

    def advance(self) -> Reply:
        """Run to the next report."""
        return self._present().advance()

    def save(self) -> Reply:
        """Save a checkpoint where the trial waits, if it can."""
        return self._present().save()

    def stop(self, save: bool) -> Reply:
        """End the trial where it waits."""
        return self._present().stop(save)

    def leave(self, driver_pid: int) -> None:
        """End the process as a program ends, exit handlers included; nothing where trials have none."""
        runner, self._runner = self._runner, None
        if runner is not None and (problem := runner.close()):
            sys.stderr.write(problem)  # its trial has long ended: nothing else could tell it
        if os.getpid() != driver_pid:
            raise SystemExit(0)

    def _present(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("this process has no trial")
        return self._runner


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, and of NumPy and torch where the trainable has loaded them."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


session.register("trainkit.tune.trial.actor")


class SerializedTrainable(Trainable):
    """Extend this where a step needs of the one before only a value, which is pickled.

    Each step has an object of its own, in whichever process: `setup` is called before each, then `state` is
    set, unless it is the trial's first.
    """

    @property
    def state(self) -> Any:
        """All that the next step needs; not None."""
        raise NotImplementedError(f"{type(self).__name__} must define state, which its next step begins with")

    @state.setter
    def state(self, state: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define how its state is set")


@dataclass(frozen=True)
class SharedArguments:
    """Arguments that all steps of an experiment share.

    Attributes:
        trainable: a `SerializedTrainable`.
        parameters: what `with_parameters` bound, by name.
    """

    trainable: ObjectRef[type[SerializedTrainable]]
    parameters: Mapping[str, ObjectRef[Any]]

    def values(self) -> tuple[type[SerializedTrainable], dict[str, Any]]:
        """Return the shared arguments, fetched at the first call in a process."""
        if not _fetched:
            trainable, *values = api.get([self.trainable, *self.parameters.values()])
            _fetched.append((trainable, dict(zip(self.parameters, values, strict=True))))
        return _fetched[0]


_fetched: list[tuple[type[SerializedTrainable], dict[str, Any]]] = []
"""What this process was given."""


def run_step(shared: SharedArguments, spec: TrialSpec, state: Any) -> tuple[Reply, Any]:
    """Run the next step of a trial here.

    Args:
        shared: with the other steps.
        spec: the trial; its iteration and times are those up to this step.
        state: after the step before; None: this is the first.

    Returns:
        What it reports, and its state.
    """
    trainable, values = shared.values()
    take_environments(spec.environments)
    with spec.house.entered(spec.trial_dir, own_process=os.getpid() != spec.driver_pid):
        trial = trainable(spec.config, trial=spec, parameters=values)
        if state is not None:
            trial.state = state
        metrics = trial.train()
    done = bool(metrics.pop("done", False))
    where = {"pid": os.getpid(), "hostname": socket.gethostname()}
    return reply(trial.iteration, metrics | where, None, done), None if done else trial.state
