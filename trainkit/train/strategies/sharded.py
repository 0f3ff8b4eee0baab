"""What strategies have in common that spread parameters: the state of models and optimizers, in parts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train.modules import skeleton
from trainkit.train.spread import Spread, local_part, shape_of, whole
from trainkit.train.strategies.optimizers import ParameterSlots, parameter_names
from trainkit.train.strategies.single import SingleStrategy


class ShardedState:
    """What is remembered of models and optimizers before their parameters are replaced.

    Args:
        models: as registered.
        optimizers: made from them.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._slots = ParameterSlots(models, optimizers)
        self._skeletons = {id(model): skeleton(model) for model in models}

    def replace(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Let the optimizers hold the models' parameters as they are now."""
        self._slots.replace(optimizers, dict(parameter_names(models)))

    def skeleton(self, model: nn.Module) -> nn.Module:
        """`model` as it was registered, without values."""
        # A copy: whoever asks fills it.
        return copy.deepcopy(self._skeletons[id(model)])

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        """In torch's own layout, spread tensors as DTensors."""
        return {
            "models": [model.state_dict() for model in models],
            "optimizers": self._slots.state(optimizers) if optimizers else [],
        }

    def load(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        """Take over a whole state, of which each worker reads its part.

        Raises:
            CheckpointError: it does not fit; nothing was changed.
        """
        for number, (model, saved) in enumerate(zip(models, state["models"], strict=True)):
            _check_fits(f"model {number}", model.state_dict(), saved)
        self._slots.check(state["optimizers"])
        for model, saved in zip(models, state["models"], strict=True):
            own = model.state_dict()
            model.load_state_dict({name: _entry(saved[name], own[name]) for name in own})
        self._slots.load(optimizers, state["optimizers"])


class ShardedStrategy(SingleStrategy):
    """Base of the strategies whose models hold DTensors; placing a model sets `_held`."""

    _held: ShardedState

    def _reshard(self) -> None:
        """Free what a forward pass without a backward has left whole."""

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        self._reshard()
        return self._held.state(models, optimizers)

    def load_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        self._reshard()
        self._held.load(models, optimizers, state)

    def skeleton(self, model: nn.Module) -> nn.Module:
        return self._held.skeleton(model)


def refuse_ddps_arguments(what: str, ddp_args: Mapping[str, Any], *, wrap: bool) -> None:
    """Raise ConfigError if a strategy without DistributedDataParallel was given what is meant for it."""
    if ddp_args or not wrap:
        given = "ddp_args are" if ddp_args else "wrap_ddp=False is"
        raise ConfigError(f"{given} for DistributedDataParallel, which {what} doesn't use: leave it out")


def _entry(leaf: Any, like: Any) -> Any:
    if isinstance(leaf, (torch.Tensor, Spread)) and isinstance(like, torch.Tensor):
        return local_part(leaf, like)
    return whole(leaf)


def _check_fits(what: str, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    missing, unknown = sorted(set(own) - set(saved)), sorted(set(saved) - set(own))
    if missing or unknown:
        lacks = f"lacks {', '.join(missing)}" if missing else ""
        holds = f"holds {', '.join(unknown)}, which it has not" if unknown else ""
        raise CheckpointError(f"the state of {what} " + " and ".join(part for part in (lacks, holds) if part))
    for name, tensor in own.items():
        if shape_of(tensor) != shape_of(saved[name]):
            raise CheckpointError(
                f"{name} of {what} has the shape {shape_of(tensor)}, but {shape_of(saved[name])} was saved"
            )
