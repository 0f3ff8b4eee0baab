"""Base classes of strategies, which distribute a model over workers, and a table of strategies' names.

    TorchTrainer(strategy=FSDP())          frozen, picklable; says how many workers hold one copy of the model
        └─ build(place) ──▶ Strategy       one on every worker: where a model lives, who sees which data, how
                                           backward runs, and which part of the state is here

A user's own strategy needs a subclass of `StrategySpec` and one of `Strategy`. A training step only calls
`forward_backward` (or `backward`) and `clip`. All other methods of a strategy are called before the first
step or between epochs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.registry import Registry
from trainkit.train.data.feed import Feed, Uneven, make_feed
from trainkit.train.distributed.mesh import degree_mistakes
from trainkit.train.distributed.process_group import ProcessGroup
from trainkit.train.distributed.tensors import device_of, to_device, whole
from trainkit.train.strategies.modules import compile_in_place, lies_elsewhere, skeleton

log = logging.getLogger(__name__)

Precision = Literal["32", "bf16", "fp16"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Arguments of `TorchTrainer` for single training steps; `TorchTrainer` documents each of them."""

    precision: Precision = "32"
    grad_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    compile: bool = False
    channels_last: bool = False
    detect_nan: bool = False
    ema_decay: float | None = None

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return a context manager in which torch runs suitable operations on `device` in `precision`."""
        dtype = _AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)

    @property
    def needs_backward(self) -> bool:
        """True if a user's own step must call `backward(loss)` instead of `loss.backward()`."""
        return self.precision == "fp16" or self.grad_accumulation_steps > 1 or self.detect_nan

    @property
    def needs_optimizer_step(self) -> bool:
        """True if a user's own step must call `optimizer_step()` instead of `optimizer.step()`."""
        return bool(self.asked_for)

    @property
    def asked_for(self) -> str:
        """Text of the settings that need `optimizer_step()`, in the user's notation."""
        given = [
            ("precision", self.precision, self.precision == "fp16"),
            ("grad_accumulation_steps", self.grad_accumulation_steps, self.grad_accumulation_steps > 1),
            ("max_grad_norm", self.max_grad_norm, self.max_grad_norm is not None),
            ("ema_decay", self.ema_decay, self.ema_decay is not None),
        ]
        return " with ".join(f"{name}={value!r}" for name, value, asked in given if asked)


Models = Sequence[nn.Module]
Optimizers = Sequence[torch.optim.Optimizer]
Criterion = Callable[..., torch.Tensor]
"""Loss function of (output, target), which returns the mean over the batch."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Devices, process group and settings from which a worker builds its strategy.

    Attributes:
        devices: devices of this worker; its batches go to the first device.
        group: all workers of the trainer.
        step: settings for precision, accumulation, clipping and compilation.
        wrap: True if models are wrapped so that gradients are averaged (`wrap_ddp`).
        split: True if samples are shared among workers (`add_dist_sampler`).
        batch_size: requested batch size over all workers; None if each worker has its own batch size.
    """

    devices: tuple[torch.device, ...]
    group: ProcessGroup = field(default_factory=ProcessGroup)
    step: StepSettings = field(default_factory=StepSettings)
    wrap: bool = True
    split: bool = True
    batch_size: int | None = None


class StrategySpec(ABC):
    """Choice of a strategy and its arguments: an immutable value that is checked before any worker starts."""

    spreads: ClassVar[bool] = False
    """True if no worker has the whole state, so that all workers write a checkpoint together."""

    @property
    def model_ways(self) -> int:
        """Number of workers that hold one copy of the model together; `num_workers` is a multiple of it."""
        return 1

    @property
    def reporter(self) -> int:
        """Rank of the worker that has the loss and reports metrics, among the workers that hold one copy of
        the model.
        """
        return 0

    def for_workers(self, num_workers: int) -> Self:
        """Return this choice for `num_workers` workers, with a number in place of an omitted degree."""
        return self

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        """Yield a message with a remedy for each conflict with the trainer's other arguments."""
        yield from ()

    @abstractmethod
    def build(self, place: Place) -> Strategy:
        """Make the strategy of one worker."""


