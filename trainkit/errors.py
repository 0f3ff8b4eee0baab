"""All exceptions that users can get. The table below names the user's action for each class.

TrainkitError
├── ConfigError (also ValueError)          an argument is wrong: correct it
│   ├── ArgumentTypeError (also TypeError) an argument is of the wrong type: correct it
│   ├── AlreadyInitializedError (also RuntimeError)   the runtime is running: call trainkit.shutdown()
│   ├── SpaceError                         a search space is wrong: correct it
│   ├── TuneArgumentError (also TuneError) an argument of an experiment is wrong: correct it
│   └── InfeasibleError                    the request exceeds the machine: ask for less
├── MissingDependencyError (also ImportError)   install the extra that the message names
├── NotInitializedError                    the runtime is not running: call trainkit.init()
├── SerializationError (also TypeError, PicklingError)   a value can't be sent: remove the named part
├── GetTimeoutError (also TimeoutError)    the result is not ready yet: wait longer, or give up
├── TaskError                              user code raised; also an instance of the raised class
├── TaskCancelledError                     the call was cancelled before it finished
├── WorkerDiedError                        the process of a task ended: look at its last output lines
│   └── ActorDiedError                     the process of an actor ended: its unfinished calls fail
│       └── ActorUnavailableError          the actor is restarting: call again
├── NodeDiedError                          the supervising process ended: call trainkit.init()
├── ObjectLostError                        a reference outlived its value
│   └── OwnerDiedError                     the process that should have delivered a result is gone
├── ObjectStoreFullError                   release references, or raise object_store_memory
│   └── OutOfDiskError                     the disk for overflowing values is full too: free space there
├── TrainingError                          training cannot continue: the message names worker and reason
│   ├── CheckpointError                    a checkpoint cannot be written or read
│   ├── NonFiniteLossError                 the loss became NaN or infinite, and detect_nan asked to stop
│   ├── GangError                          the workers could not form, or re-form, a group
│   └── TrainingFailedError                the run of a training function has failed
│       ├── WorkerGroupError               a worker failed: see worker_failures
│       └── ControllerError                the process that waits for the workers failed
├── DashboardError                         the dashboard can't be served: name another folder, or port
└── TuneError (also RuntimeError)          an experiment cannot start or continue
    ├── MetricError                        the metric is missing or not a number: correct its name
    ├── StoreError                         the experiment file is damaged, in use or from another program
    │   └── ExperimentNotFoundError (also FileNotFoundError, ValueError)   not found: correct the path
    ├── StorageError                       the address that an experiment is copied to can't be used
    └── TrialError                         one trial failed; the others continued
        └── TrialTimeoutError              an attempt took longer than trial_timeout_s and was killed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pickle import PicklingError
from typing import TYPE_CHECKING

DISTRIBUTION = "trainkit-ml"
"""Name of the distribution. On the public index, "trainkit" is a different project."""


class TrainkitError(Exception):
    """Base of all errors that trainkit itself raises."""


class ConfigError(TrainkitError, ValueError):
    """An argument has an invalid value. The message repeats the value and names valid values."""


class ArgumentTypeError(ConfigError, TypeError):
    """An argument has an invalid type. The message names valid types."""


class AlreadyInitializedError(ConfigError, RuntimeError):
    """The runtime is already running in this process."""


class SpaceError(ConfigError):
    """A search space, or one of its domains, is invalid."""


class InfeasibleError(ConfigError):
    """A resource request can never be met on this machine or cluster.

    The message names the request and the existing resources.
    """


class MissingDependencyError(TrainkitError, ImportError):
    """An optional package is missing. The message contains the command that installs it."""

    @classmethod
    def of(cls, need: str, extra: str, cause: ImportError | None = None) -> MissingDependencyError:
        """Return the error for a missing package that an extra of this distribution installs.

        Args:
            need: reason, such as "OptunaSearch needs Optuna".
            extra: name of the extra in pyproject.toml.
            cause: error of the import; a partly installed package can raise it too.
        """
        return cls(f"{need}: pip install '{DISTRIBUTION}[{extra}]'" + (f" ({cause})" if cause else ""))


class NotInitializedError(TrainkitError):
    """The runtime is not running in this process."""


class SerializationError(TrainkitError, TypeError, PicklingError):
    """A value cannot be sent to another process. The message names the attribute or variable at fault."""


class GetTimeoutError(TrainkitError, TimeoutError):
    """A wait timed out. The result is still pending and can be requested again."""


class TaskError(TrainkitError):
    """User code raised an exception in another process.

    The error that `get` raises is an instance of this class and, where Python allows it, also of the original
    exception's class, so that `except ValueError` works across processes.

    Attributes:
        cause: copy of the original exception in this process; None if the exception could not be sent.
        remote_traceback: traceback in the other process, as text; `str` shows it below the message.
        traceback_str: Ray's name for `remote_traceback`. If the original exception's class has an attribute
            named `traceback_str`, `function_name` or `pid`, this attribute takes precedence.
        function_name: name of the function that raised, such as 'Model.fit'.
        pid: id of the process in which the code ran.
    """

    cause: BaseException | None = None
    remote_traceback: str = ""
    if TYPE_CHECKING:
        traceback_str: str
        function_name: str
        pid: int | None

    def as_instanceof_cause(self) -> TaskError:
        """Return this error itself, because it is already an instance of its cause's class."""
        return self

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n\n{self.remote_traceback}" if self.remote_traceback else message


