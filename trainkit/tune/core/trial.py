"""Trial: configuration, status, attempts and checkpoints."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

from trainkit import runtime
from trainkit.errors import TuneArgumentError, message_of
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.resources import DEFAULT_REQUEST, PlacementGroupFactory


class TrialStatus(StrEnum):
    """Status of a trial. PENDING also covers interrupted trials that will be resumed."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    @property
    def is_finished(self) -> bool:
        """True if the trial has ended, successfully or not."""
        return self in _FINISHED


# A tuple is faster than a set, which would need the hash of the status, because an enumeration computes its
# hash again each time.
_FINISHED = (TrialStatus.TERMINATED, TrialStatus.ERROR)

STATES = ("interrupted", "pending", "running", "paused", "finished", "stopped", "failed")
"""States of a trial in words for users, in the order of a trial's life; `state_of` selects a state."""


_NUMBER = r"-?(?:[\d.]+(?:e[+-]\d+)?|inf)"
_FINISHED_BY = re.compile(
    r"$|finished\b|reported done\b|(?:stopped by [^:]+: )?reached max_t="
    rf"|(?!stopped by ).*={_NUMBER} reached {_NUMBER}(?:;|$)",
    re.DOTALL,
)
"""Pattern of the reasons of finished trials. The text after "stopped by" comes from a person or a stopper."""


def state_of(status: str, reason: str) -> str:
    """Return the state of a trial in words; unlike the status, the state shows if a trial was stopped early.

    Args:
        status: status of the trial.
        reason: reason for the status. A trial that ended by itself, or reached `max_t` or a stop rule, is
            "finished", not "stopped".
    """
    match status:
        case TrialStatus.ERROR:
            return "failed"
        case TrialStatus.TERMINATED:
            return "finished" if _FINISHED_BY.match(reason) else "stopped"
        case TrialStatus.PENDING if reason.startswith("interrupted"):
            return "interrupted"
    return status.lower()


@dataclass(frozen=True)
class SavedCheckpoint:
    """Committed checkpoint.

    Attributes:
        number: number of the checkpoint in the trial over all attempts, from 0.
        dirname: name of the checkpoint's folder in the trial's folder.
        iteration: iteration of the report with the checkpoint.
        score: value that ranks the checkpoints, larger is better; or None.
        time_total_s, timesteps_total: totals in the report with the checkpoint, from which the totals of a
            resumed trial continue.
    """

    number: int
    dirname: str
    iteration: int
    score: float | None = None
    time_total_s: float = 0.0
    timesteps_total: float | None = None

    @classmethod
    def after(
        cls, number: int, dirname: str, iteration: int, score: float | None, result: Mapping[str, Any]
    ) -> Self:
        """Return the checkpoint of the report `result`; totals that are not numbers are left out."""
        spent_s, timesteps = result.get("time_total_s"), result.get("timesteps_total")
        return cls(
            number,
            dirname,
            iteration,
            score,
            float(spent_s) if is_number(spent_s) and spent_s is not None else 0.0,
            timesteps if is_number(timesteps) else None,
        )