@dataclass(frozen=True, kw_only=True)
class ModelDegree(StrategySpec):
    """Base class of strategy choices in which `degree` workers hold one copy of the model together.

    Attributes:
        degree: number of workers that hold one copy of the model together; None means all workers.
    """

    too_few: ClassVar[str]
    """Error message for the case of a single worker."""
    several_devices: ClassVar[str]
    """Error message for the case that workers have several devices each."""

    degree: int | None = None

    def __post_init__(self) -> None:
        wrong = [] if self.degree is None else list(degree_mistakes(self.degree, self.degree or 1))
        if wrong:
            raise ConfigError(f"{type(self).__name__}: {wrong[0]}; pass None to use all workers")

    def for_workers(self, num_workers: int) -> Self:
        """Return this choice; if `degree` is None, it becomes `num_workers`."""
        return self if self.degree is not None else replace(self, degree=num_workers)

    @property
    def model_ways(self) -> int:
        return self.degree or 1

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        degree = num_workers if self.degree is None else self.degree
        if degree == 1:
            yield self.too_few
        yield from degree_mistakes(degree, num_workers)
        if devices_per_worker > 1:
            yield self.several_devices


class Strategy:
    """Method to train models on one or several workers; each worker has its own instance.

    This base class keeps the whole model on one device and exchanges nothing with other workers.

    Args:
        place: devices, group and settings of this worker.

    Attributes:
        devices: devices of this worker; its batches go to the first device.
        group: the workers that train together.
        data: group that divides the samples; workers that hold one model together count as one worker in it.
        averages: True if `backward` averages gradients over the workers of `data`. Each loss is then weighted
            for the average.
        meets_in_forward: True if workers communicate in forward passes. Validation then needs equally many
            batches on all workers.
    """

    averages: bool = False
    meets_in_forward: bool = False

    def __init__(self, place: Place) -> None:
        self.devices: tuple[torch.device, ...] = place.devices
        self.group: ProcessGroup = place.group
        self.data: ProcessGroup = place.group
        self._place = place
        self._step = place.step

    def place(self, models: Models, optimizers: Optimizers, ddp_args: Mapping[str, Any]) -> list[nn.Module]:
        """Return `models` ready for training: on their devices, with worker 0's weights, wrapped or sharded.

        `optimizers` have the parameters of `models`. A strategy that replaces parameters in the models also
        replaces them in the optimizers.

        Raises:
            ConfigError: this strategy can't train these models or optimizers.
        """
        placed = [self._on_device(model) for model in models]
        first, *others = dict.fromkeys(self.devices)
        if others and not any(lies_elsewhere(model, first) for model in placed):
            log.warning(
                "each worker has %d devices, but all models are on %s: pass strategy='layers', place parts "
                "of the models on self.devices in setup, or leave gpus_per_worker out",
                len(self.devices),
                first,
            )
        return placed

    def _on_device(self, model: nn.Module) -> nn.Module:
        """Move `model` to its device, with the same parameter objects; compile it if requested."""
        model = self._moved(model)
        if self._step.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self._step.compile:
            compile_in_place(model)
        return model

    def _moved(self, model: nn.Module) -> nn.Module:
        # A model that `setup` has put on other devices of this worker, even partly, stays there.
        by_hand = len(self.devices) > 1 and lies_elsewhere(model, self.devices[0])
        return model if by_hand else model.to(self.devices[0])

    def split_data(
        self, loader: Iterable[Any], *, training: bool, uneven: Uneven = "drop", sharded: bool = False
    ) -> Feed:
        """Return a feed of this worker's share of a loader; `make_feed` describes the arguments."""
        return make_feed(
            loader,
            group=self.data,
            training=training,
            split=self._place.split,
            in_step=training or self.meets_in_forward,
            every=self._step.grad_accumulation_steps,
            uneven=uneven,
            sharded=sharded,
            total=self._place.batch_size,
        )

    def forward_backward(
        self,
        model: nn.Module,
        criterion: Criterion,
        features: Sequence[Any],
        target: Any,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        """Run both passes of a batch; return the detached loss, or None if a different worker has it.

        Args:
            model: a placed model.
            criterion: function that returns the mean loss over the batch.
            features: the model's inputs, on the device.
            target: the criterion's second argument, on the device.
            scaled: function of the loss that returns it weighted, and scaled for fp16, as input of
                `backward`.
        """
        with self._step.autocast(self.devices[0]):
            output = model(*features)
            loss = self._loss(criterion, output, target)
        self.backward(scaled(loss))
        return loss.detach()

    def forward(
        self, model: nn.Module, criterion: Criterion, features: Sequence[Any], target: Any
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return (output, loss) of a batch, without a backward pass; None if a different worker has output
        and loss.
        """
        with self._step.autocast(self.devices[0]):
            output = model(*features)
            return output, self._loss(criterion, output, target)

    def _loss(self, criterion: Criterion, output: Any, target: Any) -> torch.Tensor:
        if len(self.devices) > 1 and (device := device_of(output)) is not None:
            # The target is on the first device, but the output of a model over several devices may be on a
            # different device.
            target = to_device(target, device)
            if isinstance(criterion, nn.Module):
                criterion = criterion.to(device)
        return criterion(output, target)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a scaled loss and add them to the existing gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def sync_gradients(self, now: bool) -> None:
        """Turn the averaging of gradients in the next backward pass on or off.

        Averaging is off while gradients accumulate.

        This method is called before the forward pass of each batch, if `grad_accumulation_steps` is above 1.
        """

    def make_scaler(self) -> torch.amp.GradScaler:
        """Make the loss scaler for fp16; at an overflow on one worker, all workers must skip the step."""
        return torch.amp.GradScaler(self.devices[0].type)

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """Clip the norm of the whole model's gradients to `max_norm`; return the norm before clipping."""
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Return a context for all workers, in which they may run different numbers of forward passes."""
        yield

    def reshard(self) -> None:
        """Free the whole parameters that were gathered for a forward pass without a backward pass."""

    def leave(self) -> None:
        """Leave the other workers; placed models can no longer be trained."""
        self.group.leave()

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's own module inside a placed module."""
        return model

    def state(self, models: Models, optimizers: Optimizers) -> dict[str, Any]:
        """Return this worker's part of the state of `models` and `optimizers`, under the user's own names.

        `models` is a list of {name: tensor}; `optimizers` is a list of {"state": {index: {name: value}},
        "param_groups": [...]}, in torch's own layout. A parameter's `index` is its position in the user's
        optimizer at registration. A tensor that is sharded over workers is a DTensor. Tensors that this
        worker lacks are absent.
        """
        return {
            "models": [self.unwrap(model).state_dict() for model in models],
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }

    def load_state(self, models: Models, optimizers: Optimizers, state: Mapping[str, Any]) -> None:
        """Load a state that `state` returned, from any strategy and number of workers.

        The argument `state` contains the parts of all workers. Each tensor is a whole tensor, or a `Spread`
        (tensors.py) from which this worker reads its part.

        If the state does not fit the models or optimizers, this method may raise any error; after an error,
        the worker loads the previous state.
        """
        state = whole(state)
        for model, saved in zip(models, state["models"], strict=True):
            self.unwrap(model).load_state_dict(saved)
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def skeleton(self, model: nn.Module) -> nn.Module:
        """Return a copy of the user's registered module with its parameters on the "meta" device."""
        return skeleton(self.unwrap(model))

    def order(self) -> list[Any]:
        """Return the order in which gradients are summed, as plain values.

        The rounding of sums depends on this order.
        """
        return []

    def take_order(self, order: Sequence[Any]) -> None:
        """Apply an order that `order` has returned with the same number of workers.

        All workers must call this method together.
        """


STRATEGIES = Registry(
    "strategy",
    {
        "single": "trainkit.train.strategies.single:Single",
        "ddp": "trainkit.train.strategies.ddp:DDP",
        "fsdp": "trainkit.train.strategies.fsdp:FSDP",
        "layers": "trainkit.train.strategies.layers:Layers",
        "tensor": "trainkit.train.strategies.tensor:TensorParallel",
        "context": "trainkit.train.strategies.context:ContextParallel",
    },
)
"""Strategies that `TorchTrainer(strategy=)` accepts by name, with the default arguments of each."""


def named_strategy(value: str | StrategySpec, *, num_workers: int) -> StrategySpec:
    """Return the strategy for `value`.

    Args:
        value: a strategy, its name, or "auto", which means "single" with one worker and "ddp" with several
            workers.
        num_workers: number of workers of the trainer.

    Raises:
        ConfigError: no strategy has this name, or `value` is neither a name nor a strategy.
    """
    if value == "auto":
        value = "single" if num_workers == 1 else "ddp"
    spec = value
    if isinstance(value, str) and (cls := STRATEGIES.find(value)) is not None:
        spec = cls()
    if isinstance(spec, StrategySpec):
        return spec.for_workers(num_workers)
    if isinstance(value, type) and issubclass(value, StrategySpec):
        raise ConfigError(f"strategy={value.__name__} is a class: pass an instance, {value.__name__}()")
    raise ConfigError(
        f"strategy={value!r} is unknown: pass one of {('auto', *STRATEGIES.names())}, or a strategy object, "
        "such as FSDP(...) from trainkit.train.strategies.fsdp. Derive the class of your own strategy from "
        "StrategySpec in trainkit.train.strategies.base"
    )
