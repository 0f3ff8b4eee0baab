"""Gradients averaged over the workers that hold copies of the same parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from trainkit.errors import ConfigError

_BUCKET_BYTES = 25 * 2**20
"""As DDP's: large enough for the network, small beside the gradients themselves."""


def average_gradients(parameters: Sequence[torch.Tensor], group: dist.ProcessGroup, ways: int) -> None:
    """Replace gradients by their mean over `group`; one that no worker has stays None.

    Args:
        parameters: the same ones on all workers, in the same order.
        group: of the workers.
        ways: how many there are.

    Raises:
        ConfigError: a gradient is sparse.
    """
    for bucket in _buckets([parameter for parameter in parameters if parameter.requires_grad]):
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in bucket):
            raise ConfigError("sparse gradients can't be averaged here: use nn.Embedding(sparse=False)")
        pieces = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in bucket
        ]
        # After the gradients, for each whether there is one: on another worker another branch may have run.
        there = pieces[0].new_tensor([parameter.grad is not None for parameter in bucket])
        flat = torch.cat([piece.reshape(-1) for piece in pieces] + [there])
        dist.all_reduce(flat, group=group)
        flat /= ways
        start, counts = 0, flat[-len(bucket) :]
        for number, parameter in enumerate(bucket):
            mean = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
            if parameter.grad is not None:
                parameter.grad.copy_(mean)
            elif counts[number] > 0:
                parameter.grad = mean.clone()


def _buckets(parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Runs of one data type that are not much larger than a bucket."""
    bucket: list[torch.Tensor] = []
    size = 0
    for parameter in sorted(parameters, key=lambda parameter: str(parameter.dtype)):
        if bucket and (parameter.dtype != bucket[0].dtype or size >= _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket
