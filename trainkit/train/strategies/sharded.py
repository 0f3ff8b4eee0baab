"""States of models and optimizers whose parameters are sharded over workers.

A user makes optimizers from a model's parameters. Sharding replaces these parameters by new tensors, and a
worker with one stage of a pipeline keeps only some. However, the indices in an optimizer's saved state refer
to the parameters that the user passed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train.distributed.tensors import Spread, local_part, shape_of, whole
from trainkit.train.strategies.base import Models, Optimizers, Place, Strategy
from trainkit.train.strategies.modules import skeleton

Name = tuple[int, str]
"""Key of a parameter: the index of its model, and its name in the model."""


def parameter_names(models: Models) -> dict[Name, nn.Parameter]:
    """Return all parameters of `models` by key; a shared parameter appears under each of its keys."""
    named = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
    return {(number, name): held[name] for number, held in enumerate(named) for name in held}


class ParameterSlots:
    """Parameters that each optimizer received from the user, by their index in the optimizer's state.

    Args:
        models: the registered models, before any parameter is replaced.
        optimizers: the registered optimizers of the models' parameters.

    Raises:
        ConfigError: an optimizer has already made steps.
    """

    def __init__(self, models: Models, optimizers: Optimizers) -> None:
        names = {id(parameter): name for name, parameter in reversed(parameter_names(models).items())}
        for optimizer in optimizers:
            if optimizer.state:
                raise ConfigError(
                    f"{type(optimizer).__name__} has already made steps, but this strategy replaces its "
                    "parameters: register a new optimizer, and load() a checkpoint into the trainer"
                )
        # For each optimizer and parameter group, `_groups` has a list with one entry for each parameter: its
        # key (None if no model has the parameter), and the parameter.
        self._groups: list[list[list[tuple[Name | None, Any]]]] = [
            [[(names.get(id(item)), item) for item in group["params"]] for group in optimizer.param_groups]
            for optimizer in optimizers
        ]

    def replace(self, optimizers: Optimizers, held: Mapping[Name, torch.Tensor]) -> None:
        """Replace the models' parameters in the optimizers by the tensors in `held`; remove parameters that
        are not in `held`.
        """
        for optimizer, groups in zip(optimizers, self._groups, strict=True):
            for group, slots in zip(optimizer.param_groups, groups, strict=True):
                slots[:] = [(name, item if name is None else held.get(name)) for name, item in slots]
                group["params"] = [item for _, item in slots if item is not None]

    def state(self, optimizers: Optimizers) -> list[dict[str, Any]]:
        """Return this worker's part of the optimizers' states, in torch's own layout."""
        return [
            {
                "state": {
                    index: dict(optimizer.state[item])
                    for index, item in self._slots(number)
                    if item is not None and item in optimizer.state
                },
                "param_groups": [
                    {**{key: value for key, value in group.items() if key != "params"}, "params": indices}
                    for group, indices in zip(optimizer.param_groups, self._indices(number), strict=True)
                ],
            }
            for number, optimizer in enumerate(optimizers)
        ]

    def check(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Raise CheckpointError unless the groups in `saved` have the registered numbers of parameters."""
        for number, state in enumerate(saved):
            own = [len(indices) for indices in self._indices(number)]
            theirs = [len(group["params"]) for group in state["param_groups"]]
            if own != theirs:
                raise CheckpointError(
                    f"optimizer {number} has groups of {own} parameters, but the saved groups have {theirs}"
                )

    def load(self, optimizers: Optimizers, saved: Sequence[Mapping[str, Any]]) -> None:
        """Load the states of all workers together; this worker keeps its own part."""
        for number, (optimizer, state) in enumerate(zip(optimizers, saved, strict=True)):
            for group, theirs in zip(optimizer.param_groups, state["param_groups"], strict=True):
                group.update({key: whole(value) for key, value in theirs.items() if key != "params"})
            optimizer.state.clear()
            groups = zip(optimizer.param_groups, self._groups[number], strict=True)
            slots = ((group, item) for group, held in groups for _, item in held)
            for index, (group, item) in enumerate(slots):
                if item is not None and index in state["state"]:
                    entries = state["state"][index].items()
                    optimizer.state[item] = {
                        name: state_entry(name, value, item, group) for name, value in entries
                    }

    def _slots(self, number: int) -> Iterable[tuple[int, Any]]:
        return enumerate(item for slots in self._groups[number] for _, item in slots)

    def _indices(self, number: int) -> list[list[int]]:
        indices, start = [], 0
        for slots in self._groups[number]:
            indices.append(list(range(start, start + len(slots))))
            start += len(slots)
        return indices


def state_entry(name: str, value: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """Return an optimizer's saved value, laid out like `parameter` if the shapes are equal."""
    if not isinstance(value, (torch.Tensor, Spread)) or isinstance(value, DTensor):
        return value
    if name == "step":
        # Optimizers count steps on the CPU, unless they run in a CUDA graph or a fused kernel.
        on_device = group.get("capturable") or group.get("fused")
        return whole(value).to(parameter.device if on_device else "cpu", copy=True)
    if shape_of(value) == tuple(parameter.shape):
        return local_part(value, parameter)
    return whole(value).to(parameter.device, copy=True)


class ShardedStrategy(Strategy):
    """Base class of strategies whose models contain DTensors.

    `place` calls `_note` before it replaces the models' parameters, and `_hand_over` afterwards. After these
    calls, a tensor on the "meta" device has its values on other workers.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._note([], [])

    def _note(self, models: Models, optimizers: Optimizers) -> None:
        """Record `models` and `optimizers` as the user registered them."""
        self._slots = ParameterSlots(models, optimizers)
        self._skeletons = {id(model): skeleton(model) for model in models}

    def _hand_over(self, models: Models, optimizers: Optimizers) -> None:
        """Replace the parameters in the optimizers by the parameters that this worker holds now."""
        named = parameter_names(models).items()
        self._slots.replace(optimizers, {name: item for name, item in named if not item.is_meta})

    def state(self, models: Models, optimizers: Optimizers) -> dict[str, Any]:
        self.reshard()
        return {
            "models": [held_state(self.unwrap(model)) for model in models],
            "optimizers": self._slots.state(optimizers),
        }

    def load_state(self, models: Models, optimizers: Optimizers, state: Mapping[str, Any]) -> None:
        self.reshard()
        whole = [self.unwrap(model) for model in models]
        for number, (model, saved) in enumerate(zip(whole, state["models"], strict=True)):
            held = held_state(model)
            # A state that this worker itself has returned contains only the entries that this worker holds.
            own = held if saved.keys() == held.keys() else model.state_dict()
            check_fits(f"model {number}", own, saved)
        self._slots.check(state["optimizers"])
        for model, saved in zip(whole, state["models"], strict=True):
            held = {name: placed_entry(saved[name], value) for name, value in held_state(model).items()}
            # Entries that other workers hold are missing on this worker.
            model.load_state_dict(held, strict=False)
        self._slots.load(optimizers, state["optimizers"])

    def skeleton(self, model: nn.Module) -> nn.Module:
        # A copy is returned, because the caller fills it with values.
        return copy.deepcopy(self._skeletons[id(self.unwrap(model))])


def refuse_unusable(model: nn.Module, advice: str) -> None:
    """Raise ConfigError if a parameter of `model` is already sharded or has no values."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise ConfigError(f"{name} is {advice}")
        if parameter.is_meta:
            raise ConfigError(
                f'{name} is on the "meta" device and has no values: register a model with weights. Only '
                "worker 0's weights are used, so other workers may register model.to_empty(device='cpu')"
            )


def refuse_ddps_arguments(what: str, ddp_args: Mapping[str, Any], *, wrap: bool) -> None:
    """Raise ConfigError if a strategy without DistributedDataParallel received arguments for it."""
    if ddp_args or not wrap:
        given = "ddp_args are" if ddp_args else "wrap_ddp=False is"
        raise ConfigError(f"{given} only for DistributedDataParallel, which {what} doesn't use: leave it out")


def held_state(model: nn.Module) -> dict[str, Any]:
    """Return the entries of a model's state that this worker holds."""
    state = model.state_dict()
    for name in [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]:
        del state[name]
    return state


def placed_entry(leaf: Any, like: Any) -> Any:
    """Return a saved value of a model's state, laid out like the model's own value `like`."""
    if isinstance(leaf, (torch.Tensor, Spread)) and isinstance(like, torch.Tensor):
        return local_part(leaf, like)
    return whole(leaf)


def check_fits(what: str, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless `saved` has the names and shapes of a model's state `own`."""
    missing, unknown = sorted(set(own) - set(saved)), sorted(set(saved) - set(own))
    if missing or unknown:
        lacks = f"lacks {', '.join(missing)}" if missing else ""
        holds = f"has unknown entries {', '.join(unknown)}" if unknown else ""
        raise CheckpointError(f"the state of {what} " + " and ".join(part for part in (lacks, holds) if part))
    for name, tensor in own.items():
        if shape_of(tensor) != shape_of(saved[name]):
            raise CheckpointError(
                f"{name} of {what} has shape {shape_of(tensor)}, not the saved {shape_of(saved[name])}"
            )
