"""Layer placement: a worker's devices hold different layers of a model, and batches move between them.

    devices 0         1
    batch ─▶ conv1 … layer2 ──move──▶ layer3 … fc ─▶ loss

A forward pre-hook on each part of the model moves the part's inputs to its device, and autograd moves the
gradients back. Parameters are moved in place and keep their names, so optimizers and checkpoints are
unaffected. With several workers, each worker has a copy of the model on its own devices, and DDP averages the
gradients.

Source: https://docs.pytorch.org/tutorials/intermediate/model_parallel_tutorial.html
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.train.distributed.tensors import map_tensors
from trainkit.train.strategies.base import Place, StepSettings, Strategy, StrategySpec
from trainkit.train.strategies.ddp import DDPStrategy
from trainkit.train.strategies.modules import StrategyHook, even_starts, lies_elsewhere

_CHAINS = (nn.Sequential, nn.ModuleList)
"""Containers whose members can be on different devices; other modules may use members in any order."""


@dataclass(frozen=True)
class Part:
    """Module of a model that is placed on one device as a whole.

    Attributes:
        name: name of the module in the model.
        module: the module.
        device: index of the module's device among the worker's devices.
        own: True if only the module's own tensors belong to this part, because its children are separate
            parts.
    """

    name: str
    module: nn.Module
    device: int
    own: bool = False


def cut_at(model: nn.Module, cuts: Sequence[str]) -> list[Part]:
    """Return the parts of `model` in the order of definition; at each name in `cuts`, the next device begins.

    Raises:
        ConfigError: `cuts` contains a name that no module has, or is not in the order of definition.
    """
    order = [name for name, _ in model.named_modules() if name in cuts]
    _refuse_unknown(model, set(cuts) - set(order))
    if order != list(cuts):
        raise ConfigError(f"split={list(cuts)}: the names must follow the order of the model: {order}")
    passed = 0

    def device_of(name: str, _: int) -> int:
        nonlocal passed
        passed = max(passed, cuts.index(name) + 1 if name in cuts else 0)
        return passed

    return _together(list(_parts(model, cuts, device_of)))


def named(model: nn.Module, devices: Mapping[str, int]) -> list[Part]:
    """Return the parts of `model`.

    The device of a module is the device of the longest prefix of its name in `devices`.

    Raises:
        ConfigError: a prefix is not a module's name, no prefix matches a module, or modules that share a
            parameter have different devices.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    _refuse_unknown(model, set(devices) - set(modules))
    parts = list(
        _parts(model, list(devices), lambda name, outer: devices.get(name, outer), devices.get("", -1))
    )
    if left := [part.name or "the model's own tensors" for part in parts if part.device < 0 and _holds(part)]:
        raise ConfigError(
            f"split assigns no device to {', '.join(left)}: add them, or add '' with the index for the rest"
        )
    parts = [replace(part, device=max(part.device, 0)) for part in parts]
    for part, placed in zip(parts, _together(parts), strict=True):
        if part.device != placed.device:
            raise ConfigError(
                f"split puts {part.name} on device {part.device}, but {part.name} shares a parameter with a "
                f"module on device {placed.device}: put both modules on the same device"
            )
    # A part without tensors that the user did not name is left out, so that it runs on the device of its
    # input. If such a part were placed on device 0, its data might be moved twice.
    prefixes = tuple(f"{name}." for name in devices if name)
    return [part for part in parts if _holds(part) or f"{part.name}.".startswith(prefixes)]


def balanced(model: nn.Module, devices: int) -> list[Part]:
    """Divide `model` among devices so that the fullest device has as few bytes as possible; return the parts.

    A device can only begin at a child of the model or at a member of an `nn.Sequential` or `nn.ModuleList`.

    Raises:
        ConfigError: `model` can't be cut into `devices` parts.
    """
    units = list(_units(model))
    if sum(size > 0 for _, size in units) < devices:
        raise ConfigError(
            f"{type(model).__name__} has only {sum(size > 0 for _, size in units)} separable parts for "
            f"{devices} devices: name smaller parts, Layers(split=[...]), or use fewer devices"
        )
    starts = even_starts([size for _, size in units], devices)
    return cut_at(model, [units[start][0] for start in starts])


def _parts(
    model: nn.Module, cuts: Sequence[str], device_of: Callable[[str, int], int], first: int = 0
) -> Iterator[Part]:
    """Yield the parts of `model`, as large as `cuts` allow.

    A module that occurs several times is yielded once, under its first name.

    Args:
        model: the model to divide.
        cuts: names of modules; a module that contains one of them is divided further.
        device_of: function of (name, device of the parent module) that returns the device of a module; it is
            called in the order of definition.
        first: device of the model's own tensors.
    """
    placed: set[nn.Module] = set()

    def walk(name: str, module: nn.Module, device: int) -> Iterator[Part]:
        if module in placed:
            return
        inside = f"{name}." if name else ""
        # The model as a whole is never a part, because hooks on its parts must move the activations.
        whole = bool(name) and not any(cut.startswith(inside) for cut in cuts)
        if whole and placed.isdisjoint(module.modules()):
            placed.update(module.modules())
            yield Part(name, module, device)
            return
        placed.add(module)
        yield Part(name, module, device, own=True)
        for key, child in module.named_children():
            yield from walk(inside + key, child, device_of(inside + key, device))

    yield from walk("", model, first)


