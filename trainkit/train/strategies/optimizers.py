"""Optimizers whose parameters are replaced: what each index of their states means, before and after.

A user makes optimizers from a model's parameters. Sharding puts other tensors in their place, and a
pipeline's stage keeps only some. A state's index goes on to count the parameters that the user gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train.spread import Spread, local_part, shape_of, whole

Name = tuple[int, str]
"""Of a parameter: the model's number, and its name in it."""


def parameter_names(models: Sequence[nn.Module]) -> dict[Name, nn.Parameter]:
    """All parameters by name; a shared one under each of its names."""
    return {
        (number, name): parameter
        for number, model in enumerate(models)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


class ParameterSlots:
    """For each optimizer, the parameters that it was given, by the index that its state counts them with.

    Args:
        models: as registered, before any of their parameters is replaced.
        optimizers: made from them.

    Raises:
        ConfigError: an optimizer has made steps already.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        names = {id(parameter): name for name, parameter in reversed(parameter_names(models).items())}
        for optimizer in optimizers:
            if optimizer.state:
                raise ConfigError(
                    f"{type(optimizer).__name__} has made steps before it was registered, and this strategy "
                    f"replaces its parameters: register a new one, and load() a checkpoint into the trainer"
                )
        # Of each optimizer, of each group: what a slot holds, and its name if it is a model's.
        self._groups: list[list[list[tuple[Name | None, Any]]]] = [
            [[(names.get(id(item)), item) for item in group["params"]] for group in optimizer.param_groups]
            for optimizer in optimizers
        ]

    def replace(self, optimizers: Sequence[torch.optim.Optimizer], held: Mapping[Name, torch.Tensor]) -> None:
        """Give each optimizer the parameters that took the place of its own; those not in `held` are gone."""
        for optimizer, groups in zip(optimizers, self._groups, strict=True):
            for group, slots in zip(optimizer.param_groups, groups, strict=True):
                slots[:] = [(name, item if name is None else held.get(name)) for name, item in slots]
                group["params"] = [item for _, item in slots if item is not None]

    def state(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
        """In torch's own layout, of what is held here."""
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
        """Raise CheckpointError unless `saved` is of optimizers with the same groups."""
        for number, state in enumerate(saved):
            own = [len(indices) for indices in self._indices(number)]
            theirs = [len(group["params"]) for group in state["param_groups"]]
            if own != theirs:
                raise CheckpointError(
                    f"optimizer {number} has groups of {own} parameters, but those saved have {theirs}"
                )

    def load(self, optimizers: Sequence[torch.optim.Optimizer], saved: Sequence[Mapping[str, Any]]) -> None:
        """Take over a whole state, of which each worker keeps its part."""
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
                        name: _entry(name, value, item, group) for name, value in entries
                    }

    def _slots(self, number: int) -> Iterable[tuple[int, Any]]:
        return enumerate(item for slots in self._groups[number] for _, item in slots)

    def _indices(self, number: int) -> list[list[int]]:
        indices, start = [], 0
        for slots in self._groups[number]:
            indices.append(list(range(start, start + len(slots))))
            start += len(slots)
        return indices


def _entry(name: str, value: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """One value of an optimizer's state, laid out as `parameter` if it has its shape; where torch puts it."""
    if not isinstance(value, (torch.Tensor, Spread)):
        return value
    if name == "step":
        # Counted on the CPU, but for optimizers that run in a graph or a kernel.
        on_device = group.get("capturable") or group.get("fused")
        return whole(value).to(parameter.device if on_device else "cpu", copy=True)
    if shape_of(value) == tuple(parameter.shape):
        return local_part(value, parameter)
    return whole(value).to(parameter.device, copy=True)
