"""The protocol of strategies, and the table of their names.

    TorchTrainer(strategy=FSDP())          frozen, picklable; says how many workers hold one copy of the model
        └─ build(place) ──▶ Strategy       one on every worker: where a model lives, who sees which data, how
                                           backward runs, and which part of the state is here

A user's own strategy subclasses both. The step loop calls nothing of a strategy but `forward_backward` (or
`backward`) and `clip`; all other methods are called before the first step or between epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, runtime_checkable

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.registry import Registry
from trainkit.train.data.feed import Feed
from trainkit.train.distributed.process_group import ProcessGroup

Precision = Literal["32", "bf16", "fp16"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Arguments of `TorchTrainer`; see there for the meaning of each."""

    precision: Precision = "32"
    grad_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    compile: bool = False
    channels_last: bool = False
    detect_nan: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return a block in which operations on `device` run in the asked precision where it is safe."""
        dtype = _AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)

    @property
    def needs_backward(self) -> bool:
        """Return True if a user's own step must call `backward(loss)` in place of `loss.backward()`."""
        return self.precision == "fp16" or self.grad_accumulation_steps > 1 or self.detect_nan

    @property
    def needs_optimizer_step(self) -> bool:
        """Return True if a user's own step must end with `optimizer_step()`, not `optimizer.step()`."""
        return self.precision == "fp16" or self.grad_accumulation_steps > 1 or self.max_grad_norm is not None

    @property
    def asked_for(self) -> str:
        """Return the settings that need `optimizer_step()`, as the user wrote them."""
        given = [
            ("precision", self.precision, self.precision == "fp16"),
            ("grad_accumulation_steps", self.grad_accumulation_steps, self.grad_accumulation_steps > 1),
            ("max_grad_norm", self.max_grad_norm, self.max_grad_norm is not None),
        ]
        return " with ".join(f"{name}={value!r}" for name, value, asked in given if asked)


Criterion = Callable[..., torch.Tensor]
"""(output, target) to the mean loss over the batch."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The parts that a worker builds its strategy from.

    Attributes:
        devices: of this worker; the first is where its batches go.
        group: all workers of the trainer.
        step: precision, accumulation, clipping, compilation.
        wrap: whether models are wrapped so that gradients are averaged (`wrap_ddp`).
        split: samples are shared among workers (`add_dist_sampler`).
    """

    devices: tuple[torch.device, ...]
    group: ProcessGroup = field(default_factory=ProcessGroup)
    step: StepSettings = field(default_factory=StepSettings)
    wrap: bool = True
    split: bool = True


class StrategySpec(Protocol):
    """The choice of a strategy: a frozen value, checked before any worker starts."""

    @property
    def model_ways(self) -> int:
        """How many workers hold one copy of the model together; `num_workers` is a multiple of it."""

    @property
    def reporter(self) -> int:
        """Which of those workers reports metrics: the one that has the loss."""

    @property
    def spreads(self) -> bool:
        """Return True if no worker holds the whole state. All workers then write a checkpoint together."""

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        """Yield a message for each conflict with the trainer's other arguments, with its remedy."""

    def build(self, place: Place) -> Strategy:
        """Make the strategy of one worker."""


