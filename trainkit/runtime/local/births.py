"""What goes between the node and its templates: the making of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainkit.resources import Bundle
from trainkit.runtime.local.messages import Conduct, Surroundings
from trainkit.runtime.specs import PlacementGroupId

# node to template


class WorkerSpec(NamedTuple):
    """All that a fresh process needs to become a worker.

    Attributes:
        serial: this process's number in the session; its references carry it.
        is_actor: ends when its last connection is gone; else when the node says so.
        group_bundles: those of the placement group that it was started in.
        gpus: share of each GPU index it was given, 0 to 1.
        resources: all that it was given.
        namespace: the session's.
        restarts: how often the actor has been made anew before.
        class_name: of an actor.
        actor_name: by which others find it; "" for one that has none.
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
    conduct: Conduct = Conduct()
    restarts: int = 0
    class_name: str = ""
    actor_name: str = ""


class ForkWorker(NamedTuple):
    """Fork a worker.

    Handles: its control connection, its first connection, stdout, stderr, the object store's account.
    """

    spec: WorkerSpec


class Redirect(NamedTuple):
    """Write your output to the handle beside from now on: the program that started you has ended."""


class ForkTemplate(NamedTuple):
    """Fork a template that imports `preload` on top; handle: its connection to the node."""

    preload: frozenset[str]


# template to node


class Forked(NamedTuple):
    """A worker was started; a template's number is 0."""

    serial: int
    pid: int


class ForkFailed(NamedTuple):
    """A worker could not be started."""

    serial: int
    reason: str


class Exited(NamedTuple):
    """A process that this template forked has ended, with the status as `waitpid` gives it."""

    pid: int
    status: int


class Ready(NamedTuple):
    """This template has done its imports."""


class Unusable(NamedTuple):
    """This template cannot fork: what it imported left threads behind, or failed."""

    reason: str
