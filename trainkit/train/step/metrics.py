"""Means of metrics over an epoch and over workers, weighted by the number of samples of each value.

step's metrics ──▶ Meters (tensors stay on their device) ──epoch's end──▶ EpochMetrics ──▶ reduce_metrics
                                                                          one a worker      of all workers
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch

from trainkit.errors import ConfigError
from trainkit.train.keys import BATCH_COUNT, EPOCH, NUM_SAMPLES

_CHUNK = 512
"""Number of values after which single tensors are packed into one, to limit the memory of an epoch."""


@dataclass(frozen=True)
class Origin:
    """Origin of a metric's value: the number of samples, the step, and the rule to combine workers' values.

    Attributes:
        weight: number of samples that the value is a mean over.
        step: step of the epoch that the value comes from; 0 for a mean over the epoch.
        how: rule by which the workers' values are combined: "mean", "sum", "max" or "min".
        broken_at: first step of the epoch in which the metric was not finite; None if it was always finite.
    """

    weight: float
    step: int = 0
    how: str = "mean"
    broken_at: int | None = None


class EpochMetrics(dict[str, Any]):
    """One worker's metrics of an epoch: a dictionary that also has the origin of each value."""

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, Origin]) -> None:
        super().__init__(values)
        self.origins = dict(origins)

    def __reduce__(self) -> tuple[type[EpochMetrics], tuple[dict[str, Any], dict[str, Origin]]]:
        return EpochMetrics, (dict(self), self.origins)


class _Series:
    """Values of one metric in an epoch, with their weights."""

    __slots__ = ("chunks", "pending", "steps", "weights")

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.chunks: list[torch.Tensor] = []
        self.weights: list[float] = []
        self.steps: list[int] = []

    def pack(self, name: str) -> None:
        if self.pending:
            self.chunks.append(_pack(name, self.pending))
            self.pending = []

    def values(self, name: str) -> torch.Tensor:
        self.pack(name)
        # In an epoch, only this line waits for the device. Sums are computed on the CPU, because some devices
        # do not support float64.
        return torch.cat([chunk.cpu().double() for chunk in self.chunks])


class Meters:
    """Collector of the metrics of an epoch's steps; `add` never waits for the device."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._steps = 0
        self._samples: float = 0

    def add(self, metrics: Mapping[str, Any], *, counted: bool = True) -> None:
        """Add the metrics of one step.

        Args:
            metrics: numbers or one-element tensors by name. The entry `num_samples` is the weight of the
                metrics; a missing entry means 1.
            counted: False if the step only repeats samples. The step itself still counts, but its samples and
                metrics don't count.

        Raises:
            ConfigError: `metrics` is not a dictionary.
        """
        step = self._steps
        self._steps += 1
        if not counted:
            return
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"a step returned {metrics!r}: train_batch and validate_batch must return a dictionary of "
                "metrics, such as {'train_loss': loss, 'num_samples': len(target)}"
            )
        weight = metrics.get(NUM_SAMPLES, 1)
        self._samples += weight
        for name, value in metrics.items():
            if name == NUM_SAMPLES:
                continue
            series = self._series.get(name)
            if series is None:
                series = self._series[name] = _Series()
            # The value is detached, because a loss that is not detached would keep all activations in memory.
            series.pending.append(value.detach() if getattr(value, "requires_grad", False) else value)
            series.weights.append(weight)
            series.steps.append(step)
            if len(series.pending) >= _CHUNK:
                series.pack(name)

    def state(self) -> dict[str, Any]:
        """Return the collected metrics as plain values and tensors on the CPU."""
        series = {
            name: {
                "values": each.values(name),
                "weights": torch.tensor(each.weights, dtype=torch.float64),
                "steps": torch.tensor(each.steps),
            }
            for name, each in self._series.items()
        }
        return {"steps": self._steps, "samples": float(self._samples), "series": series}

    @classmethod
    def of(cls, states: Sequence[Mapping[str, Any]]) -> Meters:
        """Return a collector with the metrics of `states`, results of `state` of one or several workers."""
        meters = cls()
        for state in states:
            meters._steps = max(meters._steps, state["steps"])
            meters._samples += state["samples"]
            for name, held in state["series"].items():
                series = meters._series.setdefault(name, _Series())
                series.chunks.append(held["values"])
                series.weights += held["weights"].tolist()
                series.steps += held["steps"].tolist()
        return meters

    def result(self) -> EpochMetrics:
        """Return each metric's sample-weighted mean and, under `last_<name>`, its last value.

        Raises:
            ConfigError: a metric is not a number.
        """
        samples = int(self._samples) if self._samples == int(self._samples) else self._samples
        values: dict[str, Any] = {BATCH_COUNT: self._steps, NUM_SAMPLES: samples}
        origins: dict[str, Origin] = {}
        for name, series in self._series.items():
            data = series.values(name)
            weights = torch.tensor(series.weights, dtype=torch.float64)
            weight = float(weights.sum())
            # A value with weight 0 may be NaN, because it is a mean over no samples. Such a value must not
            # affect the mean.
            counted = torch.where(weights == 0, 0.0, data)
            values[name] = float(torch.dot(counted, weights)) / weight if weight else math.nan
            values[f"last_{name}"] = float(data[-1])
            is_finite = math.isfinite(values[name])
            broken = [] if is_finite else (~torch.isfinite(data)).nonzero().flatten().tolist()
            origins[name] = Origin(weight, broken_at=series.steps[broken[0]] if broken else None)
            origins[f"last_{name}"] = Origin(float(weights[-1]), series.steps[-1])
        return EpochMetrics(values, origins)


def reduce_metrics(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the results of all workers into one result.

    Numbers become means, weighted by samples. For `last_` metrics, only values of the latest step count.
    Numbers of samples are added. For values that are not numbers, the first worker's value is used.

    Args:
        results: one result for each worker, by rank; at least one.
    """
    reduced: dict[str, Any] = {}
    for name in dict.fromkeys(name for result in results for name in result):
        held = [result for result in results if name in result]
        values = [result[name] for result in held]
        if not all(isinstance(value, Number) for value in values) or isinstance(values[0], bool):
            reduced[name] = values[0]
        elif name in (BATCH_COUNT, EPOCH):
            reduced[name] = max(values)
        elif name == NUM_SAMPLES:
            reduced[name] = sum(values)
        else:
            reduced[name] = _combined(values, [_origin(result, name) for result in held])
    return reduced


