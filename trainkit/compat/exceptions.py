"""Errors of the runtime by the names of `ray.exceptions`.

An error that can happen here is a class of `trainkit.errors`; where Ray tells apart what is one thing here,
two names are one class. An error of a part of Ray that is not here has a class of its own, which nothing
raises. One class catches another's errors where it does in Ray.
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
"""A worker that exceeds its memory is ended, and its callers are told so."""
OufOfBandObjectRefSerializationException = _errors.SerializationError
RuntimeEnvSetupError = _errors.ConfigError
ActorAlreadyExistsError = _errors.ConfigError
ActorHandleNotFoundError = _errors.ConfigError
ActorUnschedulableError = _errors.InfeasibleError
TaskUnschedulableError = _errors.InfeasibleError


class ActorPlacementGroupRemoved(ActorDiedError):
    """Not raised: an actor whose group was removed has died, and the message says of what."""


class TaskPlacementGroupRemoved(WorkerCrashedError):
    """Not raised: a task whose group was removed has died, and the message says of what."""


class AsyncioActorExit(RayError):
    """Not raised: `exit_actor` ends an actor whose methods are `async` as it ends any other."""


class AuthenticationError(RayError):
    """Not raised: a session of one machine has no token."""


class CrossLanguageError(RayError):
    """Not raised: there is Python alone."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Not raised: no object is fetched from another machine."""


class ObjectReconstructionFailedError(ObjectLostError):
    """Not raised: a lost object is not computed anew."""


class ObjectRefStreamEndOfStreamError(RayError):
    """Not raised: a generator of references ends with StopIteration."""


class PendingCallsLimitExceeded(RayError):
    """Not raised: as many calls may wait for an actor as there is memory for."""


class PlasmaObjectNotAvailable(RayError):
    """Not raised: there is no store apart from the processes."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Not raised: an object lives as long as a reference to it."""


class RpcError(RayError):
    """Not raised: no process is asked over a network."""


class RaySystemError(RayError):
    """Base of errors of Ray's own parts; nothing here raises it."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Not raised: a compiled graph has no channels whose room could end."""


class RayChannelError(RaySystemError):
    """Not raised: a compiled graph has no channels whose room could end."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Not raised: a compiled graph has no channels whose room could end."""


class RayDirectTransportError(RaySystemError):
    """Not raised: tensors travel as every other value."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Not raised: a generator that has given results is not run again."""


class UnserializableException(RayError):
    """Not raised: an exception that can't be pickled arrives as a TaskError with its traceback."""


class UserCodeException(RayError):
    """Not raised: what a user's code raises is a TaskError."""
