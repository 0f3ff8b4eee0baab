"""Translation of Ray's exceptions into trainkit's."""

from __future__ import annotations

from typing import Any

from ray import exceptions

from trainkit.errors import (
    ActorDiedError,
    ActorUnavailableError,
    ConfigError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OwnerDiedError,
    TaskCancelledError,
    TaskError,
    TrainkitError,
    WorkerDiedError,
)
from trainkit.runtime.failures import pack_failure, raisable, unpack_failure
from trainkit.runtime.serialize import Packed

# The first class that matches an error counts, so each class is listed before its base classes.
_CLASSES: tuple[tuple[type[BaseException], type[TrainkitError]], ...] = (
    (exceptions.GetTimeoutError, GetTimeoutError),
    (exceptions.TaskCancelledError, TaskCancelledError),
    (exceptions.ActorUnavailableError, ActorUnavailableError),
    (exceptions.RayActorError, ActorDiedError),
    (exceptions.ActorUnschedulableError, ActorDiedError),
    (exceptions.ActorPlacementGroupRemoved, ActorDiedError),
    (exceptions.WorkerCrashedError, WorkerDiedError),
    (exceptions.OutOfMemoryError, WorkerDiedError),
    (exceptions.TaskPlacementGroupRemoved, WorkerDiedError),
    (exceptions.TaskUnschedulableError, WorkerDiedError),
    (exceptions.RuntimeEnvSetupError, WorkerDiedError),
    (exceptions.NodeDiedError, NodeDiedError),
    (exceptions.LocalRayletDiedError, NodeDiedError),
    (exceptions.OwnerDiedError, OwnerDiedError),
    (exceptions.ObjectLostError, ObjectLostError),
    (exceptions.ObjectStoreFullError, ObjectStoreFullError),
    (exceptions.OutOfDiskError, OutOfDiskError),
)


class UserFailure(Exception):
    """Exception of user code in a worker, packed by `pack_failure` to be sent through Ray.

    Args:
        parcel: packed failure, a `trainkit.plugins.ray.values.Parcel`.
    """

    def __init__(self, parcel: Any) -> None:
        super().__init__(parcel)
        self.parcel = parcel

    def unpacked(self) -> TaskError:
        """Return the exception of user code."""
        return unpack_failure(Packed(self.parcel.payload, self.parcel.buffers, self.parcel.handles))

    def __str__(self) -> str:
        return self.unpacked().remote_traceback


class RetriedFailure(UserFailure):
    """Failure for which Ray retries the task."""


def translate(error: BaseException) -> BaseException:
    """Return trainkit's equivalent of Ray's exception `error`; return other exceptions unchanged."""
    if isinstance(error, exceptions.RayTaskError):
        return _of_task(error)
    if isinstance(error, exceptions.RayActorError) and "INTENDED_USER_EXIT" in str(error):
        return _caused(ActorDiedError(f"the actor ended itself, as exit_actor() does. {error}"), error)
    for theirs, ours in _CLASSES:
        if isinstance(error, theirs):
            return _caused(ours(str(error)), error)
    if isinstance(error, exceptions.RayError):
        return _caused(TrainkitError(f"Ray failed: {type(error).__name__}: {error}"), error)
    return error


def refusal(error: BaseException, what: str) -> ConfigError:
    """Return the error for an argument that Ray rejects."""
    return ConfigError(f"Ray refuses {what}: {error}")


def of_start(error: BaseException, address: str) -> ConfigError:
    """Return the error for a failure of `ray.init`."""
    cause: BaseException | None = error
    while cause is not None:
        # Some of Ray's errors for a wrong token have no class of their own.
        if "authentication token" in str(cause).lower():
            return ConfigError(
                f"the Ray cluster at address={address!r} needs its token: set RAY_AUTH_MODE=token, and set "
                "RAY_AUTH_TOKEN to the text that `ray get-auth-token` prints on a machine of the cluster, or "
                f"RAY_AUTH_TOKEN_PATH to a file with this text. Ray said: {cause}"
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, ConnectionError):
        return ConfigError(f"there is no Ray cluster at address={address!r}: {error}")
    return refusal(error, f"init(address={address!r}, ...)")


def _of_task(error: Any) -> BaseException:
    cause = error
    while isinstance(cause, exceptions.RayTaskError):
        # If an argument of a task came from a failed task, the error of the failed task is passed on.
        cause = cause.cause
    if isinstance(cause, UserFailure):
        return raisable(cause.unpacked())
    if isinstance(cause, exceptions.RayError):  # for example, the process that owned an argument died
        return translate(cause)
    failure = unpack_failure(pack_failure(cause, "Ray"))  # Ray's own code raised the error in the worker
    failure.remote_traceback = str(error)
    return raisable(failure)


def _caused(error: TrainkitError, cause: BaseException) -> TrainkitError:
    error.__cause__ = cause
    if isinstance(error, ActorDiedError):
        # SIGTERM reaches all processes of a machine that is taken away; an actor may end before Ray does.
        error.preempted = "its node has died" in str(cause) or "receives a SIGTERM." in str(cause)
    return error