def _together(parts: Sequence[Part]) -> list[Part]:
    """Return `parts`; parts that share a parameter get the device of the first part among them."""
    home: dict[int, int] = {}
    placed = []
    for part in parts:
        held = [id(parameter) for parameter in part.module.parameters(recurse=not part.own)]
        devices = {home[parameter] for parameter in held if parameter in home}
        if len(devices) > 1:
            raise ConfigError(f"{part.name} shares parameters across devices: pass split={{name: index}}")
        part = replace(part, device=devices.pop()) if devices else part
        home.update(dict.fromkeys(held, part.device))
        placed.append(part)
    return placed


def _units(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, bytes) of the modules between which the model may be cut; shared tensors count once."""
    seen: set[int] = set()

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, int]]:
        if not name or isinstance(module, _CHAINS):
            for key, child in module.named_children():
                yield from walk(f"{name}.{key}" if name else key, child)
            return
        tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if id(tensor) not in seen]
        seen.update(map(id, tensors))
        yield name, sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    yield from walk("", model)


def _holds(part: Part) -> bool:
    tensors = (*part.module.parameters(recurse=not part.own), *part.module.buffers(recurse=not part.own))
    return bool(tensors)


def _refuse_unknown(model: nn.Module, names: set[str]) -> None:
    if names:
        first = ", ".join(name for name, _ in itertools.islice(model.named_children(), 12))
        raise ConfigError(
            f"split: {type(model).__name__} has no module {sorted(names)}; its first modules are {first}"
        )


@dataclass(frozen=True)
class Layers(StrategySpec):
    """One model over several devices of each worker: `TorchTrainer(strategy=Layers(), gpus_per_worker=2)`.

    If `setup` put a tensor of the model on a device other than the worker's first device, the model stays
    where it is.

    Attributes:
        split: names of the modules where the next device begins, in the model's order, such as `["layer3"]`;
            or a device index for each prefix of names, such as `{"": 0, "layer3": 1, "layer4": 1, "fc": 1}`.
            None cuts between the model's children, and within `nn.Sequential` and `nn.ModuleList`, so that
            the fullest device holds as few bytes as possible. The bytes are counted from parameters and
            buffers, without activations.
        devices: devices of each worker; default: its GPUs. `["cpu", "cpu"]` tests a placement without GPUs.
    """

    split: Sequence[str] | Mapping[str, int] | None = None
    devices: Sequence[str | torch.device] | None = None

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        if self.devices is None:
            count = devices_per_worker
            if count < 2:
                yield (
                    "each worker has only one device: pass gpus_per_worker=2, or try the placement without "
                    "GPUs with Layers(devices=['cpu', 'cpu'])"
                )
                return
        else:
            count = len(self.devices)
            if isinstance(self.devices, str) or count < 2:
                yield "devices must be a list of at least two devices, such as ['cuda:0', 'cuda:1']"
                return
            yield from filter(None, map(_wrong_device, self.devices))
        if isinstance(self.split, Mapping):
            if not self.split or any(index not in range(count) for index in self.split.values()):
                yield f"split must map each name to the index of one of the {count} devices, 0 to {count - 1}"
        elif self.split is not None and (isinstance(self.split, str) or len(self.split) != count - 1):
            yield (
                f"split must be a list of {count - 1} names: the first module on each device but the first"
            )

    def build(self, place: Place) -> Strategy:
        devices = place.devices if self.devices is None else tuple(map(torch.device, self.devices))
        if strange := [
            str(device) for device in devices if device.type == "cuda" and device not in place.devices
        ]:
            own = ", ".join(map(str, place.devices))
            raise ConfigError(
                f"Layers(devices=...): {', '.join(strange)} is not a device of this worker. Its devices are "
                f"{own}; each worker counts its own devices from cuda:0"
            )
        # A single worker has no gradients to average, so its model is not wrapped.
        wrap = place.wrap and place.group.world_size > 1
        return LayersStrategy(replace(place, devices=devices, wrap=wrap), self.split)


class LayersStrategy(DDPStrategy):
    """Layer placement, seen from one worker."""

    def __init__(self, place: Place, split: Sequence[str] | Mapping[str, int] | None) -> None:
        super().__init__(place)
        self._split = split

    def _moved(self, model: nn.Module) -> nn.Module:
        if lies_elsewhere(model, self.devices[0]):
            return model
        for part in self._parts(model):
            device = self.devices[part.device]
            if part.own:
                _move_own(part.module, device)
            else:
                part.module.to(device)
                part.module.register_forward_pre_hook(Handover(device), with_kwargs=True)
        return model

    def _parts(self, model: nn.Module) -> list[Part]:
        if self._split is None:
            return balanced(model, len(self.devices))
        if isinstance(self._split, Mapping):
            return named(model, self._split)
        return cut_at(model, self._split)


class Handover(StrategyHook):
    """Forward pre-hook that moves a module's arguments to its device.

    Args:
        device: device of the module.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # CUDA streams ensure that a copy to a GPU is complete before later work on this GPU. A copy to the
        # CPU must be awaited.
        self._non_blocking = device.type != "cpu"

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Nearly all calls pass one tensor from the same device, so they take this fast path.
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            return None if args[0].device == self.device else ((self._here(args[0]),), kwargs)
        return map_tensors(self._here, args), map_tensors(self._here, kwargs)

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=self._non_blocking)


def _move_own(module: nn.Module, device: torch.device) -> None:
    """Move the module's own tensors, but not its children's, in place like `module.to`."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(device)
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = buffer.to(device)


def _wrong_device(device: Any) -> str | None:
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        return f"devices: {device!r} is not a device ({str(error).splitlines()[0]})"
    return None
