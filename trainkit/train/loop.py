"""One epoch: training and validation are the same loop, given the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainkit.train.data import Feed
from trainkit.train.metrics import EpochMetrics, Meters
from trainkit.train.progress import Bar
from trainkit.train.turns import Turn

Step = Callable[[Any, dict[str, Any]], Mapping[str, Any]]
"""`train_batch` or `validate_batch`: (batch, batch_info) to metrics."""


def run_epoch(
    step: Step,
    batches: Iterable[Any],
    *,
    feed: Feed,
    info: Mapping[str, Any],
    first_step: int = 0,
    before_step: Callable[[Turn], None] | None = None,
    after_step: Callable[[], None] | None = None,
    ahead: Callable[[Iterable[Any]], Iterable[Any]] | None = None,
) -> EpochMetrics:
    """Run `step` on each batch and return the epoch's metrics.

    Args:
        step: called with the batch and a dictionary: `info`, `batch_idx` and `global_step`.
        batches: this worker's batches of the epoch.
        feed: where the batches come from; it knows which of them hold samples to be counted.
        info: passed on to every step.
        first_step: the `global_step` of the first batch.
        before_step: called before each step, with its turn.
        after_step: called after each step, such as a scheduler's step.
        ahead: batches to the same batches, brought to the device beforehand.
    """
    meters = Meters()
    bar = batches if isinstance(batches, Bar) else None
    for index, batch in enumerate(batches if ahead is None else ahead(batches)):
        turn = feed.begin_step()
        if before_step is not None:
            before_step(turn)
        metrics = step(batch, {**info, "batch_idx": index, "global_step": first_step + index})
        if after_step is not None:
            after_step()
        meters.add(metrics, counted=turn.weight > 0)
        if bar is not None:
            bar.show(metrics)
    return meters.result()
