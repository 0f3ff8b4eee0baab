"""What runs in each worker of a gang: one operator, its epochs, its state."""

from __future__ import annotations

import copy
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train import chance, checkpoint, process_group
from trainkit.train.context import WorkerContext
from trainkit.train.data import Feed
from trainkit.train.keys import EPOCH
from trainkit.train.metrics import EpochMetrics, to_numbers
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import TrainerOptions
from trainkit.train.process_group import Rendezvous, WorkerGroup
from trainkit.train.progress import with_bar
from trainkit.train.strategies.base import Strategy
from trainkit.train.strategies.ddp import DDPStrategy
from trainkit.train.strategies.single import SingleStrategy
from trainkit.train.tensors import cpu_copy

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is told when it starts.

    Attributes:
        options: the trainer's, resolved.
        rank: this worker's number, from 0.
        rendezvous: where the workers meet; None if there is one.
        seed: for the generators, the same on all workers while they set up; None leaves them alone.
        driver_pid: the process of the trainer.
    """

    options: TrainerOptions
    rank: int
    rendezvous: Rendezvous | None
    seed: int | None
    driver_pid: int


class Worker:
    """One of the gang; its methods are called on all workers at once, in the same order."""

    _operator: TrainingOperator

    def __init__(self) -> None:
        self._strategy: Strategy = SingleStrategy(torch.device("cpu"))
        self._rank = 0
        self._epoch = 0

    def here(self) -> None:
        """Answer: this process is there."""

    def start(self, spec: WorkerSpec) -> frozenset[str]:
        """Meet the other workers and set up the operator; returns what `data` does."""
        options = spec.options
        self._rank = spec.rank
        if spec.seed is not None:
            _seed(spec.seed)
        if options.initialization_hook is not None:
            options.initialization_hook()
        self._strategy = _strategy(spec)
        self._strategy_wraps = options.wrap_ddp
        context = WorkerContext(
            strategy=self._strategy,
            local_rank=spec.rank,
            use_tqdm=options.use_tqdm,
            scheduler_step_freq=options.scheduler_step_freq,
        )
        self._operator = options.training_operator_cls(options.worker_config, context)
        if spec.rank > 0:
            # Set up alike, all workers would from here on drop the same units and augment in the same way.
            # The first one keeps its stream: it is a plain loop's.
            _seed(torch.initial_seed() + spec.rank)
        return self.data()

    def data(self) -> frozenset[str]:
        """Which data the operator registered: "train", "validation"."""
        feeds = {"train": self._operator.train_feed, "validation": self._operator.validation_feed}
        return frozenset(name for name, feed in feeds.items() if feed is not None)

    def train(self, num_steps: int | None, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """One epoch of training; `num_steps` batches if it is given."""
        operator = self._operator
        batches = self._batches(operator.train_feed, "train", num_steps)
        details = {**info, "epoch_idx": self._epoch}
        result = operator.train_epoch(batches, details, num_steps=num_steps, epoch_idx=self._epoch)
        if operator.scheduler_step_freq == "epoch":
            self.step_schedulers()
        self._epoch += 1
        checked = _checked(result, "train_epoch")
        origins = checked.origins if isinstance(checked, EpochMetrics) else {}
        return EpochMetrics({EPOCH: self._epoch, **checked}, origins)

    def validate(self, num_steps: int | None, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """One pass over the validation data, or its first `num_steps` batches."""
        operator = self._operator
        batches = self._batches(operator.validation_feed, "validation", num_steps)
        with self._strategy.evaluation():
            return _checked(operator.validate(batches, {**info, "epoch_idx": self._epoch}), "validate")

    def step_schedulers(self, *metric: float) -> None:
        """Step all schedulers, by `metric` if one is given."""
        for scheduler in self._operator.registered.schedulers:
            scheduler.step(*metric)

    def apply(self, function: Callable[[], T]) -> T:
        """Call `function` in this process."""
        return function()

    def apply_operator(self, function: Callable[[TrainingOperator], T]) -> T:
        """Call `function` with this worker's operator."""
        return function(self._operator)

    @property
    def operator(self) -> TrainingOperator:
        """The operator; for a worker in the trainer's own process."""
        return self._operator

    # -- state ---------------------------------------------------------------------------------

    def models(self, on_cpu: bool) -> list[nn.Module]:
        """The user's own modules; copies on the CPU, or the live ones."""
        live = [self._strategy.unwrap(model) for model in self._operator.registered.models]
        return [_cpu_copy(model) for model in live] if on_cpu else live

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint holds, on the CPU."""
        state: dict[str, Any] = cpu_copy(self._state())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, here or on a worker of another gang."""
        # Copied: optimizers go on with the very tensors that they are given, which are the caller's.
        self._take_over(cpu_copy(state), "the state")

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        world_size = self._strategy.group.world_size
        metadata = checkpoint.Metadata(self._epoch, self._operator.global_step, world_size)
        checkpoint.write(path, self._state(), metadata)

    def load(self, path: Path) -> None:
        """Take over a checkpoint."""
        state, _ = checkpoint.read(path)
        self._take_over(state, f"the checkpoint {path}")

    def snapshot(self) -> dict[str, Any]:
        """What this worker needs to go on from here after another one has died."""
        whole = self._rank == 0 or not self._strategy_wraps
        return {"state": self.state_dict() if whole else None, "small": self.small_state()}

    def small_state(self) -> dict[str, Any]:
        """What may change in a validation: generators, and the operator's own state."""
        return {"operator": cpu_copy(self._operator.state_dict() or {}), "chance": chance.capture(self._operator)}

    def restore(self, states: list[dict[str, Any]] | None, small: list[dict[str, Any]] | None) -> None:
        """Take over what `snapshot` returned on the workers of a gang before, and `small_state` since."""
        if states is not None:
            own = states[self._rank] if self._rank < len(states) else states[0]
            self.load_state_dict(own["state"] or states[0]["state"])
        small = small or ([state["small"] for state in states] if states is not None else [])
        self._operator.load_state_dict((small[self._rank] if self._rank < len(small) else small[0])["operator"])
        if self._rank < len(small):
            chance.restore(self._operator, small[self._rank]["chance"])

    def stop(self) -> None:
        """Part from the other workers."""
        self._strategy.leave()

    # -- inside --------------------------------------------------------------------------------

    def _batches(self, feed: Feed | None, what: str, num_steps: int | None) -> Iterable[Any]:
        if feed is None:
            raise ConfigError(f"there is no {what} data: call register_data({what}_loader=...) in setup")
        batches = feed.batches(self._epoch, num_steps)
        if not self._operator.use_tqdm or self._rank > 0:
            return batches
        total = feed.steps() if num_steps is None else num_steps
        return with_bar(batches, total=total, description=f"{what} {self._epoch + 1}")

    def _state(self) -> dict[str, Any]:
        operator = self._operator
        return {
            "epoch": self._epoch,
            "global_step": operator.global_step,
            **self._registered_state(),
            "operator": operator.state_dict() or {},
        }

    def _registered_state(self) -> dict[str, Any]:
        registered = self._operator.registered
        return {
            **self._strategy.state(registered.models, registered.optimizers),
            "schedulers": [scheduler.state_dict() for scheduler in registered.schedulers],
        }

    def _load_registered(self, state: Mapping[str, Any]) -> None:
        registered = self._operator.registered
        self._strategy.load_state(registered.models, registered.optimizers, state)
        for scheduler, saved in zip(registered.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)

    def _take_over(self, state: Mapping[str, Any], what: str) -> None:
        operator, registered = self._operator, self._operator.registered
        if not isinstance(state, Mapping):
            raise CheckpointError(f"{what} is no trainer's state: it is a {type(state).__name__}")
        held: dict[str, list[Any]] = {
            field.name: getattr(registered, field.name) for field in fields(registered)
        }
        missing = sorted({*held, "epoch", "global_step", "operator"} - set(state))
        if missing:
            raise CheckpointError(f"{what} is no trainer's state: it lacks {', '.join(missing)}")
        for name, items in held.items():
            if not isinstance(state[name], (list, tuple)):
                raise CheckpointError(f"{what} is no trainer's state: its {name} are no list")
            if len(state[name]) != len(items):
                raise CheckpointError(
                    f"{what} holds {len(state[name])} {name}, but {len(items)} were registered: load it into "
                    f"the operator that it was saved from"
                )
        before = cpu_copy(self._registered_state())
        try:
            self._load_registered(state)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self._load_registered(before)
            raise CheckpointError(f"{what} does not fit what was registered: {error}") from error
        try:
            operator.load_state_dict(state["operator"])
        except BaseException:
            self._load_registered(before)
            raise
        operator.global_step = state["global_step"]
        self._epoch = state["epoch"]


