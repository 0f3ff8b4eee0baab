"""Data-parallel training: each worker has the whole model, and PyTorch's own DDP averages gradients.

DDP packs gradients into buckets. In the first step, the buckets follow the order of the model's parameters.
From the second step on, the buckets follow the order in which gradients become ready (`rebuild_buckets` in
torch/csrc/distributed/c10d/reducer.cpp). If three or more workers sum a bucket, the order of the terms, and
so the rounding of a gradient, depends on the gradient's position in the bucket. So the order is saved with
the run's state, and a run that resumes in new processes gives bit-identical numbers.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
arXiv:2006.15704.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainkit.train.strategies.base import Models, Optimizers, Place, Strategy, StrategySpec
from trainkit.train.strategies.single import SingleStrategy


def learnt_order(model: DistributedDataParallel) -> list[int]:
    """Return the parameters' indices in the order of DDP's buckets; empty before DDP has learned it."""
    found = _logged_order(model)
    if not found:
        model.logger.set_runtime_stats_and_log()  # type: ignore[union-attr]  # logs the latest order
        found = _logged_order(model)
    return found


def teach_order(model: DistributedDataParallel, order: Sequence[int]) -> None:
    """Make DDP learn `order` by a backward pass that changes nothing; all workers must call this together.

    The call has no effect if DDP has already learned an order, or if its buckets never change.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if model.static_graph or sorted(order) != list(range(len(parameters))):
        return
    reducer = model.reducer
    reducer._rebuild_buckets()  # This call ends the learning of an order that DDP may have begun.
    # The order is reversed, because the backward pass reaches the values in reverse order of their use.
    one_each = [parameters[index].flatten()[0] for index in reversed(order)]
    # The values are moved to one device, because a model may use several devices.
    nothing = torch.stack([value.to(one_each[0].device, torch.float32) * 0 for value in one_each]).sum()
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    nothing.backward()  # type: ignore[no-untyped-call]
    reducer._rebuild_buckets()
    for parameter in parameters:
        parameter.grad = None


def _logged_order(model: DistributedDataParallel) -> list[int]:
    logged = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return [
        int(index) for index in re.findall(r"\d+", str(logged.get("rebuilt_per_bucket_param_indices", "")))
    ]


@dataclass(frozen=True, kw_only=True)
class DDP(StrategySpec):
    """Data-parallel training: each worker has the whole model; this is the default with several workers."""

    def build(self, place: Place) -> Strategy:
        # A single worker has no gradients to average, so it needs no DDP.
        return DDPStrategy(place) if place.group.world_size > 1 else SingleStrategy(place)


class DDPStrategy(Strategy):
    """Data-parallel training, seen from one worker; without `Place.wrap` the user averages gradients."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.averages = place.wrap
        self._wrapped: list[DistributedDataParallel] = []

    def place(self, models: Models, optimizers: Optimizers, ddp_args: Mapping[str, Any]) -> list[nn.Module]:
        return [self._wrap(model, ddp_args) for model in super().place(models, optimizers, ddp_args)]

    def _wrap(self, model: nn.Module, ddp_args: Mapping[str, Any]) -> nn.Module:
        if not self._place.wrap:
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            # DDP refuses a model without trainable parameters, such as a frozen teacher. A model without
            # trainable parameters has no gradients, so it only needs equal weights on all workers.
            self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
            return model
        device = self.devices[0]
        # A model over several devices moves its activations itself, so DDP must not get device_ids for such a
        # model.
        whole = device.type == "cpu" or len(self.devices) > 1
        arguments = {"device_ids": None if whole else [device], **ddp_args}
        self._wrapped.append(DistributedDataParallel(model, **arguments))
        return self._wrapped[-1]

    def sync_gradients(self, now: bool) -> None:
        for model in self._wrapped:
            model.require_backward_grad_sync = now

    def order(self) -> list[Any]:
        return [learnt_order(model) for model in self._wrapped] if self.group.world_size > 2 else []

    def take_order(self, order: Sequence[Any]) -> None:
        for model, learnt in zip(self._wrapped, order, strict=False):
            teach_order(model, learnt)

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def leave(self) -> None:
        for model in self._wrapped:
            # The reducer and its logger must not free the process group when they themselves are freed.
            # Freeing the group at that time would block: it waits for the group's thread, which may need the
            # interpreter, while the interpreter is locked.
            vars(model).pop("logger", None)
            vars(model).pop("reducer", None)
        self._wrapped.clear()
        super().leave()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # In forward passes DDP broadcasts buffers (batch norm's statistics) and, with gradients, may agree on
        # the order of its buckets. Workers may have different numbers of validation batches. So the buffers
        # are broadcast once, at the beginning of this block, and forward passes in the block do not
        # communicate.
        quiet = dict.fromkeys(
            ("broadcast_buffers", "require_backward_grad_sync", "require_forward_param_sync"), False
        )
        before = [{name: getattr(model, name) for name in quiet} for model in self._wrapped]
        for model in self._wrapped:
            if model.broadcast_buffers:
                self.group.broadcast_tensors(list(model.module.buffers()))
            vars(model).update(quiet)
        try:
            yield
        finally:
            for model, settings in zip(self._wrapped, before, strict=False):
                vars(model).update(settings)
