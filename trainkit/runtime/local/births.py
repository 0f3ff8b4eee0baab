"""What goes between the node and its templates: the making of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainkit.resources import Bundle
from trainkit.runtime.local.messages import Conduct, Surroundings
from trainkit.runtime.specs import PlacementGroupId

# node to template


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a fresh process needs to become a worker.

    Attributes:
        serial: this process's number in the session; its references carry it.
        is_actor: ends when its last connection is gone; else when the node says so.
        group_bundles: those of the placement group that it was started in.
        gpus: share of each GPU index it was given, 0 to 1.
        resources: all that it was given.
        namespace: the session's.
        restarts: how often the actor has been made anew before.
    """

    worker_id: int
    serial: int
    name: str
    is_actor: bool
    cpus: float
    gpus: Mapping[int, float]
    visible_gpus: Sequence[str]
    totals: Bundle
    group: PlacementGroupId | None
    group_bundles: Sequence[Bundle]
    env: Mapping[str, str]
    cwd: str
    surroundings: Surroundings
    resources: Bundle
    namespace: str
    conduct: Conduct = field(default_factory=Conduct)
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Fork a worker.

    Handles: its control connection, its first connection, stdout, stderr, the object store's account.
    """

    spec: WorkerSpec


class Redirect(NamedTuple):
    """Write your output to the handle beside from now on: the program that started you has ended."""


@dataclass(frozen=True, slots=True)
class ForkTemplate:
    """Fork a template that imports `preload` on top; handle: its connection to the node."""

    preload: frozenset[str]


# template to node


@dataclass(frozen=True, slots=True)
class Forked:
    """A worker was started; a template's number is 0."""

    serial: int
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """A worker could not be started."""

    serial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A process that this template forked has ended, with the status as `waitpid` gives it."""

    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class Ready:
    """This template has done its imports."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """This template cannot fork: what it imported left threads behind, or failed."""

    reason: str
