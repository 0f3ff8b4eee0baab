"""Training step after the forward pass: weight and scale the loss, accumulate and clip gradients, step.

autocast ──▶ loss ──scaled──▶ backward ──(every grad_accumulation_steps batches)──▶ unscale, clip, step

Models' weights are averaged by the rule of `torch.optim.swa_utils.AveragedModel`. `AveragedModel` copies a
whole model, which fails for wrapped and sharded models. So in this module, each worker averages its own
parameters. Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging";
https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainkit.errors import ConfigError, NonFiniteLossError
from trainkit.train.data.sharding import BatchWeight
from trainkit.train.distributed.tensors import local, local_part
from trainkit.train.step.context import Registered
from trainkit.train.strategies.base import StepSettings, Strategy


class WeightAverage:
    """Exponential moving averages of this worker's parameters.

    Args:
        decay: factor of the old average in each update.
        strategy: the strategy that placed the models.
        models: the placed models.
    """

    def __init__(self, decay: float, strategy: Strategy, models: Sequence[nn.Module]) -> None:
        self._strategy = strategy
        self._updates = 0
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        strategy.reshard()
        # A parameter that several modules share appears under each of its names, with the same average.
        self._live = [_held(strategy.unwrap(model)) for model in models]
        unique = {id(parameter): parameter for named in self._live for parameter in named.values()}
        averages = {key: parameter.detach().clone() for key, parameter in unique.items()}
        self._averages = [
            {name: averages[id(parameter)] for name, parameter in named.items()} for named in self._live
        ]
        self._pairs = [(parameter, averages[key]) for key, parameter in unique.items()]

    def update(self) -> None:
        """Update the averages with the current parameters, after a step of the optimizers."""
        averages, live = (
            [local(average) for _, average in self._pairs],
            [local(each) for each, _ in self._pairs],
        )
        if averages and self._updates:
            self._average(averages, live, self._updates)
        elif averages:
            torch._foreach_copy_(averages, live)
        self._updates += 1

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the averages as the models' parameters inside the block."""
        self._strategy.reshard()
        self._swap()
        try:
            yield
        finally:
            self._strategy.reshard()
            self._swap()

    def models(self) -> list[dict[str, torch.Tensor]]:
        """Return the averages of each model, by parameter name."""
        return self._averages

    def state(self) -> dict[str, Any]:
        """Return the averages of this worker and the number of updates."""
        return {"updates": self._updates, "models": self._averages}

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Load averages.

        If `state` is None, because it comes from a run without averages, start from the parameters.
        """
        self._updates = 0 if state is None else state["updates"]
        for number, named in enumerate(self._averages):
            for name, average in named.items():
                value = self._live[number][name] if state is None else state["models"][number][name]
                local(average).copy_(local(value if state is None else local_part(value, average)))

    def _swap(self) -> None:
        for parameter, average in self._pairs:
            one, other = local(parameter), local(average)
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)


def _held(model: nn.Module) -> dict[str, torch.Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if not parameter.is_meta}


class Stepper:
    """Backward passes and optimizer steps of an operator, with the trainer's settings.

    Args:
        settings: settings for precision, accumulation and clipping.
        strategy: strategy that runs forward and backward passes.
        registered: models, optimizers and schedulers of the operator.
        weight: function that returns the weight of the last batch that the feed gave, for users' own loops,
            which never call `begin`.
        global_step: function that returns the number of the training step, for messages.

    Attributes:
        average: moving averages of the models' weights; None if `ema_decay` is not set or no models are
            registered.
        joins: True if some batches may be repetitions with weight 0. A step must then apply the weight.
    """

    def __init__(
        self,
        settings: StepSettings,
        strategy: Strategy,
        registered: Registered,
        weight: Callable[[], BatchWeight],
        global_step: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._strategy = strategy
        self._registered = registered
        self._scaler = strategy.make_scaler() if settings.precision == "fp16" else None
        if self._scaler is not None:
            # A scaler gets its scale when it first scales a tensor. A worker without a loss never scales a
            # loss, so a zero is scaled here.
            self._scaler.scale(torch.zeros((), device=strategy.devices[0]))
        self._accumulates = settings.grad_accumulation_steps > 1
        self._current_weight = weight
        self._global_step = global_step
        self._weight: BatchWeight | None = None
        # `_called` is True if step() was called for the current batch. `_stepped` is True if the optimizers
        # have made a step with the current batch.
        self._called = self._stepped = False
        # Each of the first three flags becomes True when a user's own step calls autocast, backward or
        # optimizer_step. `_checked` becomes True when the calls of a step have been checked.
        self._cast = self._weighed = self._ended = self._checked = False
        self._kept: _Kept | None = None
        self.average: WeightAverage | None = None
        self._hooked: list[torch.optim.Optimizer] = []
        self.joins = False
        self._moved: set[int] = set()

    def placed(self) -> None:
        """Add hooks that note the optimizers' steps, and start averages if `ema_decay` is set.

        This method is called after models are registered.
        """
        for optimizer in self._registered.optimizers:
            # An optimizer whose constructor does not call the constructor of torch's class has no hooks, so
            # its steps are not noted.
            if hasattr(optimizer, "_optimizer_step_post_hooks"):
                optimizer.register_step_post_hook(self._on_any_step)
        if (decay := self._settings.ema_decay) is not None:
            self.average = WeightAverage(decay, self._strategy, self._registered.models)

    def begin_epoch(self) -> None:
        """Clear gradients that a failed epoch or `setup` may have left in the parameters."""
        self._weight = self._kept = None
        # A user's step that does not call optimizer_step may keep gradients from one epoch to the next on
        # purpose.
        if self._ended or not self._checked:
            for optimizer in self._registered.optimizers:
                optimizer.zero_grad()

    def begin(self, weight: BatchWeight) -> None:
        """Prepare for a batch, before `train_batch` is called."""
        self._weight = weight
        self._called, self._stepped = False, weight.closes_step
        if self._accumulates:
            self._strategy.sync_gradients(weight.closes_step)

    def end(self) -> bool:
        """Finish a batch, after `train_batch`; return True if the optimizers made a step with this batch.

        Raises:
            ConfigError: `train_batch` did not call a method that precision, accumulation or clipping needs.
        """
        closes = self._weight is None or self._weight.closes_step
        self._weight = None
        if not self._called and self._settings.needs_optimizer_step:
            raise ConfigError(_no_step(self._settings))
        if not self._checked:
            self.check()
        if self._accumulates:
            self._kept = None if closes else _Kept.of(self._registered.optimizers)
        return self._stepped

    def check(self) -> None:
        """Raise ConfigError if a user's own step ignores a setting."""
        self._checked = True
        settings = self._settings
        if settings.precision != "32" and not self._cast:
            raise ConfigError(
                f"precision={settings.precision!r}, but the step never entered self.autocast(): compute the "
                f"output and the loss in `with self.autocast():`, or leave precision out"
            )
        if (settings.needs_backward or self.joins) and not self._weighed:
            raise ConfigError(
                "the step did not call self.backward(loss), which precision='fp16', grad_accumulation_steps, "
                "detect_nan and uneven_inputs='join' need: call it in place of loss.backward()"
            )
        if settings.needs_optimizer_step and not self._ended:
            raise ConfigError(_no_step(settings))

    def delegated(self) -> None:
        """Turn off the check of a user's step, because a different object, such as a strategy, applies the
        settings.
        """
        self._cast = self._weighed = self._ended = True

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context manager that runs its block in the trainer's precision."""
        self._cast = True
        return self._settings.autocast(self._strategy.devices[0])

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss as input of the backward pass: with its weight, and scaled for fp16."""
        self._weighed = True
        if self._settings.detect_nan and not bool(torch.isfinite(loss.detach()).all()):
            raise NonFiniteLossError(
                f"the loss is {loss.detach().tolist()} on worker {self._strategy.group.rank} at global_step "
                f"{self._global_step()}, and was not applied: lower the learning rate, clip gradients "
                f"(max_grad_norm=1.0), or look at this batch's data"
            )
        weight = self._weight
        if weight is None:
            if self._accumulates:
                raise ConfigError(
                    "grad_accumulation_steps needs the default train_epoch, which decides when a step is "
                    "complete: leave out your train_epoch, or accumulate gradients without the argument"
                )
            weight = self._current_weight()
        if self._kept is not None:
            self._kept.check()
            self._kept = None
        factor = weight.averaged if self._strategy.averages else weight.own
        weighted = loss if factor == 1 else loss * factor
        return weighted if self._scaler is None else self._scaler.scale(weighted)

    def backward(self, loss: torch.Tensor) -> None:
        """Scale `loss`, a mean over the batch, and add its gradients to the gradients of the parameters."""
        self._strategy.backward(self.scaled(loss))

    def step(self) -> bool:
        """Step all optimizers if all batches of the step are accumulated; return True if they made a step.

        With fp16, no worker makes the step if a gradient overflowed on any worker.
        """
        self._called = self._ended = True
        weight = self._weight or self._current_weight()
        if not weight.closes_step:
            self._stepped = False
            return False
        optimizers = self._registered.optimizers
        if self._scaler is not None:
            self._stepped = self._step_scaled(self._scaler, optimizers, weight)
        else:
            self._finish_gradients(optimizers, weight)
            for optimizer in optimizers:
                optimizer.step()
            self._stepped = True
        # Gradients are cleared only after all optimizers have stepped, because optimizers may share
        # parameters.
        for optimizer in optimizers:
            optimizer.zero_grad()
        if self._stepped and self.average is not None:
            self.average.update()
        return self._stepped

    def state(self) -> dict[str, Any]:
        """Return the state of the scaler; empty without a scaler."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Load a result of `state`; it is ignored if the saved or the current precision has no scaler."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)

    def _step_scaled(
        self, scaler: torch.amp.GradScaler, optimizers: list[torch.optim.Optimizer], weight: BatchWeight
    ) -> bool:
        # torch's scaler refuses an optimizer without gradients, for example after a skipped batch. However, a
        # strategy's own scaler waits for all workers, so it is called even if the optimizer has no gradients.
        shared = type(scaler) is not torch.amp.GradScaler
        held = [optimizer for optimizer in optimizers if shared or _gradients([optimizer])]
        for optimizer in held:
            if not any(optimizer is hooked for hooked in self._hooked):
                optimizer.register_step_post_hook(self._on_step)
                self._hooked.append(optimizer)
            scaler.unscale_(optimizer)
        self._finish_gradients(optimizers, weight)
        # At an overflow the scaler silently skips optimizer.step(), so a hook notices steps. A comparison of
        # the scale before and after the step would wait for the device once more.
        self._stepped = False
        for optimizer in held:
            scaler.step(optimizer)
        if held:
            scaler.update()
        return self._stepped

    def _on_step(self, *_: Any) -> None:
        self._stepped = True

    def _on_any_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._moved.add(id(optimizer))

    def is_complete(self) -> bool:
        """Return True if each optimizer has made a step since the last complete step.

        If the result is False, a user's own step may have added up gradients, which are not part of the
        state.
        """
        complete = len(self._moved) == len({id(each) for each in self._registered.optimizers}) > 0
        if complete:
            self._moved.clear()
        return complete

    def _finish_gradients(self, optimizers: list[torch.optim.Optimizer], weight: BatchWeight) -> None:
        """Multiply the gradients by the correction of their weight, and clip them."""
        limit = self._settings.max_grad_norm
        correction = weight.correction if self._strategy.averages else weight.own_correction
        if correction != 1 and (gradients := _gradients(optimizers)):
            torch._foreach_mul_([local(gradient) for gradient in gradients], correction)
        if limit is not None:
            self._strategy.clip(list(_with_gradients(optimizers)), limit)


