"""Errors of the runtime by the names of `ray.exceptions`.

An error that can happen here is a class of `trainkit.errors`; where Ray tells apart what is one thing here,
two names are one class. An error of a part of Ray that is not here has a class of its own, which nothing
raises. One class catches another's errors where it does in Ray.
"""

from __future__ import annotations

from trainkit.errors import (
    ActorDiedError,
    ActorUnavailableError,
    ConfigError,
    GetTimeoutError,
    InfeasibleError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OwnerDiedError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    TrainkitError,
    WorkerDiedError,
)

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "AuthenticationError",
    "CrossLanguageError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OufOfBandObjectRefSerializationException",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayCgraphCapacityExceeded",
    "RayChannelError",
    "RayChannelTimeoutError",
    "RayDirectTransportError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "ReferenceCountingAssertionError",
    "RpcError",
    "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "UnserializableException",
    "UserCodeException",
    "WorkerCrashedError",
]

RayError = TrainkitError
RayTaskError = TaskError
RayActorError = ActorDiedError
WorkerCrashedError = WorkerDiedError
OutOfMemoryError = WorkerDiedError
"""A worker that exceeds its memory is ended, and its callers are told so."""
LocalRayletDiedError = NodeDiedError
ObjectFreedError = ObjectLostError
OufOfBandObjectRefSerializationException = SerializationError
RuntimeEnvSetupError = ConfigError
ActorAlreadyExistsError = ActorHandleNotFoundError = ConfigError
ActorUnschedulableError = TaskUnschedulableError = InfeasibleError


class ActorPlacementGroupRemoved(ActorDiedError):
    """Not raised: an actor whose group was removed has died, and the message says of what."""


class TaskPlacementGroupRemoved(WorkerDiedError):
    """Not raised: a task whose group was removed has died, and the message says of what."""


class AsyncioActorExit(TrainkitError):
    """Not raised: `exit_actor` ends an actor whose methods are `async` as it ends any other."""


class AuthenticationError(TrainkitError):
    """Not raised: a session of one machine has no token."""


class CrossLanguageError(TrainkitError):
    """Not raised: there is Python alone."""


class ObjectFetchTimedOutError(ObjectLostError):
    """Not raised: no object is fetched from another machine."""


class ObjectReconstructionFailedError(ObjectLostError):
    """Not raised: a lost object is not computed anew."""


class ObjectRefStreamEndOfStreamError(TrainkitError):
    """Not raised: a generator of references ends with StopIteration."""


class PendingCallsLimitExceeded(TrainkitError):
    """Not raised: as many calls may wait for an actor as there is memory for."""


class PlasmaObjectNotAvailable(TrainkitError):
    """Not raised: there is no store apart from the processes."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """Not raised: an object lives as long as a reference to it."""


class RpcError(TrainkitError):
    """Not raised: no process is asked over a network."""


class RaySystemError(TrainkitError):
    """Base of errors of Ray's own parts; nothing here raises it."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Not raised: there are no compiled graphs."""


class RayChannelError(RaySystemError):
    """Not raised: there are no compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Not raised: there are no compiled graphs."""


class RayDirectTransportError(RaySystemError):
    """Not raised: tensors travel as every other value."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """Not raised: a generator that has given results is not run again."""


class UnserializableException(TrainkitError):
    """Not raised: an exception that can't be pickled arrives as a TaskError with its traceback."""


class UserCodeException(TrainkitError):
    """Not raised: what a user's code raises is a TaskError."""
