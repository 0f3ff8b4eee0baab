"""Processes that train together: how each one starts, meets the others and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from trainkit.resources import Bundle
from trainkit.runtime import api as runtime
from trainkit.train.data.rank_meter import RankMeter
from trainkit.train.distributed.rendezvous import (
    LocalRank,
    Rendezvous,
    RendezvousStore,
    WorkerAddress,
    own_address,
    own_node,
)


class GroupOptions(Protocol):
    """The part of a trainer's arguments that its worker group reads."""

    @property
    def num_workers(self) -> int:
        """Processes that train together."""

    @property
    def use_local(self) -> bool:
        """Worker 0 is this process."""

    @property
    def bundle(self) -> Bundle:
        """Resources of each worker."""

    @property
    def meets(self) -> bool:
        """The workers join one process group."""

    @property
    def backend(self) -> str:
        """Name of the process group's backend: "gloo" or "nccl"."""

    @property
    def timeout_s(self) -> float:
        """Seconds that one collective may take."""


Options = TypeVar("Options", bound=GroupOptions, covariant=True)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec(Generic[Options]):
    """Arguments with which a worker starts.

    Attributes:
        options: the trainer's, resolved.
        rank: this worker's number, from 0.
        locality: its number among those of its machine.
        rendezvous: the place where the workers meet; None for a single worker.
        seed: for the generators, equal on all workers while they set up; None leaves them alone.
    """

    options: Options
    rank: int
    locality: LocalRank
    rendezvous: Rendezvous | None
    seed: int | None


T = TypeVar("T")


class GroupMember:
    """One of the processes of a worker group.

    Its methods are called on all members at once, in the same order.
    """

    def __init__(self) -> None:
        self._listener: RendezvousStore | None = None
        self._meter: RankMeter | None = None

    def here(self) -> None:
        """Return once this process is there."""

    def home(self, listens: bool) -> WorkerAddress:
        """Return the address of this worker; asked for where the workers may be on several machines.

        Args:
            listens: let the others meet in this process.
        """
        self._listener = RendezvousStore(own_address()) if listens else None
        return WorkerAddress(own_node(), None if self._listener is None else self._listener.place)

    def _metered(self, spec: WorkerSpec[Any], world_size: int, trainer: str) -> RankMeter:
        """Return the meter of this rank, from here on; `trainer` is the name of what is trained."""
        group = "" if spec.rendezvous is None else spec.rendezvous.place
        self._meter = RankMeter(spec.rank, world_size, trainer=trainer, group=group)
        self._meter.count_steps()
        return self._meter

    def apply(self, function: Callable[[], T]) -> T:
        """Call `function` in this process."""
        return function()

    def stop(self) -> None:
        """Let the user's code end in order, and leave the other workers."""
        self.leave()

    def leave(self) -> None:
        """Leave the other workers at once."""
        self._listener = None
        if self._meter is not None:
            self._meter.close()

    def exit(self) -> None:
        """End this process as a program ends."""
        runtime.exit_actor()
