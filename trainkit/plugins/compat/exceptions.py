"""Errors of the runtime under the names of `ray.exceptions`.

Each error that trainkit can raise is a class of `trainkit.errors`. If trainkit does not distinguish two
errors of Ray, both names refer to the same class. Errors that programs catch, but that trainkit never raises,
are separate classes. Each class has the same base classes as in Ray, so that an `except` clause catches the
same errors. Errors about Ray's own internals have no class in this module; `ray.txt` lists them.
"""

from trainkit import errors as _errors

RayError = _errors.TrainkitError
RayTaskError = _errors.TaskError
RayActorError = _errors.ActorDiedError
ActorDiedError = _errors.ActorDiedError
ActorUnavailableError = _errors.ActorUnavailableError
GetTimeoutError = _errors.GetTimeoutError
LocalRayletDiedError = _errors.NodeDiedError
NodeDiedError = _errors.NodeDiedError
ObjectLostError = _errors.ObjectLostError
ObjectFreedError = _errors.ObjectLostError
ObjectStoreFullError = _errors.ObjectStoreFullError
OutOfDiskError = _errors.OutOfDiskError
OwnerDiedError = _errors.OwnerDiedError
TaskCancelledError = _errors.TaskCancelledError
WorkerCrashedError = _errors.WorkerDiedError
OutOfMemoryError = _errors.WorkerDiedError
"""Error that callers receive when a worker was killed because it exceeded its memory limit."""
OufOfBandObjectRefSerializationException = _errors.SerializationError
RuntimeEnvSetupError = _errors.ConfigError
ActorAlreadyExistsError = _errors.ConfigError
ActorHandleNotFoundError = _errors.ConfigError
ActorUnschedulableError = _errors.InfeasibleError
TaskUnschedulableError = _errors.InfeasibleError


class ActorPlacementGroupRemoved(ActorDiedError):
    """Never raised: ActorDiedError is raised instead if an actor's placement group was removed."""


class TaskPlacementGroupRemoved(WorkerCrashedError):
    """Never raised: WorkerDiedError is raised instead if a task's placement group was removed."""


class ObjectReconstructionFailedError(ObjectLostError):
    """Never raised: trainkit does not recompute lost objects."""


class PendingCallsLimitExceeded(RayError):
    """Never raised: the number of calls that wait for an actor is limited only by memory."""


class RaySystemError(RayError):
    """Base class of internal errors of Ray; trainkit never raises these errors."""


class RayChannelError(RaySystemError):
    """Never raised: trainkit's compiled graphs have no channels with limited capacity."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: trainkit's compiled graphs have no channels with limited capacity."""
