"""Gradients averaged over copies of a model whose parts are DTensors, which DistributedDataParallel refuses.

As there, any backward pass brings them together, so a step of the user's own may call `loss.backward()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from trainkit.train.strategies.kinds import settle_gradients
from trainkit.train.tensors import local

BUCKET_BYTES = 25 * 2**20
"""As DDP's: large enough to use the network, small enough that the copies take little memory."""


class GradientAverage:
    """At the end of each backward pass, averages the gradients of `parameters` over `group`.

    Gradients that were averaged before and added to stay right: the mean of a mean is the same mean.

    Args:
        parameters: of a whole model, the same on all workers of the group; those frozen are left out.
        group: workers that hold the same parts of copies of the model.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup) -> None:
        self.active = True
        self._group = group
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._backward: int | None = None
        self._handles: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]

    def leave(self) -> None:
        """Average no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._parameters.clear()

    def _arrived(self, parameter: torch.Tensor) -> None:
        backward = torch._C._current_graph_task_id()
        if self.active and backward != self._backward:
            self._backward = backward
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._average)

    def _average(self) -> None:
        average_gradients(self._parameters, self._group)


def average_gradients(parameters: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Replace gradients by their mean over `group`; one that no worker has stays None.

    Args:
        parameters: that are trained; the same ones on all workers of the group, in the same order.
        group: workers that hold the same parts of copies of a model.
    """
    settle_gradients(parameters)
    works = []
    for bucket in _buckets(parameters):
        # With a flag for each: a parameter may be used on some workers only.
        flat = torch.cat([*map(_values, bucket), _flags(bucket)])
        works.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in works:
        work.wait()
        _write_back(bucket, flat, dist.get_world_size(group))


def _buckets(parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The parameters in the order in which backward passes reach them, alike in data type."""
    bucket: list[torch.Tensor] = []
    filled = 0
    for parameter in reversed(parameters):
        if bucket and (parameter.dtype != bucket[0].dtype or filled >= BUCKET_BYTES):
            yield bucket
            bucket, filled = [], 0
        bucket.append(parameter)
        filled += local(parameter).nbytes
    if bucket:
        yield bucket


def _values(parameter: torch.Tensor) -> torch.Tensor:
    held = local(parameter)
    return torch.zeros_like(held).view(-1) if parameter.grad is None else local(parameter.grad).reshape(-1)


def _flags(bucket: list[torch.Tensor]) -> torch.Tensor:
    first = local(bucket[0])
    flags = [float(parameter.grad is not None) for parameter in bucket]
    return torch.tensor(flags, dtype=first.dtype).to(first.device, non_blocking=True)


def _write_back(bucket: list[torch.Tensor], flat: torch.Tensor, ways: int) -> None:
    *values, flags = torch.split(flat, [*(local(parameter).numel() for parameter in bucket), len(bucket)])
    for index, (parameter, value) in enumerate(zip(bucket, values, strict=True)):
        if parameter.grad is None:
            # Looked at only where need be, as a GPU would be waited for.
            if not bool(flags[index]):
                continue
            parameter.grad = torch.zeros_like(parameter)
        gradient = local(parameter.grad)
        gradient.copy_(value.view_as(gradient)).div_(ways)