def _strategy(spec: WorkerSpec) -> Strategy:
    options = spec.options
    device = torch.device("cuda", 0) if options.use_gpu else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if spec.rendezvous is None:
        return SingleStrategy(device)
    if os.getpid() == spec.driver_pid and not (options.use_local and spec.rank == 0):
        raise ConfigError(
            f"num_workers={options.num_workers}, but this engine runs all of them in one process, where "
            f"they can't wait for each other: use num_workers=1, or init() with the local engine"
        )
    group: WorkerGroup = process_group.join(spec.rendezvous, rank=spec.rank, world_size=options.num_workers)
    return DDPStrategy(device, group, wrap=options.wrap_ddp, split=options.add_dist_sampler)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def _checked(result: Any, method: str) -> Mapping[str, Any]:
    if not isinstance(result, Mapping):
        raise ConfigError(f"{method} returned {result!r}; it returns a dictionary of metrics")
    return to_numbers(result)


def _cpu_copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU that takes no memory on the device."""
    copies: dict[int, Any] = {}
    for parameter in model.parameters():
        data = parameter.detach().to("cpu", copy=True)
        copies[id(parameter)] = nn.Parameter(data, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        copies[id(buffer)] = buffer.detach().to("cpu", copy=True)
    # deepcopy takes what is in its memo as copied already.
    return copy.deepcopy(model, copies)
