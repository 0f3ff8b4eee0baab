"""GPUs of the inline engine, for which no request waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainkit.resources import QUANTUM, Bundle
from trainkit.runtime.placement import GPU


@dataclass(frozen=True)
class GpuShare:
    """GPUs given to a task or an actor.

    Attributes:
        gpus: GPUs to which the given GPUs belong.
        indices: indices of the given GPUs.
        part: given part of each GPU, in ten-thousandths.
    """

    gpus: Gpus
    indices: Sequence[int]
    part: int

    def give_back(self) -> None:
        """Return the GPUs; call this method only once."""
        self.gpus.count(self.indices, -self.part)


class Gpus:
    """GPUs of the machine.

    A request can't wait for a GPU, as the call that uses the GPU may be further up the same stack. So
    requests share GPUs if none is free.

    Args:
        totals: declared resources of the machine.
    """

    def __init__(self, totals: Bundle) -> None:
        self._used = [0] * int(totals.get(GPU, 0))
        self.all = GpuShare(self, range(len(self._used)), 0)

    def take(self, request: Bundle) -> GpuShare:
        """Return the least used GPUs, or for a part of a GPU the most used GPU with enough room.

        Args:
            request: amounts by resource name, of which only the GPUs are used.
        """
        amount = request.get(GPU, 0)
        part = min(QUANTUM, round(amount * QUANTUM))
        by_use = sorted(self.all.indices, key=self._used.__getitem__)
        roomy = [index for index in by_use if self._used[index] + part <= QUANTUM]
        if 0 < part < QUANTUM and roomy:
            indices = [max(roomy, key=self._used.__getitem__)]
        else:
            indices = sorted(by_use[: math.ceil(amount)])
        self.count(indices, part)
        return GpuShare(self, indices, part)

    def count(self, indices: Sequence[int], part: int) -> None:
        """Add `part` to the used part of each of these GPUs."""
        for index in indices:
            self._used[index] += part
