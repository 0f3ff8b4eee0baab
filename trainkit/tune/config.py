"""Settings of an experiment: frozen dataclasses that check themselves. Names and defaults are Ray Tune's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, cast

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.checks import is_finite, is_name, is_whole, require, require_kind, require_mode
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.search.base import Searcher

Mode = Literal["min", "max"]
StopRule = Mapping[str, float] | Callable[[str, dict[str, Any]], bool]
"""{"accuracy": 0.99, "training_iteration": 50}: any reached ends a trial; or (trial_id, result) -> bool."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """What is searched for, and how.

    Args:
        metric: name of the reported value to optimise, such as "eval/accuracy".
        mode: "min" or "max".
        search_alg: what suggests configurations; grid and random by default.
        scheduler: what stops trials early; none by default.
        num_samples: draws from the space; a grid is repeated this often; -1: until the time budget ends.
        max_concurrent_trials: trials at once; None or 0: as many as the resources allow.
        time_budget_s: seconds, or a timedelta, for one call of `fit`; trials that then run are stopped at
            their next report, and killed where that takes more than $TRAINKIT_STOP_GRACE_S, which is 5.
        seed: of searcher, scheduler and trials; None draws one, which the experiment file keeps.

    Raises:
        ConfigError: a value is out of range.
    """

    metric: str | None = None
    mode: Mode | None = None
    search_alg: Searcher | None = None
    scheduler: TrialScheduler | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        require(
            self.metric is None or is_name(self.metric),
            f"metric={self.metric!r}: give the name of a reported value",
        )
        require_mode(self.mode)
        require(
            self.metric is None or self.mode is not None,
            f"metric={self.metric!r} needs mode='min' or mode='max'",
        )
        require(
            is_whole(self.num_samples) and (self.num_samples >= 1 or self.num_samples == -1),
            f"num_samples={self.num_samples!r}: give 1 or more, or -1 to go on until time_budget_s",
        )
        limit = self.max_concurrent_trials
        require(
            limit is None or (is_whole(limit) and limit >= 0),
            f"max_concurrent_trials={limit!r}: give 1 or more, or None for as many as fit",
        )
        if isinstance(self.time_budget_s, timedelta):
            object.__setattr__(self, "time_budget_s", self.time_budget_s.total_seconds())
        budget = cast("float | None", self.time_budget_s)
        require(
            budget is None or (is_finite(budget) and budget > 0),
            f"time_budget_s={budget!r}: give seconds above 0",
        )
        require(
            self.num_samples != -1 or budget is not None,
            "num_samples=-1 never ends by itself: set time_budget_s too",
        )
        require(
            self.seed is None or (is_whole(self.seed) and self.seed >= 0),
            f"seed={self.seed!r}: give a whole number of 0 or more",
        )
        for name in ("num_samples", "max_concurrent_trials", "seed"):  # NumPy's integers as Python's
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))
        require_kind("search_alg", self.search_alg, Searcher, "trainkit.tune.search.BasicVariantGenerator()")
        require_kind("scheduler", self.scheduler, TrialScheduler, "trainkit.tune.schedulers.ASHAScheduler()")


@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """What happens when a trial fails.

    Args:
        max_failures: how often a trial may fail and go on from its last checkpoint; -1: without end.
        fail_fast: True ends the experiment at the first trial in ERROR; "raise" also raises it from `fit`.
    """

    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False

    def __post_init__(self) -> None:
        require(
            is_whole(self.max_failures) and self.max_failures >= -1,
            f"max_failures={self.max_failures!r}: give 0 or more, or -1 to retry without end",
        )
        require(
            self.fail_fast in (True, False, "raise"),
            f"fail_fast={self.fail_fast!r} is none of True, False, 'raise'",
        )
        require(
            not (self.fail_fast and self.max_failures != 0),
            f"fail_fast={self.fail_fast!r} and max_failures={self.max_failures} contradict each other",
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints are made and kept.

    Args:
        num_to_keep: per trial; None keeps all. While a trial runs, the latest is kept too, to go on from.
        checkpoint_score_attribute: reported value that ranks checkpoints; None: the latest are best.
        checkpoint_score_order: "max" or "min".
        checkpoint_frequency: a `Trainable` class saves after every so many iterations; 0: never.
        checkpoint_at_end: a `Trainable` class also saves when it ends.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Mode = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        keep = self.num_to_keep
        require(
            keep is None or (is_whole(keep) and keep >= 1),
            f"num_to_keep={keep!r}: give 1 or more, or None to keep all",
        )
        require_mode(self.checkpoint_score_order, "checkpoint_score_order")
        require(
            is_whole(self.checkpoint_frequency) and self.checkpoint_frequency >= 0,
            f"checkpoint_frequency={self.checkpoint_frequency!r}: give a number of iterations, or 0",
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where an experiment is kept, when its trials end, and who is told.

    Args:
        name: of the experiment's folder; None: the trainable's name, the date and a few letters.
        storage_path: folder that holds experiments; None: $TRAINKIT_RESULTS_DIR or ~/trainkit_results.
        stop: {"training_iteration": 10}: any value reached ends the trial; or (trial_id, result) -> bool.
        callbacks: told of every step; JSON and CSV files and the console table come by themselves.
        failure_config: what happens when a trial fails.
        checkpoint_config: which checkpoints are made and kept.
        verbose: 0: silent; 1: the console table, or short lines where there is no terminal.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    stop: StopRule | None = None
    callbacks: Sequence[Callback] = ()
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    verbose: int = 1

    def __post_init__(self) -> None:
        if self.name is not None:
            require(
                is_name(self.name)
                and self.name not in (".", "..")
                and "/" not in self.name
                and "\0" not in self.name
                and len(self.name.encode()) <= 200,
                f"name={self.name!r} cannot name a folder: no '/', at most 200 bytes",
            )
        if self.storage_path is not None:
            require(
                _is_local(self.storage_path),
                f"storage_path={self.storage_path!r}: give a local folder",
            )
        self._check_stop()
        object.__setattr__(self, "callbacks", tuple(self.callbacks or ()))
        for name, kind in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, kind())
        for callback in self.callbacks:
            require_kind("callbacks", callback, Callback, "an object of a class that extends tune.Callback")
        require_kind(
            "failure_config", self.failure_config, FailureConfig, "tune.FailureConfig(max_failures=2)"
        )
        require_kind(
            "checkpoint_config",
            self.checkpoint_config,
            CheckpointConfig,
            "tune.CheckpointConfig(num_to_keep=2)",
        )
        require(
            is_whole(self.verbose) and 0 <= self.verbose <= 3, f"verbose={self.verbose!r}: give 0, 1, 2 or 3"
        )

    def _check_stop(self) -> None:
        if isinstance(self.stop, Mapping):
            for key, bound in self.stop.items():
                require(
                    is_name(key) and is_finite(bound),
                    f"stop={{{key!r}: {bound!r}}}: give the name of a reported value and a number to reach",
                )
        else:
            require(
                self.stop is None or callable(self.stop),
                f"stop={self.stop!r}: give a dictionary, or a function (trial_id, result) -> bool",
            )


def _is_local(path: object) -> bool:
    return isinstance(path, (str, os.PathLike)) and str(path) != "" and "://" not in str(path)