class TaskCancelledError(TrainkitError):
    """The call was cancelled before it finished."""


class WorkerDiedError(TrainkitError):
    """The worker process of a task ended without answering.

    Attributes:
        pid: process id of the worker; None if it never started.
        exit_code: exit code as `os.waitstatus_to_exitcode` returns it, such as -9 for SIGKILL; None if
            unknown.
        stderr_tail: the worker's last lines of standard error.
    """

    pid: int | None = None
    exit_code: int | None = None
    stderr_tail: str = ""


class ActorDiedError(WorkerDiedError):
    """An actor's process ended, so that all its pending and new calls fail with this error.

    Attributes:
        actor_id: the actor's id in hexadecimal digits; None if unknown.
        preempted: True if the process ended because its machine was taken away or lost, on Ray only.
    """

    actor_id: str | None = None
    preempted: bool = False

    @cached_property  # not a property, as a user's exception may set an attribute of that name
    def error_msg(self) -> str:
        """Error message, under the name that Ray uses."""
        return str(self)


class ActorUnavailableError(ActorDiedError):
    """An actor's process ended and is being restarted, so that later calls will be answered."""


class NodeDiedError(TrainkitError):
    """The process that supervises the workers ended, and the workers ended with it.

    `init` starts a new session.

    Attributes:
        how: how the process ended, such as 'killed by signal 9'; '' if unknown.
        ended_by: name of the sender that ended the session by `trainkit stop`; '' in other cases.
    """

    how: str = ""
    ended_by: str = ""


class ObjectLostError(TrainkitError):
    """The object of a reference is gone, or the reference belongs to a session that has ended."""


class OwnerDiedError(ObjectLostError):
    """The process that should have delivered this result ended without delivering the result."""


class ObjectStoreFullError(TrainkitError):
    """Shared memory for objects is full. The message lists the processes that use this memory."""


class OutOfDiskError(ObjectStoreFullError):
    """Shared memory for objects is full, and the disk for objects that do not fit into memory is full too."""


class TrainingError(TrainkitError):
    """Training cannot continue. The message names the worker and the reason."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, is incomplete, or does not fit the object that loads it."""


class NonFiniteLossError(TrainingError, ArithmeticError):
    """The loss of a batch is NaN or infinite, and `detect_nan=True` requests a stop."""


class GangError(TrainingError, RuntimeError):
    """The group of workers could not be formed, or could not be re-formed after a failure."""


class TrainingFailedError(TrainingError, RuntimeError):
    """The run of a training function failed, with a WorkerGroupError or a ControllerError."""


class WorkerGroupError(TrainingFailedError):
    """Workers of a training function failed.

    Attributes:
        worker_failures: errors of the workers that caused the failure, by rank.
    """

    worker_failures: Mapping[int, BaseException] = {}


class ControllerError(TrainingFailedError):
    """The process that waits for the workers of a training function failed.

    Attributes:
        controller_failure: error of the waiting process.
    """

    controller_failure: BaseException | None = None


class TuneError(TrainkitError, RuntimeError):
    """An experiment cannot start or continue."""


class TuneArgumentError(ConfigError, TuneError):
    """An argument of an experiment, such as its trainable or a setting, is invalid."""


class MetricError(TuneError):
    """The metric to optimize was not reported, or is not a number."""


class StoreError(TuneError):
    """The experiment file is damaged, was written by another program, or is open in another process."""


class ExperimentNotFoundError(StoreError, FileNotFoundError, ValueError):
    """The experiment or trial to read or resume does not exist."""


class StorageError(TuneError):
    """The address that an experiment is copied to, or restored from, cannot be written or read."""


class DashboardError(TrainkitError):
    """The dashboard can't be served, as the folder does not exist or the port is taken."""


class TrialError(TuneError):
    """One trial failed. `result.error` is this error, with the remote traceback."""


class TrialTimeoutError(TrialError):
    """An attempt of a trial took longer than `TuneConfig(trial_timeout_s=...)` allows and was killed."""


def message_of(error: BaseException) -> str:
    """Return the message of an error, without the remote traceback that `str` of a TaskError contains."""
    return super(TaskError, error).__str__() if isinstance(error, TaskError) else str(error)


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.7) -> str:
    """Return " Did you mean 'loss'?" for the most similar of `names`, or '' if none is similar."""
    import difflib  # imported here, because only error messages need it

    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


__all__ = [name for name, each in globals().items() if isinstance(each, type) and each.__module__ == __name__]
