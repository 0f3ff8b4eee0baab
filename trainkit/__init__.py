"""Train PyTorch models on many workers, tune anything, search over scikit-learn estimators.

    from trainkit.train import TorchTrainer, TrainingOperator
    from trainkit import tune

Everything here is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainkit.compat import finder

finder.install()

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainkit import actor as actor
    from trainkit import air as air
    from trainkit import cloudpickle as cloudpickle
    from trainkit import errors as errors
    from trainkit import exceptions as exceptions
    from trainkit import runtime_context as runtime_context
    from trainkit import runtime_env as runtime_env
    from trainkit import sklearn as sklearn
    from trainkit import train as train
    from trainkit import tune as tune
    from trainkit import util as util
    from trainkit.runtime.api import available_resources as available_resources
    from trainkit.runtime.api import cancel as cancel
    from trainkit.runtime.api import cluster_resources as cluster_resources
    from trainkit.runtime.api import exit_actor as exit_actor
    from trainkit.runtime.api import get as get
    from trainkit.runtime.api import get_actor as get_actor
    from trainkit.runtime.api import get_current_placement_group as get_current_placement_group
    from trainkit.runtime.api import get_gpu_ids as get_gpu_ids
    from trainkit.runtime.api import get_placement_group as get_placement_group
    from trainkit.runtime.api import get_runtime_context as get_runtime_context
    from trainkit.runtime.api import init as init
    from trainkit.runtime.api import is_initialized as is_initialized
    from trainkit.runtime.api import kill as kill
    from trainkit.runtime.api import list_actors as list_actors
    from trainkit.runtime.api import list_objects as list_objects
    from trainkit.runtime.api import list_placement_groups as list_placement_groups
    from trainkit.runtime.api import list_tasks as list_tasks
    from trainkit.runtime.api import method as method
    from trainkit.runtime.api import nodes as nodes
    from trainkit.runtime.api import placement_group as placement_group
    from trainkit.runtime.api import put as put
    from trainkit.runtime.api import remote as remote
    from trainkit.runtime.api import remove_placement_group as remove_placement_group
    from trainkit.runtime.api import shutdown as shutdown
    from trainkit.runtime.api import wait as wait
    from trainkit.runtime.specs import ActorID as ActorID
    from trainkit.runtime.specs import JobID as JobID
    from trainkit.runtime.specs import NodeID as NodeID
    from trainkit.runtime.specs import ObjectRef as ObjectID
    from trainkit.runtime.specs import ObjectRef as ObjectRef
    from trainkit.runtime.specs import PlacementGroupID as PlacementGroupID
    from trainkit.runtime.specs import TaskID as TaskID
    from trainkit.runtime.specs import WorkerID as WorkerID
    from trainkit.runtime.streams import ObjectRefGenerator as ObjectRefGenerator

_VERBS = (
    "available_resources",
    "cancel",
    "cluster_resources",
    "exit_actor",
    "get",
    "get_actor",
    "get_current_placement_group",
    "get_gpu_ids",
    "get_placement_group",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "list_actors",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "method",
    "nodes",
    "placement_group",
    "put",
    "remote",
    "remove_placement_group",
    "shutdown",
    "wait",
)
_IDS = ("ActorID", "JobID", "NodeID", "PlacementGroupID", "TaskID", "WorkerID")
_TYPES = {
    **dict.fromkeys(_IDS, "trainkit.runtime.specs"),
    "ObjectRef": "trainkit.runtime.specs",
    "ObjectRefGenerator": "trainkit.runtime.streams",
}
_ROOMS = (
    "actor",
    "air",
    "cloudpickle",
    "errors",
    "exceptions",
    "runtime_context",
    "runtime_env",
    "sklearn",
    "train",
    "tune",
    "util",
)

__all__ = ["ObjectID", "__version__", *_ROOMS, *_TYPES, *_VERBS]


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        value = getattr(importlib.import_module("trainkit.runtime.api"), name)
    elif name in _TYPES:
        value = getattr(importlib.import_module(_TYPES[name]), name)
    elif name == "ObjectID":  # an older name of Ray's
        value = importlib.import_module(_TYPES["ObjectRef"]).ObjectRef
    elif name in _ROOMS:
        value = importlib.import_module(f"trainkit.{name}")
    else:
        raise AttributeError(f"module 'trainkit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
