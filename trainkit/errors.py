"""Every exception a user can meet; each class stands for a different thing to do about it.

TrainkitError
├── ConfigError (also ValueError)          an argument is wrong: correct it
│   ├── ArgumentTypeError (also TypeError) an argument is of the wrong type: correct it
│   ├── AlreadyInitializedError (also RuntimeError)   the runtime is running: call trainkit.shutdown()
│   ├── SpaceError                         a search space is wrong: correct it
│   ├── TuneArgumentError (also TuneError) an argument of an experiment is wrong: correct it
│   └── InfeasibleError                    the request exceeds the machine: ask for less
├── MissingDependencyError (also ImportError)   install the extra that the message names
├── NotInitializedError                    the runtime is not running: call trainkit.init()
├── SerializationError (also TypeError, PicklingError)   a value cannot travel: remove the part that it names
├── GetTimeoutError (also TimeoutError)    the result is not there yet: wait longer, or give up
├── TaskError                              user code raised; also an instance of what it raised
├── TaskCancelledError                     the call was cancelled before it finished
├── WorkerDiedError                        the process that ran a task ended: look at its last lines
│   └── ActorDiedError                     the same for an actor, with every call still waiting on it
│       └── ActorUnavailableError          the actor is being made anew: call again
├── NodeDiedError                          the supervising process is gone: init again
├── ObjectLostError                        a reference outlived what it pointed to
│   └── OwnerDiedError                     the process that owed a result is gone
├── ObjectStoreFullError                   release references, or raise object_store_memory
│   └── OutOfDiskError                     the disk that values then go to is full too: free space there
├── TrainingError                          training cannot go on: the message says which worker and why
│   ├── CheckpointError                    a checkpoint cannot be written or read
│   ├── NonFiniteLossError                 the loss became NaN or infinite, and detect_nan asked to stop
│   ├── GangError                          the workers could not form, or re-form, a group
│   └── TrainingFailedError                the run of a training function has failed
│       ├── WorkerGroupError               a worker failed: see worker_failures
│       └── ControllerError                the process that waits for them did
├── DashboardError                         the dashboard can't be served: name another folder, or port
└── TuneError (also RuntimeError)          an experiment cannot go on
    ├── MetricError                        the metric is missing or not a number: correct its name
    ├── StoreError                         the experiment file is damaged, foreign or in use
    │   └── ExperimentNotFoundError (also FileNotFoundError, ValueError)   there is none: correct the path
    ├── StorageError                       the address that an experiment is copied to can't be used
    └── TrialError                         one trial failed; the others went on
        └── TrialTimeoutError              an attempt took longer than trial_timeout_s, and was killed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pickle import PicklingError
from typing import TYPE_CHECKING

__all__ = [
    "ActorDiedError",
    "ActorUnavailableError",
    "AlreadyInitializedError",
    "ArgumentTypeError",
    "CheckpointError",
    "ConfigError",
    "DashboardError",
    "ExperimentNotFoundError",
    "GangError",
    "GetTimeoutError",
    "InfeasibleError",
    "MetricError",
    "MissingDependencyError",
    "NodeDiedError",
    "NonFiniteLossError",
    "NotInitializedError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OwnerDiedError",
    "SerializationError",
    "SpaceError",
    "StorageError",
    "StoreError",
    "TaskCancelledError",
    "TaskError",
    "TrainingError",
    "TrainkitError",
    "TrialError",
    "TrialTimeoutError",
    "TuneArgumentError",
    "TuneError",
    "WorkerDiedError",
]


DISTRIBUTION = "trainkit-ml"
"""Name of the distribution; on the public index, "trainkit" is another project."""


class TrainkitError(Exception):
    """Base of all errors that trainkit raises by itself."""


class ConfigError(TrainkitError, ValueError):
    """An argument has a value that cannot work; the message echoes it and says what would."""


class ArgumentTypeError(ConfigError, TypeError):
    """An argument is of a type that cannot work; the message names the types that can."""


class AlreadyInitializedError(ConfigError, RuntimeError):
    """The runtime is running in this process already."""


class SpaceError(ConfigError):
    """A search space, or one of its domains, is wrong."""


class InfeasibleError(ConfigError):
    """A resource request can never be met here; the message says what was asked and what exists."""


class MissingDependencyError(TrainkitError, ImportError):
    """An optional package is needed; the message holds the command that installs it."""

    @classmethod
    def of(cls, need: str, extra: str, cause: ImportError | None = None) -> MissingDependencyError:
        """Return the error for a need that an extra of this distribution meets.

        Args:
            need: such as "OptunaSearch needs Optuna".
            extra: the name that pyproject.toml gives the packages.
            cause: the error of the import, which may be that of a package installed in part.
        """
        return cls(f"{need}: pip install '{DISTRIBUTION}[{extra}]'" + (f" ({cause})" if cause else ""))


class NotInitializedError(TrainkitError):
    """The runtime is not running in this process."""


class SerializationError(TrainkitError, TypeError, PicklingError):
    """A value cannot be sent to another process; the message names the attribute or variable."""


class GetTimeoutError(TrainkitError, TimeoutError):
    """A wait ended by its timeout; the result is still on its way and can be asked for again."""


class TaskError(TrainkitError):
    """User code raised in another process.

    What `get` raises is an instance of this class and, where Python allows it, of the original
    exception's class too, so `except ValueError` works across processes.

    Attributes:
        cause: the original exception, rebuilt here; None when it could not travel.
        remote_traceback: the traceback of the process that raised, as text; `str` shows it below the message.
        traceback_str: the same, by Ray's name. Like the next two, absent where the exception's class
            has an attribute of that name, which stays.
        function_name: what raised, such as 'Model.fit'.
        pid: the process that raised.
    """

    cause: BaseException | None = None
    remote_traceback: str = ""
    if TYPE_CHECKING:
        traceback_str: str
        function_name: str
        pid: int | None

    def as_instanceof_cause(self) -> TaskError:
        """Return this error, which is of its cause's class already."""
        return self

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n\n{self.remote_traceback}" if self.remote_traceback else message


