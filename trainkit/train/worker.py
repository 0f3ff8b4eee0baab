"""What runs in each worker of a gang: one operator, its epochs, its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train import checkpoint, process_group, rng
from trainkit.train.context import WorkerContext
from trainkit.train.data import Feed
from trainkit.train.keys import EPOCH
from trainkit.train.metrics import EpochMetrics, to_numbers
from trainkit.train.modules import on_cpu
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import TrainerOptions
from trainkit.train.process_group import Rendezvous, WorkerGroup
from trainkit.train.progress import with_bar
from trainkit.train.spread import detached
from trainkit.train.state import WorkerState, check_state, joined_state
from trainkit.train.strategies.base import Place, Strategy
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
        self._strategy: Strategy = SingleStrategy(Place(devices=(torch.device("cpu"),)))
        self._rank = 0
        self._epoch = 0
        self._spreads = False

    def start(self, spec: WorkerSpec) -> frozenset[str]:
        """Meet the other workers and set up the operator; returns what `data` does."""
        options = spec.options
        self._rank = spec.rank
        if spec.seed is not None:
            rng.seed(spec.seed)
        if options.initialization_hook is not None:
            options.initialization_hook()
        self._strategy = _strategy(spec)
        self._spreads = options.spec.spreads
        context = WorkerContext(
            strategy=self._strategy,
            local_rank=spec.rank,
            step=options.step,
            use_tqdm=options.use_tqdm,
            scheduler_step_freq=options.scheduler_step_freq,
        )
        self._operator = options.training_operator_cls(options.worker_config, context)
        if spec.rank > 0:
            # Set up alike, all workers would from here on drop the same units and augment in the same way.
            # The first one keeps its stream: it is a plain loop's.
            rng.seed(torch.initial_seed() + spec.rank)
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
        if type(operator).train_epoch is not TrainingOperator.train_epoch:
            operator.stepper.check()
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

    def models(self, to_cpu: bool) -> list[nn.Module]:
        """The user's own modules; copies on the CPU, or the live ones."""
        live = [self._strategy.unwrap(model) for model in self._operator.registered.models]
        return [on_cpu(model) for model in live] if to_cpu else live

    def skeletons(self) -> list[nn.Module]:
        """The user's own modules without values; see modules.py."""
        return [self._strategy.skeleton(model) for model in self._operator.registered.models]

    def model_states(self) -> list[dict[str, Any]]:
        """What this worker holds of the models' states, detached."""
        registered = self._operator.registered
        states: list[dict[str, Any]] = detached(self._strategy.state(registered.models, ())["models"])
        return states

    def snapshot(self) -> WorkerState:
        """This worker's share of the state."""
        holds = self._spreads or self._rank == 0
        return WorkerState(detached(self._shared_state()) if holds else None, self.own_state())

    def own_state(self) -> dict[str, Any]:
        """What differs between workers: their generators, and where they are in the data."""
        return {"rng": rng.state(), "data": self._data_state()}

    def restore(self, states: Sequence[WorkerState]) -> None:
        """Take over a snapshot, of this gang or of one with other workers."""
        self._take_over(joined_state(states), "the snapshot")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a trainer's whole state."""
        # Copied: optimizers go on with the very tensors that they are given, which are the caller's.
        self._take_over(cpu_copy(state), "the state")

    def save(self, path: Path, workers: Sequence[Mapping[str, Any]]) -> None:
        """Write a checkpoint.

        Args:
            path: the folder.
            workers: `own_state` of all, by rank.
        """
        world_size = self._strategy.group.world_size
        metadata = checkpoint.Metadata(self._epoch, self._operator.global_step, world_size)
        checkpoint.write(path, {**self._shared_state(), "workers": list(workers)}, metadata)

    def load(self, path: Path) -> None:
        """Take over a checkpoint."""
        state, _ = checkpoint.read(path)
        self._take_over(state, f"the checkpoint {path}")

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

    def _shared_state(self) -> dict[str, Any]:
        operator = self._operator
        return {
            "epoch": self._epoch,
            "global_step": operator.global_step,
            **self._strategy.state(operator.registered.models, operator.registered.optimizers),
            "schedulers": [scheduler.state_dict() for scheduler in operator.registered.schedulers],
            "scaler": operator.stepper.state(),
            "operator": operator.state_dict() or {},
        }

    def _data_state(self) -> dict[str, Any]:
        feeds = {"train": self._operator.train_feed, "validation": self._operator.validation_feed}
        return {name: feed.state() for name, feed in feeds.items() if feed is not None}

    def _load_registered(self, state: Mapping[str, Any]) -> None:
        registered = self._operator.registered
        self._strategy.load_state(registered.models, registered.optimizers, state)
        for scheduler, saved in zip(registered.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self._operator.stepper.load_state(state.get("scaler") or {})

    def _take_over(self, state: Mapping[str, Any], what: str) -> None:
        operator, registered = self._operator, self._operator.registered
        counts = {field.name: len(getattr(registered, field.name)) for field in fields(registered)}
        check_state(state, counts, what)
        before = joined_state([WorkerState(detached(self._shared_state()), self.own_state())])
        try:
            self._load_registered(state)
        except (
            CheckpointError,
            RuntimeError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
        ) as error:
            self._load_registered(before)
            raise CheckpointError(f"{what} does not fit what was registered: {error}") from error
        try:
            operator.load_state_dict(state["operator"])
        except BaseException:
            self._load_registered(before)
            raise
        operator.global_step = state["global_step"]
        self._epoch = state["epoch"]
        self._take_over_own(state.get("workers") or [])

    def _take_over_own(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Go on where the worker of this rank was; one that had none keeps its own generators."""
        if self._rank >= len(workers):
            return
        own = workers[self._rank]
        rng.load(own["rng"])
        for name, feed in (
            ("train", self._operator.train_feed),
            ("validation", self._operator.validation_feed),
        ):
            if feed is not None and name in own["data"]:
                feed.load_state(own["data"][name])


def _strategy(spec: WorkerSpec) -> Strategy:
    options = spec.options
    devices: tuple[torch.device, ...] = (torch.device("cpu"),)
    if options.devices_per_worker:
        devices = tuple(torch.device("cuda", index) for index in range(options.devices_per_worker))
        torch.cuda.set_device(devices[0])
    group = WorkerGroup()
    if spec.rendezvous is not None:
        in_driver = os.getpid() == spec.driver_pid
        if in_driver and options.num_workers > 1 and not (options.use_local and spec.rank == 0):
            raise ConfigError(
                f"num_workers={options.num_workers}, but this engine runs all of them in one process, where "
                f"they can't wait for each other: use num_workers=1, or init() with the local engine"
            )
        group = process_group.join(spec.rendezvous, rank=spec.rank, world_size=options.num_workers)
    place = Place(
        devices=devices, group=group, step=options.step, wrap=options.wrap_ddp, split=options.add_dist_sampler
    )
    return options.spec.build(place)


def _checked(result: Any, method: str) -> Mapping[str, Any]:
    if not isinstance(result, Mapping):
        raise ConfigError(f"{method} returned {result!r}; it returns a dictionary of metrics")
    return to_numbers(result)
