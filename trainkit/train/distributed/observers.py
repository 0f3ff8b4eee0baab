"""Hooks for plugins that observe a worker's batches and libraries; without a plugin, nothing is observed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from trainkit.registry import each

T = TypeVar("T")


class Timed(Protocol):
    """Wrapper that counts batches and their time.

    `take` is a function that returns the next batch, or `end` after the last batch.
    """

    def __call__(self, take: Callable[[], T], end: Any) -> Callable[[], T]: ...


class RankObserver:
    """Observer of the batches that one worker takes from its loaders. This base class observes nothing.

    Attributes:
        models: models of this worker, as wrapped for training.
    """

    def __init__(self) -> None:
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()

    def timed(self, take: Callable[[], T], end: Any) -> Callable[[], T]:
        """Return a wrapper of `take`, the function that returns the next batch of a pass; see `Timed`."""
        return take

    def metered(self, batches: Iterator[T]) -> Iterator[T]:
        """Return an iterator over the same batches, which may count them."""
        return batches

    def close(self) -> None:
        """End the observation."""


def observe_rank(rank: int, world_size: int, *, trainer: str, group: str) -> RankObserver:
    """Make the observer of this process: the observer of a plugin, or an observer that does nothing.

    Args:
        rank: rank of this worker.
        world_size: number of workers.
        trainer: name of the training job.
        group: text that identifies the trainer. The text is equal on all workers of the trainer, and
            different for any other trainer.
    """
    for observing in each("trainkit.rank_observers"):
        observer: RankObserver = observing(rank, world_size, trainer=trainer, group=group)
        return observer
    return RankObserver()


def check_libraries() -> None:
    """Let plugins check the libraries that this process trains with."""
    for check in each("trainkit.library_checks"):
        check()
