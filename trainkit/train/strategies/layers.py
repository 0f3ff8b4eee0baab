"""Layer placement: one model over the devices of one worker, each batch handed from device to device.

    devices 0         1
    batch ─▶ conv1 … layer2 ──move──▶ layer3 … fc ─▶ loss

A forward pre-hook on each part moves what comes from another device, and autograd moves the gradient back.
Parameters are moved in place and keep their names, so optimizers and checkpoints know nothing of it. With
several workers each has a copy over devices of its own, and DDP averages their gradients.

Source: https://docs.pytorch.org/tutorials/intermediate/model_parallel_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.train.modules import StrategyHook, lies_elsewhere
from trainkit.train.step_settings import StepSettings
from trainkit.train.strategies.base import Place, Strategy
from trainkit.train.strategies.ddp import DDPStrategy
from trainkit.train.strategies.layer_map import Part, balanced, cut_at, named
from trainkit.train.strategies.single import WholeModel
from trainkit.train.tensors import map_tensors


@dataclass(frozen=True)
class Layers(WholeModel):
    """One model over several devices of each worker: `TorchTrainer(strategy=Layers(), gpus_per_worker=2)`.

    A model of which `setup` has put anything on another than the worker's first device is left as it is.

    Attributes:
        split: names of the modules where the next device begins, in the model's order: `["layer3"]`; or the
            device's index by the beginning of names: `{"": 0, "layer3": 1, "layer4": 1, "fc": 1}`. None
            cuts between the model's children, and within its chains of modules, so that the fullest device
            holds as little as can be; it counts parameters, not activations.
        devices: of each worker; default, its GPUs. `["cpu", "cpu"]` tries a placement without GPUs.
    """

    split: Sequence[str] | Mapping[str, int] | None = None
    devices: Sequence[str | torch.device] | None = None

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        if self.devices is None:
            count = devices_per_worker
            if count < 2:
                yield (
                    "each worker has one device only: pass gpus_per_worker=2 where there are GPUs, or "
                    "Layers(devices=['cpu', 'cpu']) to try the placement without"
                )
                return
        else:
            count = len(self.devices)
            if isinstance(self.devices, str) or count < 2:
                yield "devices: give a list of two or more, such as ['cuda:0', 'cuda:1']"
                return
            yield from filter(None, map(_wrong_device, self.devices))
        if isinstance(self.split, Mapping):
            if not self.split or any(index not in range(count) for index in self.split.values()):
                yield f"split: give each name the index of one of the {count} devices, 0 to {count - 1}"
        elif self.split is not None and (isinstance(self.split, str) or len(self.split) != count - 1):
            yield (
                f"split: give a list of {count - 1} names, where the second and each later one of {count} "
                f"devices begins"
            )

    def build(self, place: Place) -> Strategy:
        devices = place.devices if self.devices is None else tuple(map(torch.device, self.devices))
        if strange := [
            str(device) for device in devices if device.type == "cuda" and device not in place.devices
        ]:
            own = ", ".join(map(str, place.devices))
            raise ConfigError(
                f"Layers(devices=...): {', '.join(strange)} is none of this worker's, which are {own}; each "
                f"worker counts its own from cuda:0"
            )
        # Alone, there is nobody to average gradients with.
        wrap = place.wrap and place.group.world_size > 1
        return LayersStrategy(replace(place, devices=devices, wrap=wrap), self.split)


class LayersStrategy(DDPStrategy):
    """See `Layers`."""

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
    """Brings a module's arguments to its device.

    Args:
        device: the module's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # A copy between GPUs is ordered by their streams; one to the CPU must have arrived when it is read.
        self._non_blocking = device.type != "cpu"

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Nearly all calls come with one tensor, from the same device.
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            return None if args[0].device == self.device else ((self._here(args[0]),), kwargs)
        return map_tensors(self._here, args), map_tensors(self._here, kwargs)

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=self._non_blocking)


def _move_own(module: nn.Module, device: torch.device) -> None:
    """Move what `module` holds itself, but not its children, as `module.to` does."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(device)
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = buffer.to(device)


def _wrong_device(device: Any) -> str | None:
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        return f"devices: {device!r} is none ({str(error).splitlines()[0]})"
    return None
