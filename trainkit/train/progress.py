"""A progress bar over an epoch's batches, by tqdm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import MissingDependencyError

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
    """What stands before the bar: "train 3", or "train 3/10" where the caller's info has `num_epochs`."""
    epochs = f"/{info['num_epochs']}" if "num_epochs" in info else ""
    return f"{what} {epoch}{epochs}"