def _no_step(settings: StepSettings) -> str:
    return (
        f"the step did not call self.optimizer_step(), which {settings.asked_for} needs: call it in place of "
        f"optimizer.step() and zero_grad()"
    )


class _Kept:
    """Gradient of earlier batches.

    If torch's version counter of the gradient has changed, code has written to the gradient.
    """

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter = parameter
        gradient: Any = parameter.grad
        self._gradient, self._version = gradient, gradient._version

    @classmethod
    def of(cls, optimizers: Iterable[torch.optim.Optimizer]) -> _Kept | None:
        """Return a gradient of `optimizers`; None if a sharding strategy stores gradients elsewhere."""
        return next(map(cls, _with_gradients(optimizers)), None)

    def check(self) -> None:
        parameter: Any = self._parameter
        now = parameter.grad
        if now is not self._gradient or now._version != self._version:
            raise ConfigError(
                "an earlier batch's gradients were cleared or changed before grad_accumulation_steps were "
                "complete: leave out zero_grad(), as self.optimizer_step() clears gradients after each step"
            )


def _with_gradients(optimizers: Iterable[torch.optim.Optimizer]) -> Iterable[torch.Tensor]:
    """Return all parameters with a gradient, each only once even if it is in several optimizers."""
    return dict.fromkeys(
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    )


def _gradients(optimizers: Iterable[torch.optim.Optimizer]) -> list[Any]:
    return [parameter.grad for parameter in _with_gradients(optimizers)]