@dataclass(frozen=True)
class Failure:
    """Failure of an attempt, as strings that can be stored, without the exception object.

    Attributes:
        kind: name of the exception's class.
        message: text of the exception.
        traceback: text of the traceback in the process that raised the exception.
        retry: False if a retry would fail in the same way.
        out_of_memory: True if the memory of the process, the machine or a GPU was not enough.
    """

    kind: str
    message: str
    traceback: str = ""
    retry: bool = True
    out_of_memory: bool = False

    @property
    def where(self) -> str:
        """The last frame of the user's code, such as 'train.py:12 in f'; '' if unknown."""
        return runtime.last_user_frame(self.traceback)

    @classmethod
    def raised(cls, error: Exception, message: str = "") -> Failure:
        """Return the failure of an error, without retries; `message` replaces the error's text."""
        text = runtime.formatted(error)
        return cls(type(error).__name__, message or message_of(error), text, retry=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a trial: its first run, a retry after a failure, or a resumption by a restore.

    Attributes:
        number: number of the attempt, from 0.
        config: hyperparameters of the attempt, with changes made for a retry.
        started: start time in seconds since 1970.
        iteration: iteration from which the attempt resumed; 0: the attempt began at the start.
        reports: number of reports in the attempt.
        outcome: reason for the end of the attempt, such as "retry 1 of 2 after OutOfMemoryError"; or the
            trial's next status, such as "resumed" if the whole experiment was killed; '' while the attempt
            runs.
        pid, hostname: id and host of the attempt's process.
    """

    number: int
    config: dict[str, Any]
    started: float
    iteration: int
    reports: int
    outcome: str
    pid: int
    hostname: str


@dataclass(slots=True)
class Trial:
    """Trial of an experiment, for the controller and callbacks; callbacks may read a trial but not change it.

    Attributes:
        trial_id: unique id in the experiment, such as "5f3a_00007".
        index: number of the trial in the order of suggestion, from 0.
        config: hyperparameters.
        name: name such as "train_mnist_5f3a_00007".
        dirname: name of the trial's folder in the experiment's folder.
        tag: readable text with the index and the varying hyperparameters.
        request: resource request.
        status: status of the trial.
        reason: reason for the status, such as "stopped by ASHA at rung 4".
        attempt: number of the attempt, from 0; each retry and each resumption adds 1.
        failures: number of failed attempts, except attempts whose failure FailureConfig(out_of_memory=)
            handled.
        iteration: iteration of the last report.
        last_result: last report, with the automatic keys.
        checkpoints: committed checkpoints that are not deleted, oldest first.
        failure: failure of the last attempt, if the status is ERROR.
        granted: resources that the scheduler chose for the trial; None: the trial's own request applies.
        tried: earlier configurations, beginning with the suggested configuration; each was replaced after
            running out of memory or by an exploit of another trial.
        alone: True if the trial runs only while no other trial runs.
        offered: iteration of the trial's state that each receiver is to take over, by the receiver's id.
        trainable_name: name of the function or class, for users' code that builds trial names.
        evaluated_params: hyperparameters that differ between trials, by flattened name; {} for trials read
            from a file.
        experiment_path: path of the experiment's folder; '' if the experiment has no folder or the trial was
            read from a file.
    """

    PENDING: ClassVar = TrialStatus.PENDING
    RUNNING: ClassVar = TrialStatus.RUNNING
    PAUSED: ClassVar = TrialStatus.PAUSED
    TERMINATED: ClassVar = TrialStatus.TERMINATED
    ERROR: ClassVar = TrialStatus.ERROR

    trial_id: str
    index: int
    config: dict[str, Any]
    name: str
    dirname: str
    tag: str = ""
    request: PlacementGroupFactory = DEFAULT_REQUEST
    granted: PlacementGroupFactory | None = None
    status: TrialStatus = TrialStatus.PENDING
    reason: str = ""
    attempt: int = 0
    failures: int = 0
    iteration: int = 0
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    failure: Failure | None = None
    next_checkpoint: int = 0
    tried: list[dict[str, Any]] = field(default_factory=list)
    alone: bool = False
    offered: dict[str, int] = field(default_factory=dict)
    trainable_name: str = ""
    evaluated_params: dict[str, Any] = field(default_factory=dict)
    experiment_path: str = ""

    def __hash__(self) -> int:
        return hash(self.trial_id)  # callbacks need trials as keys of dictionaries

    def __str__(self) -> str:
        return self.name

    @property
    def suggested(self) -> dict[str, Any]:
        """The configuration as first suggested."""
        return self.tried[0] if self.tried else self.config

    # --- Ray's names ------------------------------------------------------------------------------

    @property
    def experiment_tag(self) -> str:
        """Ray's name for `tag`."""
        return self.tag

    @property
    def path(self) -> str:
        """Path of the trial's folder; '' if the experiment has no folder."""
        return f"{self.experiment_path}/{self.dirname}" if self.experiment_path else ""

    local_path = logdir = path

    @property
    def error_file(self) -> str | None:
        """Path of the file with the trial's error; None if the trial has not failed or has no folder."""
        return f"{self.path}/error.txt" if self.failure is not None and self.path else None

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """Ray's name for `request`."""
        return self.request

    @property
    def state(self) -> str:
        """State of the trial in words, one of STATES."""
        return state_of(self.status, self.reason)

    def is_finished(self) -> bool:
        """Return True if the trial has ended, successfully or not."""
        return self.status.is_finished

    def has_checkpoint(self) -> bool:
        """Return True if the trial has a checkpoint to resume from."""
        return bool(self.checkpoints)

    @property
    def checkpoint(self) -> SavedCheckpoint | None:
        """The latest checkpoint, from which the trial resumes; None if the trial has no checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    def checkpoint_for(self, receiver: str) -> SavedCheckpoint | None:
        """The latest checkpoint of the state that is offered to the trial `receiver`; without such a
        checkpoint, the latest checkpoint.
        """
        offered = self.offered.get(receiver, self.iteration)
        by_then = (each for each in reversed(self.checkpoints) if each.iteration <= offered)
        return next(by_then, self.checkpoint)


MAX_TAG = 120
"""Maximum length of an experiment tag, in characters."""
MAX_OWN_DIRNAME = 120
"""Maximum length of a trial folder's name, in bytes; short enough for deep paths on every file system."""
MAX_DIRNAME = 40
"""Maximum length, in characters, of the part of a folder name before the hyperparameters."""


def experiment_prefix(seed: int, name: str) -> str:
    """Return four hexadecimal digits, derived from seed and name, with which all trial ids begin."""
    return hashlib.blake2s(f"{seed}/{name}".encode(), digest_size=2).hexdigest()


def trial_id_of(prefix: str, index: int) -> str:
    """Return the trial id of suggestion number `index`."""
    return f"{prefix}_{index:05d}"


def trial_dirname(trainable_name: str, trial_id: str, tag: str) -> str:
    """Return a folder name such as 'train_5f3a_00007_lr=0.0313,width=16', in ASCII, not starting with a dot.

    Args:
        trainable_name: first part of the folder name; cut if it is long.
        trial_id: part of the folder name that makes it unique.
        tag: result of `experiment_tag`; the folder name does not contain the index in the tag.
    """
    trial = f"{safe_name(trainable_name)[: MAX_DIRNAME - len(trial_id) - 1]}_{trial_id}"
    varied = re.sub(r"[^A-Za-z0-9_.=,+@-]+", "_", tag.partition("_")[2])
    return f"{trial}_{varied}"[:MAX_OWN_DIRNAME].rstrip("_.,")


@functools.lru_cache(maxsize=64)
def safe_name(trainable_name: str) -> str:
    """Return the name with only letters, digits, '-', '_' and '.', and with a letter or digit at both
    ends.
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", trainable_name).strip(".-_") or "trial"


def experiment_tag(index: int, varied: Mapping[str, Any]) -> str:
    """Return a tag such as '7_lr=0.0313,width=16' from the index and the varying hyperparameters."""
    shown = [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in zip(shortest_names(tuple(varied)), varied.values(), strict=True)
    ]
    text = f"{index}_{','.join(shown)}".rstrip("_")
    return text if len(text) <= MAX_TAG else f"{text[: MAX_TAG - 3]}..."


@functools.lru_cache(maxsize=64)
def shortest_names(paths: tuple[str, ...]) -> list[str]:
    """Return for each path the shortest ending that no other path has, such as 'lr' or 'opt/lr'."""
    return [
        next((end for end in _ends(path) if sum(end in _ends(other) for other in paths) == 1), path)
        for path in paths
    ]


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[place:]) for place in range(len(parts) - 1, -1, -1)]


_OURS = "experiment."
"""Prefix of the names of the experiment's own files."""


class Namer:
    """Object that names trials and their folders with the user's functions in TuneConfig.

    Args:
        name_of: the user's `trial_name_creator`; None: trials keep their default names.
        dirname_of: the user's `trial_dirname_creator`; None: folders keep their default names.
    """

    def __init__(
        self, name_of: Callable[[Trial], str] | None = None, dirname_of: Callable[[Trial], str] | None = None
    ) -> None:
        self._name_of = name_of
        self._dirname_of = dirname_of
        self._taken: set[str] = set()

    def reserve(self, dirnames: Iterable[str]) -> None:
        """Reserve these folder names, so that no new trial uses them."""
        # Some file systems ignore case, so the names are stored in lower case.
        self._taken |= {name.casefold() for name in dirnames}

    def name(self, trial: Trial) -> None:
        """Set the name and folder of `trial`.

        Raises:
            ConfigError: a function raised an exception, or returned something other than a string.
        """
        if self._name_of is not None:
            trial.name = _called("trial_name_creator", self._name_of, trial)
        if self._dirname_of is not None:
            asked = _called("trial_dirname_creator", self._dirname_of, trial)
            trial.dirname = own_dirname(asked, trial.trial_id, self._taken)
            self._taken.add(trial.dirname.casefold())


def own_dirname(asked: str, trial_id: str, taken: Iterable[str]) -> str:
    """Return a valid and unique folder name made from `asked`, which is cut to MAX_OWN_DIRNAME bytes.

    Characters other than letters, digits and `-_.=,+@` become `_`. If no other characters remain, the name is
    `trial_` and the trial's id. A name that starts like the experiment's own files gets the prefix `trial_`.
    If another trial has the name, the trial's id is appended.
    """
    plain = re.sub(r"[^\w.=,+@-]+", "_", asked).strip(".")
    cut = plain.encode()[:MAX_OWN_DIRNAME].decode(errors="ignore")
    if not cut.strip("_"):
        return f"trial_{trial_id}"
    if cut.casefold().startswith(_OURS):
        cut = f"trial_{cut}"
    return cut if cut.casefold() not in taken else f"{cut}_{trial_id}"


def _called(setting: str, function: Callable[[Trial], Any], trial: Trial) -> str:
    try:
        name = function(trial)
    except Exception as error:
        raise TuneArgumentError(
            f"{setting} raised {type(error).__name__} for trial {trial.trial_id}: {message_of(error)}"
        ) from error
    if not isinstance(name, str) or not name:
        raise TuneArgumentError(f"{setting} returned {name!r} for trial {trial.trial_id}: return a string")
    return " ".join(name.split()) or trial.trial_id