class Strategy(Protocol):
    """One way to train on one or several workers; every worker holds an instance.

    Attributes:
        devices: of this worker; the first is where its batches go.
        group: the workers that train together.
        data: the group that shares the samples; workers that hold one model together count as one.
        averages: whether `backward` averages gradients over `data`; a loss is weighted only if so.
    """

    devices: tuple[torch.device, ...]
    group: ProcessGroup
    data: ProcessGroup
    averages: bool

    # -- placing -------------------------------------------------------------------------------

    def place(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        ddp_args: Mapping[str, Any],
    ) -> list[nn.Module]:
        """Return the modules to train: on their devices, with worker 0's initial weights, wrapped or sharded.

        `optimizers` hold the user's parameters; where placing replaces these, their groups are changed to
        hold the new ones.

        Raises:
            ConfigError: these models or optimizers can't be trained so.
        """

    def split_data(self, loader: Iterable[Any], *, training: bool) -> Feed:
        """Return this worker's share of a registered loader."""

    # -- stepping ------------------------------------------------------------------------------

    def forward_backward(
        self,
        model: nn.Module,
        criterion: Criterion,
        features: Sequence[Any],
        target: Any,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        """Run forward and backward of one batch; return the detached loss, None where it is another worker's.

        Args:
            model: as placed.
            criterion: mean loss over the batch.
            features: the model's inputs, on the device.
            target: the criterion's second argument, on the device.
            scaled: loss to what `backward` starts from: weighted, and scaled for fp16.
        """

    def forward(
        self, model: nn.Module, criterion: Criterion, features: Sequence[Any], target: Any
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return (output, loss) of one batch without backward; None where they are another worker's."""

    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients of `loss` as `scaled` gave it, added to those that are there."""

    def sync_gradients(self, now: bool) -> None:
        """Set whether the next backward synchronizes gradients; False in the middle of an accumulation.

        Called before the forward pass of each batch, but only with `grad_accumulation_steps` above 1.
        """

    def make_scaler(self) -> torch.amp.GradScaler:
        """Make the scaler for fp16; one worker's overflow makes all of them leave out the step."""

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """Scale gradients so that the norm of the whole model's is at most `max_norm`; returns the norm."""

    def evaluation(self) -> AbstractContextManager[None]:
        """Return a block in which forward passes may differ in number between workers; entered by all."""

    def leave(self) -> None:
        """Leave the other workers; placed models can't be trained any more."""

    # -- state ---------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's own module within a placed one."""

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        """Return this worker's part of the state of `models` and `optimizers`, under the user's own names.

        `models` is a list of {name: tensor}; `optimizers` a list of {"state": {index: {name: value}},
        "param_groups": [...]}, in torch's own layout: an index counts the parameters in the order in which
        the user's optimizer held them at registration. A tensor that is spread over workers is a DTensor; one
        that is another worker's alone is absent.
        """

    def load_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        """Take over what `state` returned on any strategy and world size.

        `state` is whole; each leaf is a tensor, or a `Spread` (spread.py), of which a worker reads its part.

        Raises:
            CheckpointError: it does not fit; nothing was changed.
        """

    def skeleton(self, model: nn.Module) -> nn.Module:
        """Return the user's module as it was registered, its parameters on the "meta" device."""


@runtime_checkable
class KeepsOrder(Protocol):
    """A strategy that learns, as it trains, an order that the rounding of its sums hangs on."""

    def order(self) -> list[Any]:
        """Return the order of gradients that was learnt, as plain values."""

    def take_order(self, order: Sequence[Any]) -> None:
        """Take over what `order` returned on as many workers; called on all of them together."""


STRATEGIES = Registry(
    "strategy",
    {
        "single": "trainkit.train.strategies.single:Single",
        "ddp": "trainkit.train.strategies.ddp:DDP",
        "fsdp": "trainkit.train.strategies.fsdp:FSDP",
        "layers": "trainkit.train.strategies.layers:Layers",
        "tensor": "trainkit.train.strategies.tensor:TensorParallel",
        "pipeline": "trainkit.train.strategies.pipeline:Pipeline",
    },
)
"""The strategies that `TorchTrainer(strategy=)` takes by name, each made without arguments."""


def named_strategy(value: str | StrategySpec, *, num_workers: int) -> StrategySpec:
    """Return the strategy that `value` means.

    Args:
        value: a strategy, or its name, or "auto": single with one worker, data-parallel with several.
        num_workers: of the trainer.

    Raises:
        ConfigError: no strategy has that name, or it is something else.
    """
    if value == "auto":
        value = "single" if num_workers == 1 else "ddp"
    spec = value
    if isinstance(value, str) and (cls := STRATEGIES.find(value)) is not None:
        spec = cls()
    if isinstance(spec, type) or not _is_spec(spec):
        raise _unknown(value)
    # A strategy may mean "all workers" by an argument that it was not given.
    fitted = getattr(spec, "for_workers", None)
    return cast(StrategySpec, spec if fitted is None else fitted(num_workers))


def _unknown(value: Any) -> ConfigError:
    if isinstance(value, type) and _is_spec(value):
        return ConfigError(f"strategy={value.__name__}: that is the class; give a value, {value.__name__}()")
    return ConfigError(
        f"strategy={value!r}: give one of {('auto', *STRATEGIES.names())}, or a strategy with settings, such "
        f"as FSDP(...) from trainkit.train.strategies.fsdp"
    )


def _is_spec(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("model_ways", "reporter", "spreads", "mistakes", "build"))
