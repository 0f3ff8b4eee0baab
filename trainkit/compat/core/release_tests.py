"""Callbacks of the tests by which Ray Tune tries a release on a cluster."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import MissingDependencyError
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.core.trial import Trial


class ProgressCallback(Callback):
    """Writer of how many trials are in each state, once a minute, to the file TEST_OUTPUT_JSON."""

    update_interval = 60.0

    def __init__(self) -> None:
        self.last_update = 0.0

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """Write, if it is time."""
        now = SYSTEM.now()
        if now - self.last_update > self.update_interval:
            states = Counter(trial.status.value for trial in trials)
            told = {"last_update": now, "iteration": iteration, "trial_states": dict(states)}
            Path(os.environ.get("TEST_OUTPUT_JSON", "/tmp/release_test.json")).write_text(json.dumps(told))
            self.last_update = now


class FailureInjectorCallback(Callback):
    """Callback that now and then kills a node of a cluster that Ray's launcher started, and none elsewhere.

    Args:
        config_path: the launcher's file on the cluster's first node.
        probability: of a node's end at each check, and of that the machine ends, too.
        time_between_checks: seconds.
        disable: check, and kill none.
    """

    def __init__(
        self,
        config_path: str = "~/ray_bootstrap_config.yaml",
        probability: float = 0.1,
        time_between_checks: float = 0,
        disable: bool = False,
    ) -> None:
        self.config_path = Path(config_path).expanduser()
        self.probability = probability
        self.time_between_checks = time_between_checks
        self.disable = disable
        self.last_fail_check = SYSTEM.monotonic()

    def on_step_begin(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """Kill a node, if it is time and chance has it.

        Raises:
            MissingDependencyError: there is such a cluster, and no Ray here to kill its nodes.
        """
        now = SYSTEM.monotonic()
        if not self.config_path.exists() or now < self.last_fail_check + self.time_between_checks:
            return
        self.last_fail_check = now
        if self.disable or random.random() >= self.probability:
            return
        try:
            from ray.autoscaler._private.commands import kill_node
        except ImportError as error:
            raise MissingDependencyError.of(
                "killing a node of Ray's launcher needs Ray", "ray", error
            ) from error
        hard = random.random() < self.probability
        kill_node(str(self.config_path), yes=True, hard=hard, override_cluster_name=None)
