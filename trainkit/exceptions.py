"""The errors of the runtime by Ray's names, so that `except ray.exceptions.X` needs another first word only.

Each is a class of `trainkit.errors`; where Ray tells apart what is the same here, two names are one class.
"""

from __future__ import annotations

from trainkit.errors import (
    ActorDiedError,
    ConfigError,
    GetTimeoutError,
    InfeasibleError,
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

__all__ = [
    "ActorDiedError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "RayActorError",
    "RayError",
    "RayTaskError",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
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
RuntimeEnvSetupError = ConfigError
ActorUnavailableError = ActorDiedError
ActorUnschedulableError = TaskUnschedulableError = InfeasibleError
ActorPlacementGroupRemoved = ActorDiedError
TaskPlacementGroupRemoved = WorkerDiedError
