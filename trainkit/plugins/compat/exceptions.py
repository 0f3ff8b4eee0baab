"""Errors of the runtime under the names of `ray.exceptions`.

Each error that trainkit can raise is a class of `trainkit.errors`. If trainkit does not distinguish two
errors of Ray, both names refer to the same class. Errors about features of Ray that trainkit lacks are
separate classes, which are never raised. Each class has the same base classes as in Ray, so that an `except`
clause catches the same errors.
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


class AsyncioActorExit(RayError):
    """Never raised: `exit_actor` ends actors with `async` methods like all other actors."""


class AuthenticationError(RayError):
    """Never raised: a session on one machine has no authentication token."""


class CrossLanguageError(RayError):
    """Never raised: trainkit supports only Python."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Never raised, because trainkit fetches no objects from other machines."""


class ObjectReconstructionFailedError(ObjectLostError):
    """Never raised: trainkit does not recompute lost objects."""


class ObjectRefStreamEndOfStreamError(RayError):
    """Never raised: a generator of references ends with StopIteration instead."""


class PendingCallsLimitExceeded(RayError):
    """Never raised: the number of calls that wait for an actor is limited only by memory."""


class PlasmaObjectNotAvailable(RayError):
    """Never raised: trainkit has no separate process that stores objects."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Never raised: an object exists as long as a reference to it exists."""


class RpcError(RayError):
    """Never raised: processes do not communicate over a network."""


class RaySystemError(RayError):
    """Base class of internal errors of Ray; never raised here."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Never raised: trainkit's compiled graphs have no channels with limited capacity."""


class RayChannelError(RaySystemError):
    """Never raised: trainkit's compiled graphs have no channels with limited capacity."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: trainkit's compiled graphs have no channels with limited capacity."""


class RayDirectTransportError(RaySystemError):
    """Never raised: tensors are sent in the same way as other values."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Never raised: a generator that has yielded results is not run again."""


class UnserializableException(RayError):
    """Never raised: an exception that can't be pickled arrives as a TaskError with its traceback."""


class UserCodeException(RayError):
    """Never raised: an exception of user code is raised as a TaskError instead."""
