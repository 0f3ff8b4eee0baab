"""Averaging, clipping and scaling of gradients, for models that mix plain tensors and DTensors.

torch's optimizers, clipping and fp16 scaler work on lists of tensors, and refuse lists that mix plain tensors
and DTensors. DistributedDataParallel refuses DTensors. This module averages gradients by hooks, in any
backward pass, so a user's own step may call `loss.backward()`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from trainkit.train.distributed.mesh import DATA, data_parallel_group, make_mesh
from trainkit.train.distributed.tensors import local
from trainkit.train.strategies.base import Place, Strategy


def settle_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Change each gradient to the layout of its parameter, which also completes sums over workers.

    Returns:
        The parameters that have a gradient.
    """
    held = [parameter for parameter in parameters if parameter.grad is not None]
    for parameter in held:
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    return held


def step_by_kind(optimizer: torch.optim.Optimizer) -> None:
    """During `optimizer.step()`, split parameter groups by kind of tensor, to update many tensors at once.

    After the step the optimizer has its original groups again, because the user and schedulers refer to them.
    """
    whole: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []

    def split(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if whole:  # If the previous step ended with an error, the original groups were not restored.
            rejoin(optimizer)
        whole[:] = [(group, _by_kind(group)) for group in optimizer.param_groups]
        optimizer.param_groups = [part for _, parts in whole for part in parts]

    def rejoin(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, parts in whole:
            # Values that an optimizer has stored in its groups, such as a count of steps, are kept.
            group.update({key: value for part in parts for key, value in part.items() if key != "params"})
        optimizer.param_groups = [group for group, _ in whole]
        whole.clear()

    if any(len(_by_kind(group)) > 1 for group in optimizer.param_groups):
        optimizer.register_step_pre_hook(split)
        optimizer.register_step_post_hook(rejoin)


def _by_kind(group: dict[str, Any]) -> list[dict[str, Any]]:
    kinds: dict[Hashable, list[torch.Tensor]] = defaultdict(list)
    for parameter in group["params"]:
        kinds[parameter.device_mesh if isinstance(parameter, DTensor) else None].append(parameter)
    return [{**group, "params": parameters} for parameters in kinds.values()]


def clip(
    parameters: Sequence[torch.Tensor],
    max_norm: float,
    device: torch.device,
    stages: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Clip gradients like `torch.nn.utils.clip_grad_norm_`, by the norm over all workers' parts of a model.

    All workers that hold a part of the model must call this function. Workers of one pipeline stage must pass
    the same parameters.

    Args:
        parameters: parameters on this worker, with or without gradients.
        max_norm: largest norm of the whole model's gradient.
        device: device on which the norm is computed.
        stages: group of the workers that have the other pipeline stages of the model; None if this worker has
            all layers.

    Returns:
        The 2-norm before clipping, equal on all workers.
    """
    held = settle_gradients(parameters)
    # Tensors are grouped by the mesh dimensions that shard them, because squares of sharded tensors are
    # summed over the workers of these dimensions.
    spread: dict[tuple[str, ...], list[torch.Tensor]] = defaultdict(list)
    groups: dict[str, dist.ProcessGroup] = {}
    for parameter in held:
        spread[_spread_over(parameter, groups)].append(local(_gradient(parameter)))
    total = torch.zeros((), dtype=torch.float64, device=device)
    for dims in sorted(spread):
        part = _squared_norm(spread[dims], device)
        for dim in dims:
            dist.all_reduce(part, group=groups[dim])
        total += part
    if stages is not None:
        dist.all_reduce(total, group=stages)
    norm = total.sqrt()
    _shrink([local(_gradient(parameter)) for parameter in held], norm, max_norm)
    return norm


def _squared_norm(gradients: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the sum of all gradients' squares, on `device`, in float64, because float32 could overflow."""
    norms = [
        torch.linalg.vector_norm(gradient, dtype=_precise(gradient.dtype)).to(device)
        for gradient in gradients
    ]
    return torch.stack(norms).double().square().sum()


def _shrink(gradients: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scale `gradients`, whose total norm is `norm`, to `max_norm`, like `torch.nn.utils.clip_grad_norm_`."""
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(device=gradient.device, dtype=gradient.dtype))


def _spread_over(tensor: torch.Tensor, groups: dict[str, dist.ProcessGroup]) -> tuple[str, ...]:
    """Return the mesh dimensions over which `tensor` is split; add their process groups to `groups`."""
    if not isinstance(tensor, DTensor):
        return ()
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or ()
    dims = [index for index, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    groups.update({names[index]: mesh.get_group(index) for index in dims})
    return tuple(names[index] for index in dims)


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter without a gradient must be left out before this call")
    return parameter.grad


class SharedScaler(torch.amp.GradScaler):
    """Loss scaler for workers with different gradients.

    At an overflow on one worker, all workers skip the step.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for group in optimizer.param_groups:
            for parameter in settle_gradients(group["params"]):
                gradient = local(_gradient(parameter))
                by_dtype[gradient.dtype].append(gradient)
        for gradients in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are averaged together, as in DDP: few messages, and little memory for copies."""


class GradientAverage:
    """Hook that averages the gradients of `parameters` over `group` at the end of each backward pass.

    New gradients may be added to averaged gradients, and the sums averaged again, because an average of equal
    values does not change them.

    Args:
        parameters: parameters of a model, equal on all workers of the group; frozen parameters are ignored.
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
        """Stop averaging."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._parameters.clear()

    def _arrived(self, parameter: torch.Tensor) -> None:
        backward = torch._C._current_graph_task_id()
        if self.active and backward != self._backward:
            self._backward = backward
            engine: Any = Variable._execution_engine
            engine.queue_callback(lambda: average_gradients(self._parameters, self._group))


class AveragingStrategy(Strategy):
    """Base class of strategies whose workers form a grid: each row holds a copy of the model together.

    Args:
        place: devices, process group and settings of this worker.
        dimension: name of the mesh dimension whose workers hold one copy together.
        ways: number of workers in this dimension.
    """

    def __init__(self, place: Place, dimension: str, ways: int) -> None:
        super().__init__(place)
        self.data = data_parallel_group(place.group, ways)
        self._mesh = make_mesh(place.group, {DATA: self.data.world_size, dimension: ways}, self.devices[0])
        self._averages: list[GradientAverage] = []
        self._buffers: list[torch.Tensor] = []

    def sync_gradients(self, now: bool) -> None:
        for average in self._averages:
            average.active = now

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # Batch norm statistics differ between workers. For evaluation, all workers use the statistics of
        # worker 0, as with DDP.
        if self.averages:
            self.group.broadcast_tensors(self._buffers)
        try:
            yield
        finally:
            self.reshard()

    def leave(self) -> None:
        for average in self._averages:
            average.leave()
        self._averages.clear()
        self._buffers.clear()
        super().leave()


def average_gradients(parameters: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Replace gradients by their mean over the workers of `group`; a gradient that no worker has stays None.

    Args:
        parameters: trained parameters, in the same order on all workers of the group.
        group: workers that hold the same parts of copies of a model.
    """
    settle_gradients(parameters)
    works = []
    for bucket in _buckets(parameters):
        # A flag for each parameter is also sent, because perhaps only some workers have a gradient of the
        # parameter.
        flat = torch.cat([*map(_values, bucket), _flags(bucket)])
        works.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in works:
        work.wait()
        _write_back(bucket, flat, dist.get_world_size(group))


def _buckets(parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield lists of parameters of one data type, in the order in which the backward pass reaches them."""
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
            # A flag is read only if this worker has no gradient of the parameter, because reading a flag
            # waits for the GPU.
            if not bool(flags[index]):
                continue
            parameter.grad = torch.zeros_like(parameter)
        gradient = local(parameter.grad)
        gradient.copy_(value.view_as(gradient)).div_(ways)
