"""One training step around the user's forward pass: weigh the loss, scale it, accumulate, clip, step.

autocast ──▶ loss ──scaled──▶ backward ──(every grad_accumulation_steps batches)──▶ unscale, clip, step
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from trainkit.errors import ConfigError, NonFiniteLossError
from trainkit.train.registration import Registered
from trainkit.train.step_settings import StepSettings
from trainkit.train.strategies.base import Strategy
from trainkit.train.tensors import local
from trainkit.train.turns import Turn


class Stepper:
    """Takes an operator's optimizer steps.

    Args:
        settings: precision, accumulation, clipping.
        strategy: carries out forward and backward.
        registered: what is trained.
        turn: tells the current batch's part in the optimizer's step.
    """

    def __init__(
        self,
        settings: StepSettings,
        strategy: Strategy,
        registered: Registered,
        turn: Callable[[], Turn],
    ) -> None:
        self._settings = settings
        self._strategy = strategy
        self._registered = registered
        self._scaler = strategy.make_scaler() if settings.precision == "fp16" else None
        self._turn = turn
        self._begun = False
        self._called = False

    def begin(self) -> None:
        """A batch begins: `train_batch` is about to be called with it."""
        self._begun, self._called = True, False
        if self._settings.grad_accumulation_steps > 1:
            self._strategy.sync_gradients(self._turn().closes)

    def end(self) -> None:
        """The batch has been worked on.

        Raises:
            ConfigError: it did not call `optimizer_step`, without which it can't be right.
        """
        self._begun = False
        if self._settings.needs_optimizer_step and not self._called:
            raise ConfigError(
                "train_batch did not call self.optimizer_step(), which scales, clips and accumulates as "
                "precision='fp16', max_grad_norm and grad_accumulation_steps ask for: call it in place of "
                "optimizer.step() and zero_grad()"
            )

    @property
    def closed(self) -> bool:
        """Whether the current batch is the last of an optimizer's step."""
        return self._turn().closes

    def autocast(self) -> AbstractContextManager[object]:
        """A block that runs in the asked precision."""
        return self._settings.autocast(self._strategy.devices[0])

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What backward starts from."""
        if self._settings.detect_nan and not bool(torch.isfinite(loss.detach()).all()):
            raise NonFiniteLossError(
                f"the loss is {loss.detach().tolist()}: lower the learning rate, clip gradients "
                f"(max_grad_norm=1.0), or look at this batch's data; nothing of it was applied"
            )
        if self._settings.grad_accumulation_steps > 1 and not self._begun:
            raise ConfigError(
                "grad_accumulation_steps needs the default train_epoch, which says when a step is complete: "
                "leave train_epoch as it is, or leave grad_accumulation_steps out and accumulate in your own"
            )
        turn = self._turn()
        weight = turn.weight if self._strategy.averages else turn.own_weight
        weighted = loss if weight == 1 else loss * weight
        return weighted if self._scaler is None else self._scaler.scale(weighted)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, a mean over the batch."""
        self._strategy.backward(self.scaled(loss))

    def step(self) -> bool:
        """Step all optimizers if the accumulation is complete; returns whether it was."""
        self._called = True
        if not self._turn().closes:
            return False
        optimizers = self._registered.optimizers
        for optimizer in optimizers:
            self._finish_gradients(optimizer)
        for optimizer in optimizers:
            if self._scaler is None:
                optimizer.step()
            else:
                self._scaler.step(optimizer)
            optimizer.zero_grad()
        if self._scaler is not None:
            self._scaler.update()
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the scaler; empty without one."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned; another precision's is left."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)

    def _finish_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscaled, of the right weight and clipped."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        parameters = _with_gradients(optimizer)
        if (correction := self._turn().correction) != 1:
            torch._foreach_mul_([local(parameter.grad) for parameter in parameters], correction)
        if self._settings.max_grad_norm is not None:
            self._strategy.clip(parameters, self._settings.max_grad_norm)


def _with_gradients(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
