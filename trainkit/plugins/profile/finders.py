"""Searches for a learning rate and a batch size, similar to Lightning's `Tuner`.

The learning rate range test trains with many rates, one step with each rate, from small to large, and records
the losses. The search for a batch size doubles the size until memory runs out.

Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186, section 3.3;
Lightning, "Tuner", https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.tuner.tuning.Tuner.html
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from trainkit.errors import ConfigError, MissingDependencyError, TrainingError
from trainkit.train.checkpoint.state import assign
from trainkit.train.data.sharding import FULL_WEIGHT, BatchWeight
from trainkit.train.distributed.process_group import ProcessGroup
from trainkit.train.keys import BATCH_SIZE, NUM_SAMPLES
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import is_count, is_positive
from trainkit.train.trainer import OperatorTrainer
from trainkit.train.workers.worker import Worker
from trainkit.train.workers.worker_group import WorkerGroup
from trainkit.tune.controller.failures import is_out_of_memory

log = logging.getLogger(__name__)

_MEMORY = 0.98
"""Weight of the previous value in the smoothed loss; Lightning's value."""


def learning_rates(mode: str, low: float, high: float, count: int) -> list[float]:
    """Return `count` rates from `low` to `high`, with equal ratios ("exponential") or differences."""
    shares = [index / (count - 1) for index in range(count)]
    if mode == "linear":
        return [low + (high - low) * share for share in shares]
    return [low * (high / low) ** share for share in shares]


