"""Trials whose steps may run in different processes, and of which each step passes one value to the next
step.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.runtime import api
from trainkit.runtime.refs import ObjectRef
from trainkit.tune.trial.messages import Reply, TrialSpec, reply
from trainkit.tune.trial.trainable import Trainable


class SerializedTrainable(Trainable):
    """Base class for trainables whose steps need only one pickled value from the previous step.

    Each step creates its own object, in any process. `setup` runs before every step. When `setup` runs,
    `state` is already set, except before a trial's first step. If a step runs as several parallel tasks, the
    class method `joined` combines their reports. `joined` returns the metrics, and the state after the step
    (None if the trial is done).
    """

    @property
    def state(self) -> Any:
        """Value with which the next step begins; must not be None."""
        raise NotImplementedError(f"{type(self).__name__} must define state, which its next step begins with")

    @state.setter
    def state(self, state: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define how its state is set")


@dataclass(frozen=True)
class SharedArguments:
    """Arguments that all steps of an experiment share.

    Attributes:
        trainable: reference to a `SerializedTrainable` class.
        parameters: references to the values bound by `with_parameters`, by name.
    """

    trainable: ObjectRef[type[SerializedTrainable]]
    parameters: Mapping[str, ObjectRef[Any]]

    def values(self) -> tuple[type[SerializedTrainable], dict[str, Any]]:
        """Return the shared arguments; the first call in a process fetches them."""
        if not _fetched:
            trainable, *values = api.get([self.trainable, *self.parameters.values()])
            _fetched.append((trainable, dict(zip(self.parameters, values, strict=True))))
        return _fetched[0]


_fetched: list[tuple[type[SerializedTrainable], dict[str, Any]]] = []
"""Shared arguments that this process has already fetched."""


def run_step(shared: SharedArguments, spec: TrialSpec, state: Any) -> tuple[Reply, Any]:
    """Run the next step of a trial; `shared` refers to the first two arguments of `step_of`."""
    return step_of(*shared.values(), spec, state)


def step_of(
    trainable: type[SerializedTrainable], parameters: Mapping[str, Any], spec: TrialSpec, state: Any
) -> tuple[Reply, Any]:
    """Run the next step of a trial.

    Args:
        trainable: class shared by all steps.
        parameters: parameters shared by all steps.
        spec: specification of the trial, with the iteration and times up to this step.
        state: state after the previous step; None: this is the first step.

    Returns:
        The report of the step, and the state after the step (None if the trial is done).
    """
    with spec.environment.entered(spec.trial_dir, own_process=os.getpid() != spec.driver_pid):
        trial = trainable._of_trial(spec, parameters)
        if state is not None:
            trial.state = state
        metrics = trial.train()
    done = bool(metrics.pop("done", False))
    where = {"pid": os.getpid(), "hostname": socket.gethostname()}
    return reply(trial.iteration, metrics | where, None, done), None if done else trial.state