def not_finite(results: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return a warning about the first metric that became NaN or infinite; None if all are finite.

    Args:
        results: results of the workers, by rank.
    """
    found: list[tuple[float, int, str]] = []
    for rank, result in results.items():
        origins = result.origins if isinstance(result, EpochMetrics) else {}
        found += [(at.broken_at, rank, name) for name, at in origins.items() if at.broken_at is not None]
        # If a user's own loop has returned the result, the step in which the metric became NaN or infinite is
        # unknown.
        found += [
            (math.inf, rank, name)
            for name, value in result.items()
            if name not in origins and isinstance(value, float) and not math.isfinite(value)
        ]
    if not found:
        return None
    step, rank, name = min(found)
    where = f"on worker {rank}" if step == math.inf else f"from batch_idx {step} on, first on worker {rank}"
    others = sorted({other for _, _, other in found} - {name})
    return f"{name} is NaN or infinite {where}" + (f"; so are {', '.join(others)}" if others else "")


def to_numbers(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `result` with numbers in place of one-element tensors, so that it can be sent, stored and
    compared.
    """
    tensors = {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        return result
    plain = {**result, **{name: value.item() for name, value in tensors.items() if value.numel() == 1}}
    return EpochMetrics(plain, result.origins) if isinstance(result, EpochMetrics) else plain


def _origin(result: Mapping[str, Any], name: str) -> Origin:
    origins = result.origins if isinstance(result, EpochMetrics) else {}
    return origins.get(name) or Origin(float(result.get(NUM_SAMPLES, 1)))


def _combined(values: Sequence[float], origins: Sequence[Origin]) -> float:
    how = origins[0].how
    if how == "mean":
        return _weighted_mean(values, origins)
    return math.fsum(values) if how == "sum" else max(values) if how == "max" else min(values)


def _weighted_mean(values: Sequence[float], origins: Sequence[Origin]) -> float:
    """Return the weighted mean of the values of the latest step, or their plain mean if all weights are 0."""
    latest = max(origin.step for origin in origins)
    pairs = zip(values, origins, strict=True)
    chosen = [(value, origin.weight) for value, origin in pairs if origin.step == latest]
    total = math.fsum(weight for _, weight in chosen)
    if total == 0:
        return math.fsum(value for value, _ in chosen) / len(chosen)
    return math.fsum(value * weight for value, weight in chosen if weight) / total


def _pack(name: str, values: Sequence[Any]) -> torch.Tensor:
    if all(isinstance(value, torch.Tensor) and value.numel() == 1 for value in values):
        return torch.cat([value.reshape(1) for value in values])
    return torch.tensor([_number(name, value) for value in values], dtype=torch.float64)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f": {value!r}"
        raise ConfigError(
            f"metric {name!r} is a {type(value).__name__}{shape}; return numbers or one-element tensors"
        ) from error
