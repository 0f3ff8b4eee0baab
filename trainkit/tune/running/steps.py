"""A trial's steps as tasks: what goes into a process for one, and what comes out of it.

    Step ──▶ (any process) ──▶ (report, state) ──▶ the next Step

Between two steps a trial is nothing but its state, so each of them runs wherever there is room. The processes
serve one experiment, so that they are told once what all its steps are given.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.runtime import api, preload
from trainkit.runtime.specs import ObjectRef
from trainkit.tune.registry import take_environments
from trainkit.tune.running.protocol import PlainProgress, Progress, TrialSpec
from trainkit.tune.trainable import Trainable

preload.register("trainkit.tune.running.steps")


class PortableTrainable(Trainable):
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
class Shared:
    """What all steps of an experiment are given.

    Attributes:
        trainable: a `PortableTrainable`.
        parameters: what `with_parameters` bound, by name.
    """

    trainable: ObjectRef[type[PortableTrainable]]
    parameters: Mapping[str, ObjectRef[Any]]

    def values(self) -> tuple[type[PortableTrainable], dict[str, Any]]:
        """The same, fetched at the first call in a process."""
        if not _fetched:
            trainable, *values = api.get([self.trainable, *self.parameters.values()])
            _fetched.append((trainable, dict(zip(self.parameters, values, strict=True))))
        return _fetched[0]


_fetched: list[tuple[type[PortableTrainable], dict[str, Any]]] = []
"""What this process was given."""


def run_step(shared: Shared, spec: TrialSpec, state: Any) -> tuple[PlainProgress, Any]:
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
    return Progress(trial.iteration, metrics | where, None, done).plain, None if done else trial.state
