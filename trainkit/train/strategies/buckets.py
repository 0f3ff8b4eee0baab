"""The order in which DDP sums gradients: learnt in its first step, and taken along to the next processes.

DDP packs gradients into buckets: in its first step as the model lists its parameters, and from the second
on as they become ready (`rebuild_buckets` in torch/csrc/distributed/c10d/reducer.cpp). Where three workers
or more sum a bucket, the order of the terms, and so the rounding, hangs on the place in it. A run that goes
on in new processes must not begin with a first step again, if it is to be what it would have been.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel


def learnt_order(model: DistributedDataParallel) -> list[int]:
    """Indices of the parameters in the order of their buckets; empty before DDP has learnt it."""
    found = _logged_order(model)
    if not found:
        model.logger.set_runtime_stats_and_log()  # type: ignore[union-attr]  # It may have been learnt since.
        found = _logged_order(model)
    return found


def teach_order(model: DistributedDataParallel, order: Sequence[int]) -> None:
    """Let DDP learn `order`, in a step that changes nothing; all workers do it together.

    Without effect on one that has learnt an order already, or whose buckets stay as they are.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if model.static_graph or sorted(order) != list(range(len(parameters))):
        return
    reducer = model.reducer
    reducer._rebuild_buckets()  # By what it has seen of its own; it would take that and ours for one step's.
    # Backward takes up first what was computed last.
    one_each = [parameters[index].flatten()[0] for index in reversed(order)]
    # Brought together: a model may lie on several devices.
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
