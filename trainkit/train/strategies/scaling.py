"""Loss scaling for fp16 where a worker has some of the gradients only."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class SharedScaler(torch.amp.GradScaler):
    """A scaler whose workers leave out a step together, if any of them found a gradient that is not finite.

    Args:
        device: where gradients are.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type)
        self._place = device

    def _unscale_grads_(self, *args: Any, **options: Any) -> dict[torch.device, torch.Tensor]:
        # As in torch's ShardedGradScaler. A worker may hold nothing of an optimizer, and then finds nothing.
        found = super()._unscale_grads_(*args, **options)
        total = torch.zeros((), device=self._place)
        for flag in found.values():
            total += flag.to(self._place).sum()
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return {self._place: total}
