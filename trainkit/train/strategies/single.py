"""One worker, one device; also the base of strategies that keep a whole model on each worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainkit.errors import CheckpointError
from trainkit.train.data.feed import Feed, make_feed
from trainkit.train.distributed.tensors import cpu_copy, device_of, to_device, whole
from trainkit.train.strategies.base import Criterion, Place, StepSettings, Strategy
from trainkit.train.strategies.modules import compile_in_place, lies_elsewhere, skeleton

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WholeModel:
    """Base of the choices in which each worker holds the whole model."""

    @property
    def model_ways(self) -> int:
        return 1

    @property
    def reporter(self) -> int:
        return 0

    @property
    def spreads(self) -> bool:
        return False

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Single(WholeModel):
    """One worker trains the whole model on one device; the default with `num_workers=1`."""

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        if num_workers > 1:
            yield f"one worker holds and trains the model, but num_workers={num_workers}: give DDP()"

    def build(self, place: Place) -> Strategy:
        return SingleStrategy(place)


class SingleStrategy:
    """The model on one device, the data as the user's loader gives it."""

    averages = False
    meets_in_forward = False
    """True if forward passes are collective, so that validation too has equally many on all workers."""

    def __init__(self, place: Place) -> None:
        self.devices = place.devices
        self.group = self.data = place.group
        self._place = place
        self._step = place.step

    # -- placing -------------------------------------------------------------------------------

    def place(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        ddp_args: Mapping[str, Any],
    ) -> list[nn.Module]:
        placed = [self._on_device(model) for model in models]
        first, *others = dict.fromkeys(self.devices)
        if others and not any(lies_elsewhere(model, first) for model in placed):
            log.warning(
                "each worker has %d devices, but all models are on %s: pass strategy='layers', or put parts "
                "of them on self.devices in setup; else leave gpus_per_worker out",
                len(self.devices),
                first,
            )
        return placed

    def _on_device(self, model: nn.Module) -> nn.Module:
        """Return `model` on its device, its parameters the same objects; compiled if asked."""
        model = self._moved(model)
        if self._step.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self._step.compile:
            compile_in_place(model)
        return model

    def _moved(self, model: nn.Module) -> nn.Module:
        # What setup has put on another of this worker's devices, as a whole or in part, is left where it is.
        by_hand = len(self.devices) > 1 and lies_elsewhere(model, self.devices[0])
        return model if by_hand else model.to(self.devices[0])

    def split_data(self, loader: Iterable[Any], *, training: bool) -> Feed:
        every = self._step.grad_accumulation_steps
        return make_feed(
            loader,
            group=self.data,
            training=training,
            split=self._place.split,
            in_step=training or self.meets_in_forward,
            every=every,
        )

    # -- stepping ------------------------------------------------------------------------------

    def forward_backward(
        self,
        model: nn.Module,
        criterion: Criterion,
        features: Sequence[Any],
        target: Any,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        with self._step.autocast(self.devices[0]):
            output = model(*features)
            loss = self._loss(criterion, output, target)
        self.backward(scaled(loss))
        return loss.detach()

    def forward(
        self, model: nn.Module, criterion: Criterion, features: Sequence[Any], target: Any
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        with self._step.autocast(self.devices[0]):
            output = model(*features)
            return output, self._loss(criterion, output, target)

    def _loss(self, criterion: Criterion, output: Any, target: Any) -> torch.Tensor:
        if len(self.devices) > 1 and (device := device_of(output)) is not None:
            # A model over several devices may end on another than it begins on, where the target was brought.
            target = to_device(target, device)
            if isinstance(criterion, nn.Module):
                criterion = criterion.to(device)
        return criterion(output, target)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def sync_gradients(self, now: bool) -> None:
        """Do nothing: there are no other workers."""

    def make_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.devices[0].type)

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self.group.leave()

    # -- state ---------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        return {
            "models": [self.unwrap(model).state_dict() for model in models],
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }

    def load_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        before = cpu_copy(self.state(models, optimizers))
        try:
            self._load(models, optimizers, whole(state))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self._load(models, optimizers, before)
            raise CheckpointError(str(error)) from error

    def _load(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        for model, saved in zip(models, state["models"], strict=True):
            self.unwrap(model).load_state_dict(saved)
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def skeleton(self, model: nn.Module) -> nn.Module:
        return skeleton(self.unwrap(model))
