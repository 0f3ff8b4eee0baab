"""Constants, timers and meters under the names of `ray.util.sgd.utils` and `ray.util.sgd.torch.constants`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainkit.errors import ConfigError
from trainkit.train.keys import BATCH_COUNT, BATCH_SIZE, NUM_SAMPLES, NUM_STEPS, USE_FP16
from trainkit.train.step.timers import TimerCollection, TimerStat

__all__ = [
    "BATCH_COUNT",
    "BATCH_SIZE",
    "NUM_SAMPLES",
    "NUM_STEPS",
    "SCHEDULER_STEP",
    "SCHEDULER_STEP_BATCH",
    "SCHEDULER_STEP_EPOCH",
    "SCHEDULER_STEP_MANUAL",
    "USE_FP16",
    "VALID_SCHEDULER_STEP",
    "AverageMeter",
    "AverageMeterCollection",
    "TimerCollection",
    "TimerStat",
    "override",
]

SCHEDULER_STEP = "scheduler_step"
SCHEDULER_STEP_BATCH = "batch"
SCHEDULER_STEP_EPOCH = "epoch"
SCHEDULER_STEP_MANUAL = "manual"
VALID_SCHEDULER_STEP = {SCHEDULER_STEP_BATCH, SCHEDULER_STEP_EPOCH, SCHEDULER_STEP_MANUAL}

F = TypeVar("F", bound=Callable[..., Any])


class AverageMeter:
    """Mean and last value of one metric.

    Attributes:
        val: last value.
        avg: mean of the values, weighted by `n`.
        sum: weighted sum.
        count: sum of the weights `n`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all values."""
        self.val: Any = 0
        self.avg: Any = 0
        self.sum: Any = 0
        self.count: float = 0

    def update(self, val: Any, n: float = 1) -> None:
        """Add a value: the mean of a metric over `n` samples."""
        self.val = val
        self.sum = self.sum + val * n
        self.count += n
        self.avg = self.sum / self.count


class AverageMeterCollection:
    """Means and last values of the metrics of an epoch, in the form that `train_epoch` and `validate` return.

    trainkit's default training and validation loops do not use this class. These loops count only the real
    samples of an uneven last batch, whereas this class counts all samples.
    """

    def __init__(self) -> None:
        self.n: float = 0
        self._batch_count = 0
        self._meters: defaultdict[str, AverageMeter] = defaultdict(AverageMeter)

    def update(self, metrics: Mapping[str, Any], n: float = 1) -> None:
        """Add the metrics of a batch with `n` samples."""
        self._batch_count += 1
        self.n += n
        for name, value in metrics.items():
            self._meters[str(name)].update(value, n)

    def summary(self) -> dict[str, Any]:
        """Return `batch_count`, `num_samples`, and each metric's mean and last value (as `last_<name>`)."""
        stats: dict[str, Any] = {BATCH_COUNT: self._batch_count, NUM_SAMPLES: self.n}
        for name, meter in self._meters.items():
            stats |= {name: meter.avg, f"last_{name}": meter.val}
        return stats


def override(interface_class: type[Any]) -> Callable[[F], F]:
    """Mark a method as an override; raise ConfigError if `interface_class` has no such method."""

    def mark(method: F) -> F:
        if not hasattr(interface_class, method.__name__):
            raise ConfigError(f"{interface_class.__name__} has no {method.__name__} to override")
        return method

    return mark
