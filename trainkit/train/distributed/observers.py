"""Observers of a worker's steps and libraries, which plugins add; without a plugin, nothing is observed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from trainkit.registry import each

T = TypeVar("T")


class Timed(Protocol):
    """Function that wraps `take`, to count its batches and their time, except for the value `end`."""

    def __call__(self, take: Callable[[], T], end: Any) -> Callable[[], T]: ...


class RankObserver:
    """Observer of the batches that a rank takes from its loaders. This base class observes nothing.

    Attributes:
        models: wrapped models of the rank.
    """

    def __init__(self) -> None:
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()

    def timed(self, take: Callable[[], T], end: Any) -> Callable[[], T]:
        """Return a wrapped `take`, the function that takes the batches of a pass; see `Timed`."""
        return take

    def metered(self, batches: Iterator[T]) -> Iterator[T]:
        """Return an iterator over the same batches."""
        return batches

    def close(self) -> None:
        """End the observation."""


def observe_rank(rank: int, world_size: int, *, trainer: str, group: str) -> RankObserver:
    """Return the observer of this process.

    Args:
        rank: rank of this worker.
        world_size: number of workers.
        trainer: name of the training job.
        group: a text that all ranks of the trainer share, and that no other trainer has.
    """
    for observing in each("trainkit.rank_observers"):
        observer: RankObserver = observing(rank, world_size, trainer=trainer, group=group)
        return observer
    return RankObserver()


def check_libraries() -> None:
    """Let plugins check how the libraries that this process imports will train."""
    for check in each("trainkit.library_checks"):
        check()
