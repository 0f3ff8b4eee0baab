"""Errors of the runtime under the names of `ray.exceptions`.

An error that can occur here is a class of `trainkit.errors`. If trainkit does not distinguish two of Ray's
errors, both names are the same class. An error of a part of Ray that trainkit lacks has its own class, which
is never raised. Base classes match those in Ray, so that `except` catches the same errors.
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
"""A worker that exceeds its memory limit is killed, and its callers receive this error."""
OufOfBandObjectRefSerializationException = _errors.SerializationError
RuntimeEnvSetupError = _errors.ConfigError
ActorAlreadyExistsError = _errors.ConfigError
ActorHandleNotFoundError = _errors.ConfigError
ActorUnschedulableError = _errors.InfeasibleError
TaskUnschedulableError = _errors.InfeasibleError


class ActorPlacementGroupRemoved(ActorDiedError):
    """Never raised: an actor whose group was removed raises ActorDiedError, whose text gives this reason."""


class TaskPlacementGroupRemoved(WorkerCrashedError):
    """Never raised: a task whose group was removed raises WorkerDiedError, whose text gives this reason."""


class AsyncioActorExit(RayError):
    """Never raised: `exit_actor` ends actors with `async` methods like all other actors."""


class AuthenticationError(RayError):
    """Never raised: a session on one machine has no token."""


class CrossLanguageError(RayError):
    """Never raised: only Python is supported."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Never raised, because trainkit fetches no objects from other machines."""


class ObjectReconstructionFailedError(ObjectLostError):
    """Never raised: a lost object is not recomputed."""


class ObjectRefStreamEndOfStreamError(RayError):
    """Never raised: a generator of references ends with StopIteration."""


class PendingCallsLimitExceeded(RayError):
    """Never raised: only memory limits the number of calls that wait for an actor."""


class PlasmaObjectNotAvailable(RayError):
    """Never raised: no separate object store process exists."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Never raised: an object lives as long as a reference to it."""


class RpcError(RayError):
    """Never raised: processes do not communicate over a network."""


class RaySystemError(RayError):
    """Base class of internal errors of Ray; never raised here."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Never raised: a compiled graph has no channels with limited capacity."""


class RayChannelError(RaySystemError):
    """Never raised: a compiled graph has no channels with limited capacity."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: a compiled graph has no channels with limited capacity."""


class RayDirectTransportError(RaySystemError):
    """Never raised: tensors are sent like all other values."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Never raised: a generator that has yielded results is not run again."""


class UnserializableException(RayError):
    """Never raised: an exception that can't be pickled arrives as a TaskError with its traceback."""


class UserCodeException(RayError):
    """Never raised: exceptions of user code are raised as TaskError."""
