"""Member of a worker group: how its process starts, joins the other workers and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from trainkit.resources import Bundle
from trainkit.runtime import api as runtime
from trainkit.train.distributed.observers import RankObserver, observe_rank
from trainkit.train.distributed.rendezvous import (
    LocalRank,
    Rendezvous,
    RendezvousStore,
    WorkerAddress,
    own_address,
    own_node,
)


class GroupOptions(Protocol):
    """Part of a trainer's arguments that its worker group reads."""

    @property
    def num_workers(self) -> int:
        """Number of processes that train together."""

    @property
    def use_local(self) -> bool:
        """True if worker 0 is this process."""

    @property
    def bundle(self) -> Bundle:
        """Resources of each worker."""

    @property
    def meets(self) -> bool:
        """True if the workers join one process group."""

    @property
    def backend(self) -> str:
        """Name of the process group's backend: "gloo" or "nccl"."""

    @property
    def timeout_s(self) -> float:
        """Time limit of one collective, in seconds."""


Options = TypeVar("Options", bound=GroupOptions, covariant=True)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec(Generic[Options]):
    """Arguments with which a worker starts.

    Attributes:
        options: the trainer's resolved options.
        rank: this worker's rank, from 0.
        locality: this worker's position among the workers of its machine.
        rendezvous: the workers' rendezvous address; None for a single worker.
        seed: seed of the generators, equal on all workers during setup; None: the generators are not seeded.
    """

    options: Options
    rank: int
    locality: LocalRank
    rendezvous: Rendezvous | None
    seed: int | None


T = TypeVar("T")


class GroupMember:
    """Process of a worker group.

    The methods are called on all members at the same time, in the same order.
    """

    def __init__(self) -> None:
        self._listener: RendezvousStore | None = None
        self._meter: RankObserver | None = None

    def here(self) -> None:
        """Do nothing; a result shows that this process is running."""

    def home(self, listens: bool) -> WorkerAddress:
        """Return the address of this worker; called if the workers may be on several machines.

        Args:
            listens: True to open the workers' rendezvous store in this process.
        """
        self._listener = RendezvousStore(own_address()) if listens else None
        return WorkerAddress(own_node(), None if self._listener is None else self._listener.place)

    def _metered(self, spec: WorkerSpec[Any], trainer: str) -> RankObserver:
        """Start and return the observer of this rank; `trainer` is the name of the training job."""
        group = "" if spec.rendezvous is None else spec.rendezvous.place
        self._meter = observe_rank(spec.rank, spec.options.num_workers, trainer=trainer, group=group)
        return self._meter

    def apply(self, function: Callable[[], T]) -> T:
        """Call `function` in this process."""
        return function()

    def stop(self) -> None:
        """Let the user's code end cleanly, and leave the other workers."""
        self.leave()

    def leave(self) -> None:
        """Leave the other workers immediately."""
        self._listener = None
        if self._meter is not None:
            self._meter.close()

    def exit(self) -> None:
        """End this process like a program."""
        runtime.exit_actor()
