"""Policies for failed trials, checkpoints, copies and restores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal

from trainkit.errors import did_you_mean
from trainkit.tune.core.checks import (
    named_settings,
    require,
    require_name,
    require_number,
    require_one_of,
    require_whole,
)

OutOfMemory = Literal["retry_alone"] | Callable[[dict[str, Any]], dict[str, Any] | None]
"""Value of `FailureConfig(out_of_memory=...)`: 'retry_alone', or a function that returns a replacement."""


class Settings:
    """Base class of settings. Assigned values are checked; an invalid value changes nothing."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __setattr__(self, name: str, value: Any) -> None:
        own = {each.name for each in fields(self)}
        # while the constructor runs, nothing is checked; it checks all values at its end
        if not own <= vars(self).keys():
            object.__setattr__(self, name, value)
            return
        known = self.__dataclass_fields__
        settings = next(cls for cls in type(self).__mro__ if "__dataclass_fields__" in vars(cls))
        # A subclass of a user may have attributes that are not settings. Assignments to these attributes are
        # not checked.
        if type(self) is not settings and name not in known:
            object.__setattr__(self, name, value)
            return
        if name not in known:
            raise AttributeError(f"{type(self).__name__} has no setting {name!r}.{did_you_mean(name, known)}")
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        # An object of the base class is constructed, because the constructor of a user's subclass may have
        # different parameters.
        vars(self).update(vars(settings(**{**given, name: value})))


@named_settings
# users put settings into keys of dictionaries and defaults of dataclasses, which must be hashable
@dataclass(unsafe_hash=True)
class FailureConfig(Settings):
    """Policy for trials that fail.

    Args:
        max_failures: maximum number of retries of a failed trial, from its last checkpoint; -1: no limit.
        fail_fast: True: the first trial in ERROR ends the experiment. "raise": `fit` also raises the error of
            this trial. With "raise", the first exception of a callback in RunConfig(callbacks=...) also ends
            the experiment, and `fit` raises it.
        max_failed_trials: number of trials in ERROR at which the experiment ends; None: no limit.
        out_of_memory: policy for a trial that runs out of memory on the CPU or the GPU. None: the same policy
            as for other failures. "retry_alone": one retry while no other trial runs. A function receives the
            configuration and returns a replacement, for example with half the batch size, or None to give up.
            Retries by this policy do not count towards `max_failures`.

    Raises:
        ConfigError: a value is out of range, or two values contradict each other.
    """

    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False
    max_failed_trials: int | None = None
    out_of_memory: OutOfMemory | None = None

    def __post_init__(self) -> None:
        require_whole("max_failures", self.max_failures, -1, "0 or more, or -1 for unlimited retries")
        require_one_of("fail_fast", self.fail_fast, (True, False, "raise"))
        require(
            not (self.fail_fast and self.max_failures != 0),
            f"fail_fast={self.fail_fast!r} and max_failures={self.max_failures} contradict each other",
        )
        words = "1 or more, or None for no limit"
        require_whole("max_failed_trials", self.max_failed_trials, 1, words, optional=True)
        require(
            self.out_of_memory in (None, "retry_alone") or callable(self.out_of_memory),
            f"out_of_memory={self.out_of_memory!r}: give 'retry_alone' or a function (config) -> next config",
        )


