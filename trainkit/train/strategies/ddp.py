"""Data-parallel training: the whole model on every worker, gradients averaged by PyTorch's own DDP.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
arXiv:2006.15704.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainkit.train.data import Feed, make_feed
from trainkit.train.process_group import WorkerGroup
from trainkit.train.strategies.single import SingleStrategy


class DDPStrategy(SingleStrategy):
    """The model on one device of each worker, the data dealt out among them.

    Args:
        device: where this worker's copy lives.
        group: the workers.
        wrap: wrap models in DDP; False leaves it to the user to bring the copies together.
        split: deal the samples out; False leaves it to the user to give each worker its own.
    """

    def __init__(self, device: torch.device, group: WorkerGroup, *, wrap: bool, split: bool) -> None:
        super().__init__(device)
        self.group = group
        self._wrap = wrap
        self._split = split
        self._wrapped: list[DistributedDataParallel] = []

    def place_model(self, model: nn.Module, ddp_args: Mapping[str, Any]) -> nn.Module:
        model = super().place_model(model, ddp_args)
        if not self._wrap:
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            # DDP refuses a model with nothing to train, such as a frozen teacher; equal weights do for it.
            self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
            return model
        device = self.devices[0]
        arguments = {"device_ids": None if device.type == "cpu" else [device], **ddp_args}
        self._wrapped.append(DistributedDataParallel(model, **arguments))
        return self._wrapped[-1]

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def split_data(self, loader: Iterable[Any], *, training: bool) -> Feed:
        return make_feed(loader, group=self.group, training=training, split=self._split)

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        # DDP averages over workers whatever their batch sizes; only an uneven last batch makes a difference.
        weighted = loss if weight == 1 or not self._wrap else loss * weight
        weighted.backward()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        for model in self._wrapped:
            # The reducer and its logger must not be what frees the process group: they are freed with the
            # interpreter locked, and the group waits for a thread of its own that may want the interpreter.
            vars(model).pop("logger", None)
            vars(model).pop("reducer", None)
        self._wrapped.clear()
        super().leave()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # In forward passes DDP broadcasts buffers (batch norm's statistics) and, with gradients, may agree on
        # the order of its buckets. Workers may have different numbers of validation batches: buffers are
        # brought together here, once, and nothing of it may happen below, with gradients or without.
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
