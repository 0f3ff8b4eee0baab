"""Epoch of training or validation: the loop over batches, its progress bar, and train and eval modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from trainkit.clock import SYSTEM
from trainkit.errors import MissingDependencyError
from trainkit.train.data.feed import Batch
from trainkit.train.data.sharding import BatchWeight
from trainkit.train.step.metrics import EpochMetrics, Meters

_REFRESH_S = 0.1
"""Seconds between two readings of the loss for the bar.

Readings are rare, because each reading waits for the device.
"""


def require_tqdm() -> None:
    """Raise MissingDependencyError if tqdm is not installed."""
    try:
        import tqdm  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("use_tqdm=True needs tqdm: pip install tqdm") from error


class ProgressBar:
    """Progress bar on standard error that counts an epoch's batches and shows the last loss.

    Args:
        total: number of batches; None if unknown.
        description: text before the bar.
        initial: number of batches that were finished before.
    """

    def __init__(self, *, total: int | None, description: str, initial: int = 0) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

        self._bar = tqdm(total=total, desc=description, unit="batch", leave=True, initial=initial)
        self._loss: Any = None
        self._read_at = -_REFRESH_S

    def show(self, metrics: Mapping[str, Any]) -> None:
        """Store the loss in the metrics of the current batch, to show it later."""
        self._loss = next((metrics[name] for name in ("train_loss", "val_loss") if name in metrics), None)

    def advance(self) -> None:
        """Count one finished batch."""
        if self._loss is not None and (now := SYSTEM.monotonic()) - self._read_at >= _REFRESH_S:
            self._read_at = now
            self._bar.set_postfix(loss=float(self._loss), refresh=False)
        self._bar.update()

    def close(self) -> None:
        """End the bar's line, after the last loss is shown."""
        if self._loss is not None:
            self._bar.set_postfix(loss=float(self._loss), refresh=False)
        self._bar.close()


def describe(what: str, epoch: int, info: Mapping[str, Any]) -> str:
    """Return the text before the bar: "train 3", or "train 3/10" if `info` has `num_epochs`."""
    return f"{what} {epoch}/{info['num_epochs']}" if "num_epochs" in info else f"{what} {epoch}"


class EpochBatches(Iterator[Any]):
    """Iterator over an epoch's batches for a user's own loop; it yields the data without the weights.

    Args:
        batches: batches of the feed, with their weights.
        bar: progress bar that counts the batches.
        first: number of batches of the epoch that were finished before, in an interrupted run.
        meters: metrics of the batches before the interruption, to which the loop adds the metrics of the
            other batches.
        pause: function of the number of finished batches of the epoch, called after each step of the default
            loop, and when another loop requests a further batch. The argument is None if the other loop has
            not called `add` once for each batch, because this loop may keep results that a later process
            would not have.
        total: function that returns the number of batches of the whole epoch, which is equal on all workers;
            None if unknown.

    Attributes:
        counted: False if the current batch only repeats other samples, so that its metrics do not count.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        bar: ProgressBar | None = None,
        *,
        first: int = 0,
        meters: Meters | None = None,
        pause: Callable[[int | None], None] | None = None,
        total: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.bar = bar
        self.first = first
        self.meters = Meters() if meters is None else meters
        self.pause = pause
        self._batches = batches
        self._begun = False
        self._given = self._added = first
        self._total = total
        self.counted = True

    def __next__(self) -> Any:
        # After the last batch, no pause is needed, because the loop soon returns its result, and because no
        # batch would be left after the pause.
        if self.pause is not None and self._begun and self._given != self._total():
            self.pause(self._given if self._added == self._given else None)
        if (batch := self._take()) is None:
            raise StopIteration
        self._given += 1
        self.counted = batch.weight.averaged > 0
        return batch.data

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of the current batch to the result."""
        self._added += 1
        self.meters.add(metrics, counted=self.counted)
        if self.bar is not None:
            self.bar.show(metrics)

    def result(self) -> EpochMetrics:
        """Return the metrics of all batches of the epoch, including the batches before an interruption."""
        return self.meters.result()

    def weighted(self) -> Iterator[Batch]:
        """Return an iterator over the batches with their weights."""
        return self._batches if self.bar is None else iter(self._take, None)

    def _take(self) -> Batch | None:
        if self.bar is not None and self._begun:
            self.bar.advance()
        batch = next(self._batches, None)
        self._begun = batch is not None
        return batch


Step = Callable[[Any, dict[str, Any]], Mapping[str, Any]]
"""The method `train_batch` or `validate_batch`: a function of (batch, batch_info) that returns metrics."""


def run_epoch(
    step: Step,
    batches: Iterable[Batch],
    *,
    info: Mapping[str, Any],
    epoch: EpochBatches | None = None,
    first_step: int = 0,
    before_step: Callable[[BatchWeight], None] | None = None,
    after_step: Callable[[], None] | None = None,
) -> EpochMetrics:
    """Run `step` on each batch and return the epoch's metrics.

    Args:
        step: function of the batch and of a dictionary with the entries of `info`, `batch_idx` and
            `global_step`.
        batches: this worker's batches of the epoch.
        info: dictionary whose entries are passed to every step.
        epoch: the epoch's iterator, with its progress bar and the metrics of its earlier part; None if the
            epoch has neither.
        first_step: the `global_step` of the first batch.
        before_step: function called before each step, with the weight of the batch.
        after_step: function called after each step, for example to step a scheduler.
    """
    epoch = epoch or EpochBatches(iter(()))
    for index, (data, weight) in enumerate(batches, epoch.first):
        if before_step is not None:
            before_step(weight)
        metrics = step(data, {**info, "batch_idx": index, "global_step": first_step + index - epoch.first})
        if after_step is not None:
            after_step()
        epoch.counted = weight.averaged > 0
        epoch.add(metrics)
        if epoch.pause is not None and weight.closes_step:
            epoch.pause(index + 1)
    return epoch.result()


def enter_training(models: Sequence[nn.Module]) -> None:
    """Put `models` into training mode, except models without trainable parameters, such as a teacher."""
    for model in models:
        if not _is_frozen(model):
            model.train()


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Put `models` into evaluation mode in the block; after the block, frozen models have their previous mode
    again.
    """
    frozen = [module for model in models if _is_frozen(model) for module in model.modules()]
    before = [(module, module.training) for module in frozen]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _is_frozen(model: nn.Module) -> bool:
    return not any(p.requires_grad for p in model.parameters()) and any(True for _ in model.parameters())
