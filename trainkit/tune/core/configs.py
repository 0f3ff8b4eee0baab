"""Rules for failed trials, checkpoints, copies and restores."""

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
"""'retry_alone', or a function from the configuration to the one to try instead; None gives up."""


class Settings:
    """Base of settings: what is assigned is checked as the constructor checks it, or nothing is changed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __setattr__(self, name: str, value: Any) -> None:
        own = {each.name for each in fields(self)}
        if not own <= vars(self).keys():  # the constructor is at work
            object.__setattr__(self, name, value)
            return
        known = self.__dataclass_fields__
        settings = next(cls for cls in type(self).__mro__ if "__dataclass_fields__" in vars(cls))
        if type(self) is not settings and name not in known:  # an attribute of a user's own class
            object.__setattr__(self, name, value)
            return
        if name not in known:
            raise AttributeError(
                f"{type(self).__name__} has no setting {name!r}.{did_you_mean(name, list(known))}"
            )
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        vars(self).update(vars(settings(**{**given, name: value})))  # its constructor: a user's takes others


@named_settings
@dataclass(unsafe_hash=True)  # settings are keys and defaults of users' own
class FailureConfig(Settings):
    """Policy for trials that fail.

    Args:
        max_failures: how often a trial may fail and go on from its last checkpoint; -1: without end.
        fail_fast: True ends the experiment at the first trial in ERROR; "raise" also raises it from `fit`,
            and does the same with the first exception of a callback in RunConfig(callbacks=...).
        max_failed_trials: so many trials in ERROR end the experiment; None: it goes on whatever fails.
        out_of_memory: what follows where a trial's memory, or its GPU's, was not enough. None: it has failed
            as by anything else. "retry_alone": it is tried once more, when nothing else runs. A function
            takes the configuration and returns the one to try instead, such as with half the batch size, or
            None to give up. Neither counts for `max_failures`.

    Raises:
        ConfigError: a value is out of range, or two contradict each other.
    """

    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False
    max_failed_trials: int | None = None
    out_of_memory: OutOfMemory | None = None

    def __post_init__(self) -> None:
        require_whole("max_failures", self.max_failures, -1, "0 or more, or -1 to retry without end")
        require_one_of("fail_fast", self.fail_fast, (True, False, "raise"))
        require(
            not (self.fail_fast and self.max_failures != 0),
            f"fail_fast={self.fail_fast!r} and max_failures={self.max_failures} contradict each other",
        )
        words = "1 or more, or None for no limit"
        require_whole("max_failed_trials", self.max_failed_trials, 1, words, optional=True)
        require(
            self.out_of_memory in (None, "retry_alone") or callable(self.out_of_memory),
            f"out_of_memory={self.out_of_memory!r}: give 'retry_alone', or a function from a configuration "
            "to the one to try instead",
        )


@named_settings
@dataclass(unsafe_hash=True)  # settings are keys and defaults of users' own
class CheckpointConfig(Settings):
    """Which checkpoints are made and kept.

    Args:
        num_to_keep: per trial; None keeps all. While a trial runs, the latest is kept too, to go on from.
        checkpoint_score_attribute: reported value that ranks checkpoints; None: the latest are best. Until
            one came with it, all are kept.
        checkpoint_score_order: "max" or "min".
        checkpoint_frequency: a `Trainable` class saves after every so many iterations; 0: never.
        checkpoint_at_end: a `Trainable` class also saves when it ends; None: in a `Tuner`, if it can save.

    Raises:
        ConfigError: a value is out of range.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["min", "max"] = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        require_whole("num_to_keep", self.num_to_keep, 1, "1 or more, or None to keep all", optional=True)
        require_name("checkpoint_score_attribute", self.checkpoint_score_attribute, optional=True)
        require_one_of("checkpoint_score_order", self.checkpoint_score_order, ("min", "max"))
        require_one_of("checkpoint_at_end", self.checkpoint_at_end, (True, False, None))
        require_whole("checkpoint_frequency", self.checkpoint_frequency, 0, "a number of iterations, or 0")


class Syncer(ABC):
    """Copier of folders, for `RunConfig(storage_path=..., storage_filesystem=MySyncer())`.

    All methods are called in one thread at a time, `wait` after each of the others. What they raise, or
    False, means that the copy was not made; it is told of once, and made in the next round.

    Args:
        sync_period: kept for classes that read it; `SyncConfig(sync_period=)` says how often it is called.
        sync_timeout: the same.
    """

    def __init__(self, sync_period: float = 300, sync_timeout: float = 1800) -> None:
        self.sync_period = sync_period
        self.sync_timeout = sync_timeout

    @abstractmethod
    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy what is in a local folder to an address, over what is there; False: it can't begin now."""

    @abstractmethod
    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy what is at an address into a local folder; False: it can't begin now."""

    @abstractmethod
    def delete(self, remote_dir: str) -> bool:
        """Delete a folder at an address; False: it can't begin now."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when what was begun last is done, and raise if it failed."""


@named_settings
@dataclass(unsafe_hash=True)  # settings are keys and defaults of users' own
class SyncConfig(Settings):
    """How an experiment is copied to a `storage_path` that is no local folder.

    Args:
        sync_period: seconds that the copy may lag behind while the experiment runs, as far as the uploads
            themselves are faster.
        sync_timeout: seconds that `fit` waits at its end for the copy to be complete.
        sync_artifacts: files that trials write into their folders are copied too; False: only the store,
            the checkpoints and what loggers and the console keep.
        sync_artifacts_on_checkpoint: accepted, as they are copied with everything else.

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
    """Treatment of a trial by a restore."""

    RESUME = "resume"
    RESTART = "restart"
    SKIP = "skip"


@named_settings
@dataclass(unsafe_hash=True)  # settings are keys and defaults of users' own
class ResumeConfig(Settings):
    """Policy of a restore for the trials that it finds.

    RESUME goes on from the last checkpoint, RESTART starts at the beginning, SKIP leaves a trial as it is;
    one that had not ended is then ended.

    Args:
        finished: trials that have ended without failing.
        unfinished: trials that were running, or waited.
        errored: trials that failed.

    Raises:
        ConfigError: a value is no ResumeConfig.ResumeType.
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
