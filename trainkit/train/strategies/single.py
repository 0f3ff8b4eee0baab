"""Strategy for one worker with one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainkit.train.strategies.base import Place, StepSettings, Strategy, StrategySpec


@dataclass(frozen=True, kw_only=True)
class Single(StrategySpec):
    """One worker that trains the whole model on one device; the default with `num_workers=1`."""

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        if num_workers > 1:
            yield f"this strategy uses only one worker, but num_workers={num_workers}: pass DDP()"

    def build(self, place: Place) -> Strategy:
        return SingleStrategy(place)


class SingleStrategy(Strategy):
    """Training of the whole model on one device, on all batches of the user's loader."""
