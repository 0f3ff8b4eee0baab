"""What a Lightning module logged in an epoch, with the weights that it takes to average it over workers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trainkit.train.metrics import EpochMetrics, Origin


class Logged:
    """Collects what `self.log` left in Lightning's result collections, by the names in `callback_metrics`."""

    def __init__(self) -> None:
        self._values: dict[str, torch.Tensor] = {}
        self._origins: dict[str, Origin] = {}

    def clear(self) -> None:
        """Forget everything: another epoch begins."""
        self._values, self._origins = {}, {}

    def take(self, results: Any, *, last: Origin) -> None:
        """Take all that was logged since the loop began.

        Args:
            results: the loop's collection, before it is reset.
            last: stands behind a value that was logged for a step only.
        """
        for _, metric in results.valid_items():
            meta = metric.meta
            if meta.on_epoch:
                name, forked = results._forked_name(metric, False)
                self._put((name, forked), results._get_cache(metric, False), _origin(metric))
            if meta.on_step and (results.training or not meta.on_epoch):
                name, forked = results._forked_name(metric, True)
                names = (forked,) if meta.on_epoch else (name, forked)
                self._put(names, results._get_cache(metric, True), last)

    def metrics(self) -> EpochMetrics:
        """All of it as numbers."""
        return EpochMetrics({name: float(value) for name, value in self._values.items()}, self._origins)

    def _put(self, names: Sequence[str], value: torch.Tensor | None, origin: Origin) -> None:
        if value is not None:
            self._values.update(dict.fromkeys(names, value))
            self._origins.update(dict.fromkeys(names, origin))


def _origin(metric: Any) -> Origin:
    """What stands behind an epoch's value on this worker."""
    meta = metric.meta
    if not metric.is_tensor or (meta.sync.should and not meta.sync.rank_zero_only):
        return Origin(1.0)  # The same on all workers: a torchmetrics metric, or sync_dist=True.
    if meta.is_mean_reduction:
        return Origin(float(metric.cumulated_batch_size))
    how = "sum" if meta.is_sum_reduction else "max" if meta.is_max_reduction else "min"
    return Origin(1.0, how=how)


class StandIn:
    """A batch whose samples another worker counts: it is run, and leaves no trace in what is logged.

    Args:
        results: the loop's collection.
        module: whose torchmetrics metrics are left as they are.
    """

    def __init__(self, results: Any, module: torch.nn.Module) -> None:
        metric_class = importlib.import_module("torchmetrics").Metric
        self._results = results
        self._logs = results.log
        self._metrics = [
            (metric, _kept(metric, (*metric._defaults, "_update_count", "_computed")))
            for metric in module.modules()
            if isinstance(metric, metric_class)
        ]
        results.log = self._log

    def end(self) -> None:
        """The batch is over, with all of its hooks."""
        vars(self._results).pop("log", None)
        for metric, kept in self._metrics:
            for name, value in kept.items():
                setattr(metric, name, value)

    def _log(self, *args: Any, **kwargs: Any) -> None:
        # Lightning logs as ever, since workers may meet in it.
        before = {key: _kept(metric, _SUMS) for key, metric in self._results.items() if metric.is_tensor}
        self._logs(*args, **kwargs)
        for key, metric in self._results.items():
            if metric.is_tensor:
                vars(metric).update(before.get(key) or copy.deepcopy(metric._defaults))


_SUMS = ("value", "cumulated_batch_size")
"""What a logged value is accumulated in."""


def _kept(metric: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(metric, name)) for name in names if hasattr(metric, name)}


def samples_in(batch: Any) -> int:
    """The size of a batch: the length of the first tensor in it; 1 if there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((samples_in(part) for part in batch if _holds_tensor(part)), 1)
    return 1


def numbers_in(returned: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries of what a step returned that can be averaged: numbers and one-element tensors."""
    return {name: value for name, value in returned.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _holds_tensor(part: Any) -> bool:
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        return any(map(_holds_tensor, part))
    return isinstance(part, torch.Tensor)


def after(method: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """`method`, followed by `then`."""

    def both(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        then()
        return result

    return both
