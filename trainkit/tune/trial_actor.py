"""The actor that a trial is: a process of its own, advanced one report at a time."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Mapping
from typing import Any

from trainkit.runtime.api import get
from trainkit.tune.protocol import Place, Progress, TrialSpec
from trainkit.tune.runners import Runner, make_runner


class TrialActor:
    """See the module. `setup` comes first, then `advance` until it is done, or `stop`."""

    _runner: Runner

    def setup(self, spec: TrialSpec, trainable: Any, parameters: Mapping[str, Any]) -> Place:
        """Take the trial in; a class is constructed and restored here.

        Args:
            spec: the trial.
            trainable: the user's function or class.
            parameters: references to what `with_parameters` bound, by name.
        """
        if spec.seed is not None and os.getpid() != spec.driver_pid:
            seed_generators(spec.seed)
        values = dict(zip(parameters, get(list(parameters.values())), strict=True)) if parameters else {}
        self._runner = make_runner(spec, trainable, values)
        # No name is looked up: a resolver that hangs would hang every trial.
        return Place(os.getpid(), socket.gethostname(), "127.0.0.1")

    def advance(self) -> Progress:
        """Run to the next report."""
        return self._runner.advance()

    def stop(self, save: bool) -> Progress:
        """End the trial where it waits."""
        return self._runner.stop(save)

    def leave(self, driver_pid: int) -> None:
        """End the process as a program ends, exit handlers included; nothing where trials have none."""
        if os.getpid() != driver_pid:
            raise SystemExit(0)


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, and of NumPy and torch where the trainable has loaded them."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
