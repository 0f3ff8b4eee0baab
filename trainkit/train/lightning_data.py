"""What an operator registers where Lightning makes the loaders and runs through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainkit.train.data import Feed
from trainkit.train.process_group import WorkerGroup


class Data(Feed):
    """Stands for a loader that Lightning makes and runs through; keeps what its order hangs on."""

    def __init__(self) -> None:
        super().__init__((), group=WorkerGroup(), training=False)
        self.num_steps: int | None = None
        self.over = False
        self._real: Feed | None = None
        self._held: Mapping[str, Any] = {}

    def batches(self, epoch_idx: int = 0, num_steps: int | None = None) -> Iterator[Any]:
        self.num_steps, self.over = num_steps, False
        return self._ticks()

    def _ticks(self) -> Iterator[None]:
        # Lightning has the batches: what is taken here only counts them.
        while not self.over:
            yield None

    def attach(self, feed: Feed) -> None:
        """Lightning has made the loader."""
        self._real = feed
        feed.load_state(self._held)
        self._held = {}

    def steps(self) -> int | None:
        return None if self._real is None else self._real.steps()

    def state(self) -> dict[str, Any]:
        return dict(self._held) if self._real is None else self._real.state()

    def load_state(self, held: Mapping[str, Any]) -> None:
        if self._real is None:
            self._held = held
        else:
            self._real.load_state(held)


@contextmanager
def ticking(feed: Feed | None, iterator: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """What counts the batches of a block: whoever wrapped the feed's batches sees them end with it."""
    ticks = iter(iterator)
    try:
        yield ticks
    finally:
        if isinstance(feed, Data):
            feed.over = True
            next(ticks, None)