class TaskCancelledError(TrainkitError):
    """The call was cancelled before it finished."""


class WorkerDiedError(TrainkitError):
    """The worker process of a task ended without answering.

    Attributes:
        pid: of the worker; None when it never started.
        exit_code: as `os.waitstatus_to_exitcode` gives it: -9 is SIGKILL; None when unknown.
        stderr_tail: the worker's last lines of standard error.
    """

    pid: int | None = None
    exit_code: int | None = None
    stderr_tail: str = ""


class ActorDiedError(WorkerDiedError):
    """An actor's process ended; calls that were waiting on it, and new ones, fail with this.

    Attributes:
        actor_id: hexadecimal digits of the actor's id; None where it is not known.
        preempted: False, as a session has one machine.
    """

    actor_id: str | None = None
    preempted: bool = False

    @cached_property  # which a user's own attribute of that name may replace
    def error_msg(self) -> str:
        """The message, by the name that Ray has for it."""
        return str(self)


class ActorUnavailableError(ActorDiedError):
    """An actor's process ended, and is being made anew; later calls are answered."""


class NodeDiedError(TrainkitError):
    """The process that supervises the workers is gone, and so are they; `init` starts anew.

    Attributes:
        how: what became of it, such as 'killed by signal 9'; '' where that is not known.
        ended_by: who ended the session by `trainkit stop`; '' if nobody did.
    """

    how: str = ""
    ended_by: str = ""


class ObjectLostError(TrainkitError):
    """The object behind a reference is gone, or the reference belongs to a session that has ended."""


class OwnerDiedError(ObjectLostError):
    """The process that owed this result ended before delivering it."""


class ObjectStoreFullError(TrainkitError):
    """Shared memory for objects is used up; the message says who holds what."""


class OutOfDiskError(ObjectStoreFullError):
    """Shared memory for objects is used up, and the disk that values then go to is full."""


class TrainingError(TrainkitError):
    """Training cannot go on; the message says which worker and why."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, is incomplete, or does not fit what it is loaded into."""


class NonFiniteLossError(TrainingError, ArithmeticError):
    """The loss of a batch is NaN or infinite, and `detect_nan=True` asked to stop there."""


class GangError(TrainingError, RuntimeError):
    """The group of workers could not be formed, or could not be re-formed after a failure."""


class TrainingFailedError(TrainingError, RuntimeError):
    """The run of a training function has failed: it is a WorkerGroupError or a ControllerError."""


class WorkerGroupError(TrainingFailedError):
    """Workers of a training function have failed.

    Attributes:
        worker_failures: the error of each worker that is to blame, by rank.
    """

    worker_failures: Mapping[int, BaseException] = {}


class ControllerError(TrainingFailedError):
    """The process that waits for the workers of a training function has failed.

    Attributes:
        controller_failure: its error.
    """

    controller_failure: BaseException | None = None


class TuneError(TrainkitError, RuntimeError):
    """An experiment cannot start or go on."""


class TuneArgumentError(ConfigError, TuneError):
    """An argument of an experiment cannot work: a trainable, or a setting."""


class MetricError(TuneError):
    """The metric to optimise was not reported, or is not a number."""


class StoreError(TuneError):
    """The experiment file is damaged, was not written by trainkit, or another process has it open."""


class ExperimentNotFoundError(StoreError, FileNotFoundError, ValueError):
    """There is no experiment, or no trial, where one was to be read or gone on with."""


class StorageError(TuneError):
    """The address that an experiment is copied to, or restored from, cannot be written or read."""


class DashboardError(TrainkitError):
    """The dashboard can't be served: there is no such folder, or the port is taken."""


class TrialError(TuneError):
    """One trial failed; `result.error` holds it with the remote traceback."""


class TrialTimeoutError(TrialError):
    """An attempt of a trial took longer than `TuneConfig(trial_timeout_s=...)` allows, and was killed."""


def message_of(error: BaseException) -> str:
    """Return the text of an error for the middle of a line: of a TaskError without its remote traceback."""
    return super(TaskError, error).__str__() if isinstance(error, TaskError) else str(error)


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.7) -> str:
    """Return " Did you mean 'loss'?" for the one of `names` that is most like `name`, or ''."""
    import difflib  # only for an error's message

    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""