@named_settings
# users put settings into keys of dictionaries and defaults of dataclasses, which must be hashable
@dataclass(unsafe_hash=True)
class CheckpointConfig(Settings):
    """Rules for saving and keeping checkpoints.

    Args:
        num_to_keep: number of checkpoints to keep per trial; None: all. A running trial also keeps its latest
            checkpoint, to resume from.
        checkpoint_score_attribute: reported value that ranks checkpoints; None: later checkpoints are better.
            Until a trial reports a checkpoint with this value, all checkpoints of the trial are kept.
        checkpoint_score_order: "max" or "min".
        checkpoint_frequency: iterations between two saves of a `Trainable` class; 0: never save.
        checkpoint_at_end: True: a `Trainable` class also saves a checkpoint at its end; None: in a `Tuner`,
            True for classes that can save.
        every_steps: training steps between two saves within an epoch, for `TorchTrainer(checkpoint_dir=...)`.
        every_s: seconds between two saves within an epoch, for `TorchTrainer(checkpoint_dir=...)`.

    Raises:
        ConfigError: a value is out of range.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["min", "max"] = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None
    every_steps: int | None = None
    every_s: float | None = None

    def __post_init__(self) -> None:
        require_whole("num_to_keep", self.num_to_keep, 1, "1 or more, or None to keep all", optional=True)
        require_name("checkpoint_score_attribute", self.checkpoint_score_attribute, optional=True)
        require_one_of("checkpoint_score_order", self.checkpoint_score_order, ("min", "max"))
        require_one_of("checkpoint_at_end", self.checkpoint_at_end, (True, False, None))
        require_whole("checkpoint_frequency", self.checkpoint_frequency, 0, "a number of iterations, or 0")
        require_whole("every_steps", self.every_steps, 1, "a number of steps, or None", optional=True)
        require_number("every_s", self.every_s, "seconds above 0, or None", above=0, optional=True)


class Syncer(ABC):
    """Copier of folders, for `RunConfig(storage_path=..., storage_filesystem=MySyncer())`.

    Calls never overlap. After each call of another method, `wait` is called. If a method raises an exception
    or returns False, its operation counts as failed. The failure is reported once, and the operation is
    retried in the next round.

    Args:
        sync_period: stored for subclasses that read it; `SyncConfig(sync_period=)` sets the interval of the
            calls.
        sync_timeout: stored for subclasses that read it.
    """

    def __init__(self, sync_period: float = 300, sync_timeout: float = 1800) -> None:
        self.sync_period = sync_period
        self.sync_timeout = sync_timeout

    @abstractmethod
    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy a local folder to an address and replace existing files; return False if the operation can't
        begin now.
        """

    @abstractmethod
    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy from an address into a local folder; return False if the operation can't begin now."""

    @abstractmethod
    def delete(self, remote_dir: str) -> bool:
        """Delete a folder at an address; return False if the operation can't begin now."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when the last started operation is done; raise an exception if the operation failed."""


@named_settings
# users put settings into keys of dictionaries and defaults of dataclasses, which must be hashable
@dataclass(unsafe_hash=True)
class SyncConfig(Settings):
    """Settings for copying an experiment to a `storage_path` that is not a local folder.

    Args:
        sync_period: maximum seconds by which the copy lags behind a running experiment, unless uploads take
            longer.
        sync_timeout: seconds that `fit` waits at its end for a complete copy.
        sync_artifacts: True: also copy files that trials write into their folders; False: copy only the
            store, the checkpoints and the files of loggers and console.
        sync_artifacts_on_checkpoint: accepted without effect, as artifacts are copied with everything else.

    Raises:
        ConfigError: a value is out of range.
    """

    sync_period: float = 5
    sync_timeout: float = 1800
    sync_artifacts: bool = True
    sync_artifacts_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        for name in ("sync_period", "sync_timeout"):
            require_number(name, getattr(self, name), "seconds above 0", above=0)


class Resume(StrEnum):
    """Decision of a restore about a trial: resume, restart or skip."""

    RESUME = "resume"
    RESTART = "restart"
    SKIP = "skip"


@named_settings
# users put settings into keys of dictionaries and defaults of dataclasses, which must be hashable
@dataclass(unsafe_hash=True)
class ResumeConfig(Settings):
    """Policy that decides for each trial of a restored experiment if the trial runs again.

    RESUME continues from the last checkpoint, and RESTART starts from the beginning. SKIP does not run the
    trial again: an ended trial stays unchanged, and an unfinished trial ends.

    Args:
        finished: trials that ended without failing.
        unfinished: trials that were running or waiting.
        errored: trials that failed.

    Raises:
        ConfigError: a value is not a ResumeConfig.ResumeType.
    """

    ResumeType: ClassVar[type[Resume]] = Resume

    finished: Resume = Resume.SKIP
    unfinished: Resume = Resume.RESUME
    errored: Resume = Resume.SKIP

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            value = getattr(self, name)
            require(
                isinstance(value, Resume),
                f"{name}={value!r}: give ResumeConfig.ResumeType.RESUME, RESTART or SKIP",
            )
