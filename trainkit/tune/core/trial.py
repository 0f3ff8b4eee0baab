"""One trial: its configuration, status, attempts and checkpoints."""

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
    """Where a trial stands. PENDING also means: interrupted, to be gone on with."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    @property
    def is_finished(self) -> bool:
        """True if nothing will happen to the trial any more."""
        return self in _FINISHED


# A tuple: a set asks for the hash, which an enumeration works out anew each time.
_FINISHED = (TrialStatus.TERMINATED, TrialStatus.ERROR)

STATES = ("interrupted", "pending", "running", "paused", "finished", "stopped", "failed")
"""Words for where trials are, in the order of a trial's life; `state_of` says which."""


_NUMBER = r"-?(?:[\d.]+(?:e[+-]\d+)?|inf)"
_FINISHED_BY = re.compile(
    r"$|finished\b|reported done\b|(?:stopped by [^:]+: )?reached max_t="
    rf"|(?!stopped by ).*={_NUMBER} reached {_NUMBER}(?:;|$)",
    re.DOTALL,
)
"""Reasons of trials that are complete. What follows "stopped by" are words of a person or of a stopper."""


def state_of(status: str, reason: str) -> str:
    """Return where a trial is in words; unlike its status, they tell a trial that was stopped early.

    Args:
        status: the trial's.
        reason: of the status. A trial that reached its own end, `max_t` or a stop rule has finished.
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
    """A checkpoint that is committed.

    Attributes:
        number: counts the trial's checkpoints over all its attempts, from 0.
        dirname: of its folder in the trial's.
        iteration: of the report it came with.
        score: of the attribute that ranks checkpoints, larger is better; None where there is none.
        time_total_s, timesteps_total: spent up to then, to count on from; of that report.
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
        """One that goes with the report `result`, which may have overridden anything."""
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
    """Why an attempt ended: in words that can be stored, as the exception itself goes no further.

    Attributes:
        kind: name of the exception's class.
        message: its text.
        traceback: of the process that raised, as text.
        retry: False for what would fail again in the same way.
        out_of_memory: memory was not enough, be it the process's, the machine's or a GPU's.
    """

    kind: str
    message: str
    traceback: str = ""
    retry: bool = True
    out_of_memory: bool = False

    @property
    def where(self) -> str:
        """The last frame of the user's code, such as 'train.py:12 in f'; '' where none is known."""
        return runtime.last_user_frame(self.traceback)

    @classmethod
    def raised(cls, error: Exception, message: str = "") -> Failure:
        """By a function of the user's in this process, which would do so again; `message`: not its own."""
        text = runtime.formatted(error)
        return cls(type(error).__name__, message or message_of(error), text, retry=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a trial: the first, a retry after a failure, or one that a restore went on with.

    Attributes:
        number: from 0.
        config: the hyperparameters it ran with: the trial's, but for what a retry changed.
        started: seconds since 1970.
        iteration: that it went on from; 0: the beginning.
        reports: how many it made.
        outcome: how it ended, such as "retry 1 of 2 after OutOfMemoryError", or what became of it then, such
            as "resumed" after the whole experiment was killed; '' while it runs.
        pid, hostname: of its process.
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
    """A trial as controller and callbacks see it; callbacks may read it, not change it.

    Attributes:
        trial_id: unique in the experiment, such as "5f3a_00007".
        index: which suggestion it is, from 0.
        config: the hyperparameters.
        name: such as "train_mnist_5f3a_00007".
        dirname: of its folder in the experiment's.
        tag: the index and the hyperparameters that vary, for people.
        request: what it reserves.
        status: where it stands.
        reason: why it stands there, such as "stopped by ASHA at rung 4".
        attempt: 0 at first; one more with each retry and each resume.
        failures: attempts that failed, but for those after which FailureConfig(out_of_memory=) had its way.
        iteration: of the last report.
        last_result: that report, with what was filled in.
        checkpoints: committed and not deleted, oldest first.
        failure: of the last attempt, once the trial is in ERROR.
        granted: what the scheduler lets it reserve in place of what it asked for; None: what it asked for.
        tried: the configurations of before, as memory was not enough for them or another trial's was taken
            over; the first is as suggested.
        alone: it runs when nothing else does.
        trainable_name: of the function or class, for those who make names of it.
        evaluated_params: the hyperparameters that differ between trials, by flattened name; {} for trials
            that were read from a file.
        experiment_path: of the experiment's folder; '' where it has none, and for trials that were read from
            a file.
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
    trainable_name: str = ""
    evaluated_params: dict[str, Any] = field(default_factory=dict)
    experiment_path: str = ""

    def __hash__(self) -> int:
        return hash(self.trial_id)  # callbacks keep things by trial

    def __str__(self) -> str:
        return self.name

    @property
    def suggested(self) -> dict[str, Any]:
        """The configuration as suggested."""
        return self.tried[0] if self.tried else self.config

    # --- Ray's names ------------------------------------------------------------------------------

    @property
    def experiment_tag(self) -> str:
        """Ray's name for `tag`."""
        return self.tag

    @property
    def path(self) -> str:
        """Path of the trial's folder; '' where the experiment has none."""
        return f"{self.experiment_path}/{self.dirname}" if self.experiment_path else ""

    local_path = logdir = path

    @property
    def error_file(self) -> str | None:
        """Path of the file with the trial's error; None where the trial has not failed."""
        return f"{self.path}/error.txt" if self.failure is not None and self.path else None

    @property
    def placement_group_factory(self) -> PlacementGroupFactory:
        """Ray's name for `request`."""
        return self.request

    @property
    def state(self) -> str:
        """Where the trial is, in words: one of STATES."""
        return state_of(self.status, self.reason)

    def is_finished(self) -> bool:
        """Return whether the trial has ended, one way or another."""
        return self.status.is_finished

    def has_checkpoint(self) -> bool:
        """Return whether there is a checkpoint to go on from."""
        return bool(self.checkpoints)

    @property
    def checkpoint(self) -> SavedCheckpoint | None:
        """The one to go on from: the latest."""
        return self.checkpoints[-1] if self.checkpoints else None


MAX_TAG = 120
"""Characters of an experiment tag."""
MAX_OWN_DIRNAME = 120
"""Bytes of a trial folder's name; leaves room for deep storage paths on every file system."""
MAX_DIRNAME = 40
"""Characters of it that say which trial it is, before what varies."""


def experiment_prefix(seed: int, name: str) -> str:
    """Four hexadecimal digits that trial ids of one experiment share; the same for the same seed and name."""
    return hashlib.blake2s(f"{seed}/{name}".encode(), digest_size=2).hexdigest()


def trial_id_of(prefix: str, index: int) -> str:
    """The id of suggestion `index`."""
    return f"{prefix}_{index:05d}"


def trial_dirname(trainable_name: str, trial_id: str, tag: str) -> str:
    """Return such as 'train_5f3a_00007_lr=0.0313,width=16', in ASCII and without a dot at the start.

    Args:
        trainable_name: goes in front, cut where it is long.
        trial_id: tells it from the others.
        tag: of `experiment_tag`, of which the index is left out.
    """
    trial = f"{safe_name(trainable_name)[: MAX_DIRNAME - len(trial_id) - 1]}_{trial_id}"
    varied = re.sub(r"[^A-Za-z0-9_.=,+@-]+", "_", tag.partition("_")[2])
    return f"{trial}_{varied}"[:MAX_OWN_DIRNAME].rstrip("_.,")


@functools.lru_cache(maxsize=64)
def safe_name(trainable_name: str) -> str:
    """Letters, digits, '-', '_' and '.', none of the last three at the ends."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", trainable_name).strip(".-_") or "trial"


def experiment_tag(index: int, varied: Mapping[str, Any]) -> str:
    """Return such as '7_lr=0.0313,width=16': the index and what differs between trials, by short names."""
    shown = [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in zip(shortest_names(tuple(varied)), varied.values(), strict=True)
    ]
    text = f"{index}_{','.join(shown)}".rstrip("_")
    return text if len(text) <= MAX_TAG else f"{text[: MAX_TAG - 3]}..."


@functools.lru_cache(maxsize=64)
def shortest_names(paths: tuple[str, ...]) -> list[str]:
    """Return of each path as much of its end as tells it from the others, such as 'lr', or 'opt/lr'."""
    return [
        next(
            (end for end in _ends(path) if sum(end in _ends(other) for other in paths) == 1),
            path,
        )
        for path in paths
    ]


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[place:]) for place in range(len(parts) - 1, -1, -1)]


_OURS = "experiment."
"""Beginning of the names of the experiment's own files."""


class Namer:
    """Names trials as TuneConfig asks for.

    Args:
        name_of: `trial_name_creator`; None: names stay as they are.
        dirname_of: `trial_dirname_creator`; None: folders stay as they are.
        taken: names of the experiment's folders.
    """

    def __init__(
        self,
        name_of: Callable[[Trial], str] | None = None,
        dirname_of: Callable[[Trial], str] | None = None,
        taken: Iterable[str] = (),
    ) -> None:
        self._name_of = name_of
        self._dirname_of = dirname_of
        # Compared as a file system would that doesn't tell upper case from lower.
        self._taken = {name.casefold() for name in taken} if dirname_of is not None else set()

    def name(self, trial: Trial) -> None:
        """Give `trial` its own name and folder.

        Raises:
            ConfigError: a function raised, or returned something else than a text.
        """
        if self._name_of is not None:
            trial.name = _called("trial_name_creator", self._name_of, trial)
        if self._dirname_of is not None:
            asked = _called("trial_dirname_creator", self._dirname_of, trial)
            trial.dirname = own_dirname(asked, trial.trial_id, self._taken)
            self._taken.add(trial.dirname.casefold())


def own_dirname(asked: str, trial_id: str, taken: Iterable[str]) -> str:
    """Return `asked` as the name of a folder: inside the experiment's, of fair length, and nobody else's.

    What is neither a letter, a digit, nor one of `-_.=,+@` becomes `_`; where that leaves nothing, or the
    name is taken already, the trial's id is put to it. A name that begins as the experiment's own files do
    gets `trial_` before it.
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
        raise TuneArgumentError(f"{setting} returned {name!r} for trial {trial.trial_id}: return a text")
    return " ".join(name.split()) or trial.trial_id