@dataclass(frozen=True)
class LRFinder:
    """Result of a learning rate range test.

    Attributes:
        mode: "exponential" or "linear".
        results: `"lr"` contains the tested rates, and `"loss"` the smoothed loss after each rate. Both lists
            are shorter if the test stopped early.
    """

    mode: str
    results: Mapping[str, list[float]]

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """Return the rate at which the loss falls most steeply.

        Args:
            skip_begin: number of losses to ignore at the beginning, which are averages of few values.
            skip_end: number of losses to ignore at the end, where the loss increases.

        Returns:
            The rate; None if fewer than two finite losses remain.
        """
        pairs = zip(self.results["lr"], self.results["loss"], strict=True)
        end = len(self.results["lr"]) - skip_end
        left = [(rate, loss) for rate, loss in list(pairs)[skip_begin:end] if math.isfinite(loss)]
        if len(left) < 2:
            return None
        rates, losses = (torch.tensor(values, dtype=torch.float64) for values in zip(*left, strict=True))
        (slopes,) = torch.gradient(losses, spacing=(rates,))
        return left[int(slopes.argmin())][0]

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """Draw the smoothed losses against the rates.

        Args:
            suggest: True: mark the suggested rate.
            show: show the figure.
            ax: matplotlib axes to draw into; default: axes of a new figure.

        Returns:
            The figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise MissingDependencyError.of("plot() needs matplotlib", "tune", error) from error
        ax = plt.subplots()[1] if ax is None else ax
        rates, losses = self.results["lr"], self.results["loss"]
        ax.plot(rates, losses)
        ax.set(xscale="log" if self.mode == "exponential" else "linear")
        ax.set(xlabel="Learning rate", ylabel="Loss")
        if suggest and (rate := self.suggestion()) is not None:
            ax.plot(rate, losses[rates.index(rate)], markersize=10, marker="o", color="red")
        if show:
            plt.show()
        return ax.figure


class RangeTestOverError(Exception):
    """Raised when the range test ends, after all rates or because the loss has grown too much."""


@dataclass
class RangeTest:
    """Learning rate range test in one worker. All workers record the same losses.

    Args:
        rates: learning rate for each optimizer step.
        metric: name of the loss in the metrics of a step.
        threshold: factor; the test ends when the loss exceeds the best loss so far times this factor. None:
            the test ends only after all rates.
        group: process group of all workers.

    Attributes:
        losses: smoothed losses so far, one for each tested rate.
        optimizers: optimizers whose learning rates the test sets.
    """

    rates: Sequence[float]
    metric: str
    threshold: float | None
    group: ProcessGroup
    losses: list[float] = field(default_factory=list, init=False)
    optimizers: Sequence[torch.optim.Optimizer] = field(default=(), init=False)
    _average: float = field(default=0.0, init=False)
    _sum: float = field(default=0.0, init=False)
    _samples: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Set the learning rate for the next batch."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                assign(group, "lr", self.rates[len(self.losses)])

    def end(self, metrics: Mapping[str, Any], weight: BatchWeight) -> None:
        """Record the loss of a batch from its metrics.

        Raises:
            RangeTestOverError: the range test has ended.
            ConfigError: `metric` is missing from the metrics on all workers.
        """
        if self.metric in metrics and weight.averaged > 0:
            samples = float(metrics.get(NUM_SAMPLES, 1))
            self._sum += float(metrics[self.metric]) * samples
            self._samples += samples
        if not weight.closes_step:
            return
        told = self.group.gather_values((self._sum, self._samples, list(metrics)))
        self._sum = self._samples = 0.0
        samples = math.fsum(count for _, count, _ in told)
        if not samples:
            names = ", ".join(dict.fromkeys(name for *_, names in told for name in names))
            raise ConfigError(
                f"lr_find(metric={self.metric!r}): train_batch returned {names}, but not this metric"
            )
        self._average = _MEMORY * self._average + (1 - _MEMORY) * (sum(total for total, *_ in told) / samples)
        # The average starts at 0. The division corrects the effect of this start value. Source: Kingma and Ba
        # 2015, "Adam", arXiv:1412.6980, section 3.
        self.losses.append(self._average / (1 - _MEMORY ** (len(self.losses) + 1)))
        best = min(self.losses[:-1], default=math.inf)
        grown = self.threshold is not None and not self.losses[-1] <= self.threshold * best
        if grown or len(self.losses) == len(self.rates):
            raise RangeTestOverError


def lr_find(
    trainer: OperatorTrainer,
    min_lr: float,
    max_lr: float,
    num_training: int,
    mode: Literal["exponential", "linear"],
    early_stop_threshold: float | None,
    metric: str,
) -> LRFinder:
    """Implement `TorchTrainer.lr_find`, which documents the arguments."""
    rising = is_positive(min_lr) and is_positive(max_lr) and min_lr < max_lr
    several = is_count(num_training) and num_training > 1
    above = early_stop_threshold is None or (is_positive(early_stop_threshold) and early_stop_threshold > 1)
    mistakes = [
        (f"min_lr and max_lr must be numbers, 0 < min_lr < max_lr, not {min_lr!r} and {max_lr!r}", rising),
        (f"num_training must be an integer of 2 or more, not {num_training!r}", several),
        (f'mode must be "exponential" or "linear", not {mode!r}', mode in ("exponential", "linear")),
        (f"early_stop_threshold must be a number above 1, or None, not {early_stop_threshold!r}", above),
    ]
    _refuse("lr_find", mistakes)
    trainer._require("train")
    rates = learning_rates(mode, min_lr, max_lr, num_training)
    with trainer._workers.as_before("lr_find") as workers:
        losses = workers(None).call("apply_worker", range_test, rates, metric, early_stop_threshold)[0]
    return LRFinder(mode, {"lr": rates[: len(losses)], "loss": losses})


def range_test(worker: Worker, rates: Sequence[float], metric: str, threshold: float | None) -> list[float]:
    """Run a `RangeTest` that trains one step at each of `rates`; return the smoothed losses."""
    operator = worker.operator
    test = RangeTest(rates, metric, threshold, worker._strategy.group)
    begin = getattr(operator, "begin_range_test", None)  # only an operator with its own loop has this method
    if begin is None:
        _begin_range_test(operator, test)
    else:
        begin(test)
    with suppress(RangeTestOverError):
        while (before := len(test.losses)) < len(rates):
            # The last optimizer step of a pass may have fewer batches, so this number of batches is always
            # sufficient for all rates.
            worker.train(len(rates) * worker._accumulation, {})
            if len(test.losses) == before:
                raise ConfigError(
                    "lr_find() measures calls of train_batch, but an epoch made none: call train_batch"
                )
    return test.losses


def _begin_range_test(operator: TrainingOperator, test: RangeTest) -> None:
    train_batch = operator.train_batch
    if not operator._registered.optimizers:
        raise ConfigError("lr_find() needs a registered optimizer: register an optimizer in setup")
    test.optimizers = operator._registered.optimizers

    def tested(batch: Any, batch_info: dict[str, Any]) -> Mapping[str, Any]:
        test.begin()
        metrics = train_batch(batch, batch_info)
        feed = operator._train_feed
        test.end(metrics, FULL_WEIGHT if feed is None else feed.current)
        return metrics

    vars(operator)["train_batch"] = tested


@dataclass
class BatchSizeSearch:
    """Choice of batch sizes to try, in order to find the largest size that fits into memory.

    Attributes:
        mode: "power": double the size until it does not fit, or halve it until it fits. "binsearch": do the
            same, and then try sizes between the largest size that fits and the smallest size that does not
            fit.
        size: size to try next.
        largest: maximum size to try.
        unit: number of which all sizes are multiples.
        fits: largest size that has fitted so far; 0 if no size has fitted.
        fails: smallest size that has not fitted so far; None if all sizes have fitted.
    """

    mode: Literal["power", "binsearch"]
    size: int
    largest: int
    unit: int = 1
    fits: int = 0
    fails: int | None = None

    def told(self, fitted: bool, *, whole: bool = False) -> bool:
        """Record whether `size` fits into memory; return True if a further size should be tried.

        Args:
            fitted: True if the memory was large enough.
            whole: True if a single batch contained all data, so that a larger size would make no difference.
        """
        tried = self.size
        if fitted:
            self.fits = tried
        else:
            self.fails = tried
        if self.fails is None:
            self.size = min(2 * tried, self.largest)
        elif self.mode == "binsearch":
            self.size = (self.fits + self.fails) // 2
        else:
            self.size = self.fits or self.fails // 2
        self.size -= self.size % self.unit
        return not whole and self.size not in (self.fits, self.fails)


def scale_batch_size(
    trainer: OperatorTrainer,
    mode: Literal["power", "binsearch"],
    steps_per_trial: int,
    init_val: int,
    max_trials: int,
    batch_arg_name: str,
    margin: float,
    max_val: int,
) -> int:
    """Implement `TorchTrainer.scale_batch_size`, which documents the arguments."""
    unit = trainer._options.data_ways if batch_arg_name == BATCH_SIZE else 1
    counts = {"steps_per_trial": steps_per_trial, "init_val": init_val, "max_trials": max_trials}
    counts["max_val"] = max_val
    known, possible = list(trainer._options.config), margin == 0 or (is_positive(margin) and margin < 1)
    mistakes = [
        *(
            (f"{name} must be an integer of 1 or more, not {value!r}", is_count(value))
            for name, value in counts.items()
        ),
        (f'mode must be "power" or "binsearch", not {mode!r}', mode in ("power", "binsearch")),
        (f"margin must be at least 0 and below 1, not {margin!r}", possible),
        (
            f"batch_arg_name must be a key of config, which has {known}, not {batch_arg_name!r}",
            batch_arg_name in known,
        ),
    ]
    _refuse("scale_batch_size", mistakes)
    start = f"init_val must be a multiple of {unit} and at most max_val={max_val}, not {init_val}"
    _refuse("scale_batch_size", [(start, init_val <= max_val and init_val % unit == 0)])
    trainer._require("train")
    search = BatchSizeSearch(mode, init_val, max_val, unit)
    with trainer._workers.as_before("scale_batch_size") as workers:
        _try_sizes(trainer, search, max_trials, batch_arg_name, steps_per_trial, workers)
    reduced = int(search.fits * (1 - margin)) if mode == "binsearch" else search.fits
    return max(reduced - reduced % unit, unit)


def _try_sizes(
    trainer: OperatorTrainer,
    search: BatchSizeSearch,
    max_trials: int,
    key: str,
    steps: int,
    workers: Callable[[Mapping[str, Any]], WorkerGroup[Any]],
) -> None:
    failure: BaseException | None = None
    passes: dict[int, int | None] = {}
    for _ in range(max_trials):
        size, fitted = search.size, True
        try:
            group = workers({**trainer._options.config, key: size})
            passes[size] = group.call("apply_worker", try_batches, steps)[0]
        except Exception as error:
            # cuDNN reports a lack of memory with this status.
            if not is_out_of_memory(error) and "CUDNN_STATUS_NOT_SUPPORTED" not in str(error):
                raise
            failure, fitted = error, False
        batches = passes.get(size)
        log.info("scale_batch_size: %d %s", size, "fits" if fitted else "is too large")
        if batches is not None and batches > 1 and batches == passes.get(size // 2):
            raise ConfigError(
                f"scale_batch_size(batch_arg_name={key!r}): a pass has {batches} batches with {size // 2} "
                f"and with {size}: create the loader in setup with batch_size=config[{key!r}]"
            )
        # If a loader drops an incomplete last batch, it may return no batch at this size.
        if not search.told(fitted and batches != 0, whole=batches == 1):
            break
    if not search.fits:
        raise TrainingError(
            f"scale_batch_size: even batches of {size} are too large: use a smaller model, or pass a "
            "smaller init_val"
        ) from failure


def try_batches(worker: Worker, num_steps: int) -> int | None:
    """Train on `num_steps` batches; return the number of batches in a pass over the data; None if unknown."""
    worker.train(num_steps, {})
    feed = worker.operator._train_feed
    return None if feed is None else feed.steps()


def _refuse(method: str, rules: Iterable[tuple[str, bool]]) -> None:
    if wrong := [text for text, right in rules if not right]:
        raise ConfigError(f"{method}: " + "; ".join(wrong))
