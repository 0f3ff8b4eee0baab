"""One epoch of training or validation: the loop over batches, its progress bar, modes of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from trainkit.clock import SYSTEM
from trainkit.errors import MissingDependencyError
from trainkit.train.data.feed import Feed
from trainkit.train.data.sharding import Turn
from trainkit.train.step.metrics import EpochMetrics, Meters

_REFRESH_S = 0.1
"""Between two readings of the loss: each waits for the device."""


def require_tqdm() -> None:
    """Raise MissingDependencyError if tqdm is not installed."""
    try:
        import tqdm  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("use_tqdm=True needs tqdm: pip install tqdm") from error


class Bar:
    """Batches, counted on standard error while they are taken, with the last loss behind the count.

    Args:
        batches: what to count; taken once.
        total: how many there will be; None if not known.
        description: stands before the bar.
    """

    def __init__(self, batches: Iterable[Any], *, total: int | None, description: str) -> None:
        self._batches = batches
        self._total = total
        self._description = description
        self._loss: Any = None

    def __iter__(self) -> Iterator[Any]:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

        read_at = -_REFRESH_S
        with tqdm(total=self._total, desc=self._description, unit="batch", leave=True) as bar:
            for batch in self._batches:
                yield batch
                if self._loss is not None and (now := SYSTEM.monotonic()) - read_at >= _REFRESH_S:
                    read_at = now
                    bar.set_postfix(loss=float(self._loss), refresh=False)
                bar.update()
            if self._loss is not None:
                bar.set_postfix(loss=float(self._loss), refresh=False)

    def show(self, metrics: Mapping[str, Any]) -> None:
        """Tell the metrics of the batch that was taken last."""
        self._loss = next((metrics[name] for name in ("train_loss", "val_loss") if name in metrics), None)


def describe(what: str, epoch: int, info: Mapping[str, Any]) -> str:
    """Return the label of the bar: "train 3", or "train 3/10" if the caller's info has `num_epochs`."""
    epochs = f"/{info['num_epochs']}" if "num_epochs" in info else ""
    return f"{what} {epoch}{epochs}"


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


def enter_training(models: Sequence[nn.Module]) -> None:
    """Put `models` into training mode, but leave frozen ones, such as a teacher, as they are."""
    for model in models:
        if not _is_frozen(model):
            model.train()


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Put `models` into evaluation mode; frozen ones are left as they were found."""
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
    parameters = list(model.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
