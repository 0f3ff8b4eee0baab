"""Settings of an experiment: dataclasses that check their values, also on later assignment."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, cast

from trainkit.tune.callbacks.base import (
    CALLBACKS,
    Callback,
    ProgressReporter,
    check_callback,
    create_callback,
)
from trainkit.tune.core.checks import (
    call_problem,
    is_finite,
    is_name,
    is_whole,
    named_settings,
    require,
    require_kind,
    require_mode,
    require_name,
    require_number,
    require_one_of,
    require_whole,
)
from trainkit.tune.core.configs import CheckpointConfig as CheckpointConfig
from trainkit.tune.core.configs import FailureConfig as FailureConfig
from trainkit.tune.core.configs import ResumeConfig as ResumeConfig
from trainkit.tune.core.configs import Settings
from trainkit.tune.core.configs import SyncConfig as SyncConfig
from trainkit.tune.core.constraints import Constraint, constraints_of, texts_of
from trainkit.tune.core.metrics import flatten
from trainkit.tune.core.objectives import Objective, objectives_of
from trainkit.tune.core.setting_names import setting
from trainkit.tune.core.stoppers import DONE, STOPPERS, Stopper, StopRule
from trainkit.tune.core.trial import Trial
from trainkit.tune.schedulers import create_scheduler
from trainkit.tune.schedulers.base import TrialScheduler, check_made
from trainkit.tune.search import create_searcher
from trainkit.tune.search.base import Searcher, called
from trainkit.tune.trial.environment import log_files

Mode = Literal["min", "max"]
DEFAULT_LOGGERS = tuple(name for name in ("json", "csv", "tensorboard") if name in CALLBACKS.own_names())
"""Names of an experiment's loggers by default. "tensorboard" is among them if a plugin adds this logger."""


@named_settings
# users put settings into keys of dictionaries and defaults of dataclasses, which must be hashable
@dataclass(unsafe_hash=True)
class TuneConfig(Settings):
    """Settings of the search: metric, searcher, scheduler, number of trials.

    Args:
        mode: "min" or "max", or a list with one entry for each of several metrics. A metric with mode=None is
            allowed only if neither the searcher, the scheduler nor `get_best_result()` needs a direction.
        metric: name of the reported value to optimise, such as "eval/accuracy", or a list of names.
        search_alg: searcher that suggests configurations, or its name. The default, "auto", learns from
            the results if there is one metric and no grid; otherwise it is grid and random search.
        scheduler: scheduler that stops trials early, or its name. None, the default, is "auto", which learns
            which trials to stop, where `search_alg` is "auto" and learns from the results of 10 or more
            samples; otherwise "fifo", which stops no trial.
        num_samples: number of samples from the space; a grid is repeated this many times. -1: sample until a
            time budget, a stopper or Ctrl-C ends the experiment, or no untried configuration is left.
        max_concurrent_trials: maximum number of trials that run at once; None or 0: as many as the resources
            allow.
        time_budget_s: seconds, or a timedelta, for one call of `fit`. When the budget is spent, a running
            trial stops at its next report. A trial that does not report is interrupted after half of the
            grace time $TRAINKIT_STOP_GRACE_S (default 5 seconds), and killed after the whole grace time.
        reuse_actors: True: a new trial runs in the process of an ended trial, instead of a new process.
            Thousands of short trials then take only a fraction of the time, but a trial sees global state
            that earlier trials left in the process.
        trial_name_creator: function that receives a `Trial` and returns its name.
        trial_dirname_creator: function that receives a `Trial` and returns the name of its folder.
        seed: seed of searcher, scheduler and trials; None: a random seed, stored in the experiment file.
        trial_timeout_s: seconds, or a timedelta, that each attempt of a trial may take once it has its
            resources. A trial that takes longer is killed and counts as failed.
        allow_duplicates: False: a configuration that repeats an earlier configuration is sampled again; if no
            new configuration is found, the experiment ends. With False, `num_samples` still repeats a grid.
        strict_metric_checking: True: if the first report spells the metric differently, the experiment ends
            with an error; a trial that never reports the metric fails. False: a trial may report the metric
            late or never.
        learn_from: earlier experiments of similar problems, from which the search learns where to begin: a
            list of folders, `ResultGrid`s, or DataFrames with a column for each parameter and for the metric.
        priors: values that you believe to be near the best, such as {"lr": 1e-3}; the search begins there.
        constraints: limits of reported values, such as ["latency_ms <= 20", "eval/accuracy >= 0.9"]; a value
            equal to its limit is feasible, and NaN is not. A trial whose last report violates a constraint is
            never the best trial; searchers and schedulers rank it after all feasible trials.
        chdir_to_trial_dir: older form of RunConfig(chdir_to_trial_dir=...), used if the RunConfig sets None.

    Raises:
        ConfigError: a value is out of range.
    """

    mode: Mode | Sequence[Mode] | None = None
    metric: str | Sequence[str] | None = None
    search_alg: Searcher | str | None = None
    scheduler: TrialScheduler | str | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = False
    trial_name_creator: Callable[[Trial], str] | None = None
    trial_dirname_creator: Callable[[Trial], str] | None = None
    seed: int | None = None
    trial_timeout_s: float | timedelta | None = None
    allow_duplicates: bool = False
    strict_metric_checking: bool = True
    learn_from: Any = field(default=None, hash=False)
    priors: Mapping[str, Any] | None = field(default=None, hash=False)
    constraints: Sequence[str] | None = ()
    chdir_to_trial_dir: bool | None = None

    def __post_init__(self) -> None:
        if not self.objectives:
            require_name("metric", self.metric, optional=True)
            require_mode(self.mode)
        require(
            is_whole(self.num_samples) and (self.num_samples >= 1 or self.num_samples == -1),
            f"{setting('num_samples')}={self.num_samples!r}: give 1 or more, or -1 for unlimited trials",
        )
        words = "1 or more, or None for as many as fit"
        require_whole("max_concurrent_trials", self.max_concurrent_trials, 0, words, optional=True)
        for name in ("time_budget_s", "trial_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, timedelta):
                value = value.total_seconds()
                object.__setattr__(self, name, value)
            require_number(name, value, "seconds above 0", above=0, optional=True)
        require_whole("seed", self.seed, 0, optional=True)
        constraints_of(self.constraints)
        object.__setattr__(self, "constraints", texts_of(self.constraints))
        for name in ("reuse_actors", "allow_duplicates", "strict_metric_checking"):
            require_one_of(name, getattr(self, name), (True, False, None))
        # The value may be a NumPy integer, so it is converted to an int.
        for name in ("num_samples", "max_concurrent_trials", "seed"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))
        if isinstance(self.search_alg, str):
            object.__setattr__(self, "search_alg", create_searcher(self.search_alg))
        if isinstance(self.scheduler, str):
            object.__setattr__(self, "scheduler", create_scheduler(self.scheduler))
        require_kind("search_alg", self.search_alg, Searcher, "trainkit.tune.search.BasicVariantGenerator()")
        require_kind("scheduler", self.scheduler, TrialScheduler, "trainkit.tune.schedulers.ASHAScheduler()")
        if self.scheduler is not None:
            check_made(self.scheduler)
        for name in ("trial_name_creator", "trial_dirname_creator"):
            value = getattr(self, name)
            require(value is None or callable(value), f"{name}={value!r}: give a function of a trial")

        if self.learn_from is not None or self.priors:
            # The sources are read now, and their data are stored, because they may change or go.
            searcher = cast("Searcher | None", self.search_alg) or create_searcher("auto")
            searcher = called(copy.deepcopy(searcher))
            searcher.set_constraints(self.limits)
            plain = searcher.learn_from(self.learn_from, self.priors, self.one_metric, self.one_mode)
            object.__setattr__(self, "learn_from", plain)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, if `metric` and `mode` are lists; otherwise an empty tuple."""
        return objectives_of(self.metric, self.mode)

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The constraints."""
        return constraints_of(self.constraints)

    @property
    def one_metric(self) -> str | None:
        """The metric, if it is a single name."""
        return self.metric if isinstance(self.metric, str) else None

    @property
    def one_mode(self) -> str | None:
        """The mode, if it is a single mode."""
        return self.mode if isinstance(self.mode, str) else None


