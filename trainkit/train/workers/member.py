"""Base class of a worker group's workers, which start, join each other and end together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
    """Arguments of a trainer that its worker group reads."""

    @property
    def num_workers(self) -> int:
        """Number of workers, which are processes that train together."""

    @property
    def use_local(self) -> bool:
        """True if worker 0 runs in the trainer's own process."""

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
        options: arguments of the trainer, with "auto" resolved.
        rank: this worker's rank, from 0.
        locality: this worker's position among the workers of its machine.
        rendezvous: the workers' rendezvous address; None for a single worker.
        seed: seed of the random generators, equal on all workers during setup; None leaves them unseeded.
        page: file of the `PausePage` by which the trainer asks for a pause; None if the workers can't pause.
    """

    options: Options
    rank: int
    locality: LocalRank
    rendezvous: Rendezvous | None
    seed: int | None
    page: Path | None = None


T = TypeVar("T")


class GroupMember:
    """Worker of a worker group, usually in its own process.

    Each method is called on all workers of the group at the same time, in the same order.
    """

    def __init__(self) -> None:
        self._listener: RendezvousStore | None = None
        self._meter: RankObserver | None = None

    def here(self) -> None:
        """Do nothing; an answer to this call shows that the process is running."""

    def home(self, listens: bool) -> WorkerAddress:
        """Return the machine and address of this worker; called if workers may be on several machines.

        Args:
            listens: True opens the workers' rendezvous store in this process.
        """
        self._listener = RendezvousStore(own_address()) if listens else None
        return WorkerAddress(own_node(), None if self._listener is None else self._listener.place)

    def _metered(self, spec: WorkerSpec[Any], trainer: str) -> RankObserver:
        """Start and return this worker's observer; `trainer` is the name of the training job."""
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
        """End this process as at the end of a program."""
        runtime.exit_actor()
