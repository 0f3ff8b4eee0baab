"""Observers of a worker's steps and libraries, which plugins add; without a plugin, nothing is observed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from trainkit.registry import each

T = TypeVar("T")


class Timed(Protocol):
    """Function that returns a function like `take`; its batches and time are counted, but for `end`."""

    def __call__(self, take: Callable[[], T], end: Any) -> Callable[[], T]: ...


class RankObserver:
    """Observer of what a rank takes from its loaders. This base counts nothing.

    Attributes:
        models: of the rank, as they are wrapped.
    """

    def __init__(self) -> None:
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()

    def timed(self, take: Callable[[], T], end: Any) -> Callable[[], T]:
        """Return the function that takes the batches of a pass over a loader; see `Timed`."""
        return take

    def metered(self, batches: Iterator[T]) -> Iterator[T]:
        """Return an iterator over the same batches."""
        return batches

    def close(self) -> None:
        """End the observation."""


def observe_rank(rank: int, world_size: int, *, trainer: str, group: str) -> RankObserver:
    """Return the observer of this process.

    Args:
        rank: of this worker.
        world_size: number of workers.
        trainer: name of what is trained.
        group: a text that all ranks of the trainer share, and no rank of another trainer.
    """
    for observing in each("trainkit.rank_observers"):
        observer: RankObserver = observing(rank, world_size, trainer=trainer, group=group)
        return observer
    return RankObserver()


def check_libraries() -> None:
    """Let plugins check how the libraries that this process imports will train."""
    for check in each("trainkit.library_checks"):
        check()