@named_settings
# users put settings into keys of dictionaries and defaults of dataclasses, which must be hashable
@dataclass(unsafe_hash=True)
class RunConfig(Settings):
    """Settings of a run: storage folder, stop rules, checkpoints, loggers and callbacks.

    Args:
        name: name of the experiment's folder; None: the trainable's name, the date and a few letters.
        storage_path: folder for experiments; None: $TRAINKIT_RESULTS_DIR or ~/trainkit_results. With an
            address such as "s3://bucket/experiments", the experiment is kept in the default local folder and
            copied to the address while it runs.
        storage_filesystem: an fsspec file system for `storage_path`, or a `tune.syncer.Syncer`; with a
            Syncer, existing experiments at the address are not detected. None: the file system of
            `storage_path`.
        failure_config: policy for failed trials.
        checkpoint_config: rules for saving and keeping checkpoints.
        sync_config: settings of the copy at the address of `storage_path`.
        verbose: 0 or False: silent; 1 or True: a console table, or short lines without a terminal; 2 and 3:
            more output.
        stop: bounds such as {"training_iteration": 10}; a trial ends when it reaches any of these bounds.
            {"eval": {"loss": 1}} means "eval/loss". `stop` may also be a function (trial_id, result) -> bool,
            a `Stopper` or its name, such as "not_worth_it", or a list of such rules. A report with
            {"done": True} always ends its trial.
        callbacks: callback objects, or names such as "mlflow"; the default loggers and the console are added
            automatically.
        progress_reporter: replacement for the console, such as `tune.CLIReporter()`; verbose=0 silences this
            replacement too.
        log_to_file: True writes the output of trials to `stdout` and `stderr` in their folders; or give one
            file name for both streams, or two names.
        chdir_to_trial_dir: True: run each trial in its own folder; False: in the program's current folder;
            None: in its own folder, unless $TRAINKIT_CHDIR_TO_TRIAL_DIR is 0.
        default_loggers: loggers to add automatically, from "json", "csv" and, if trainkit has the plugin
            `integrations`, "tensorboard"; (): no loggers.

    Raises:
        ConfigError: a value is out of range.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    sync_config: SyncConfig | None = None
    verbose: int = 1
    stop: StopRule | None = None
    callbacks: Sequence[Callback | str] = ()
    progress_reporter: Any = None
    log_to_file: bool | str | tuple[str, str] = False
    chdir_to_trial_dir: bool | None = None
    default_loggers: Sequence[str] = DEFAULT_LOGGERS

    def __post_init__(self) -> None:
        if self.name is not None:
            require(
                is_name(self.name)
                and self.name not in (".", "..")
                and "/" not in self.name
                and "\0" not in self.name
                and len(self.name.encode()) <= 200,
                f"{setting('name')}={self.name!r} cannot name a folder: no '/', at most 200 bytes",
            )
        if self.storage_path is not None:
            require(
                isinstance(self.storage_path, (str, os.PathLike)) and str(self.storage_path) != "",
                f"{setting('storage_path')}={self.storage_path!r}: give a folder or an address (s3://bucket)",
            )
        log_files(self.log_to_file)
        self._check_stop()
        for name, example in (("callbacks", "[tune.Callback()]"), ("default_loggers", "['json']")):
            value = getattr(self, name) or ()
            require(
                isinstance(value, Iterable) and not isinstance(value, str),
                f"{name}={value!r}: give a list, such as {example}",
            )
            object.__setattr__(self, name, tuple(value))
        made = [create_callback(each) if isinstance(each, str) else each for each in self.callbacks]
        for callback in made:
            require_kind("callbacks", callback, Callback, "an object of a class that extends tune.Callback")
            check_callback(callback)
        object.__setattr__(self, "callbacks", tuple(made))
        require(
            set(self.default_loggers) <= set(DEFAULT_LOGGERS),
            f"default_loggers={self.default_loggers!r}: give some of {DEFAULT_LOGGERS}, or () for none",
        )
        for name, kind in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, kind())
        for name, (part, example) in _PARTS.items():
            require_kind(name, getattr(self, name), part, example)
        saving = self.checkpoint_config
        require(
            saving.every_steps is None and saving.every_s is None,
            "RunConfig does not support CheckpointConfig(every_steps=..., every_s=...): report a checkpoint "
            "whenever the function or class should save one. These settings are for "
            "TorchTrainer(training_operator_cls=..., checkpoint_dir=..., checkpoint_config=...)",
        )
        if isinstance(self.verbose, bool):
            object.__setattr__(self, "verbose", int(self.verbose))
        require(
            is_whole(self.verbose) and 0 <= self.verbose <= 3, f"verbose={self.verbose!r}: give 0, 1, 2 or 3"
        )

    def _check_stop(self) -> None:
        given = self.stop if isinstance(self.stop, (list, tuple)) else [self.stop]
        rules = tuple(_flat(rule) for rule in given)
        object.__setattr__(self, "stop", rules if isinstance(self.stop, (list, tuple)) else rules[0])
        for rule in self.stop if isinstance(self.stop, tuple) else [self.stop]:
            _check_stop_rule(rule)


_PARTS: Mapping[str, tuple[type, str]] = {
    "progress_reporter": (ProgressReporter, "trainkit.tune.CLIReporter()"),
    "failure_config": (FailureConfig, "tune.FailureConfig(max_failures=2)"),
    "checkpoint_config": (CheckpointConfig, "tune.CheckpointConfig(num_to_keep=2)"),
    "sync_config": (SyncConfig, "tune.SyncConfig(sync_period=5)"),
}
"""Class that each RunConfig setting for an object requires, with an example for the error message."""


def _flat(rule: Any) -> Any:
    """Return a stop rule whose nested bounds have flat names, as in reports; return other kinds of rules
    unchanged.
    """
    if isinstance(rule, str):
        stopper = STOPPERS.get(rule, "stop")
        problem = call_problem(stopper, 0)
        words = f"{setting('stop')}={rule!r}: {problem}: give the object, such as {stopper.__name__}(...)"
        require(problem is None, words)
        return stopper()
    nested = isinstance(rule, Mapping) and any(isinstance(bound, Mapping) for bound in rule.values())
    return flatten(rule) if nested else rule


def _check_stop_rule(rule: object) -> None:
    if isinstance(rule, Mapping):
        for key, bound in rule.items():
            require(
                is_name(key) and (is_finite(bound) or (key == DONE and bound is True)),
                f"{setting('stop')}={{{key!r}: {bound!r}}}: give the name of a reported value and a "
                "number to reach",
            )
        return
    require(
        rule is None or (callable(rule) and not isinstance(rule, type)),
        f"{setting('stop')}={rule!r}: give a dict, a function (trial_id, result) -> bool, Stopper, or list",
    )
    require(
        isinstance(rule, Stopper) or not hasattr(rule, "stop_all"),
        f"{setting('stop')}={rule!r} has a stop_all(), which needs a class that extends tune.Stopper",
    )
