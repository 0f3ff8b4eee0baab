"""What goes between the stages of a pipeline, and how it gets there: by torch's send and receive."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from trainkit.errors import ConfigError

Sent = tuple[Any, torch.Tensor]
"""What to wait for, and the tensor that must stay until then."""


@dataclass(frozen=True)
class Leaf:
    """One tensor between two stages."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Leaf:
        return Leaf(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device | str) -> torch.Tensor:
        """A tensor to receive it in."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def meta(self) -> torch.Tensor:
        """What torch's stages are told of it."""
        return self.empty("meta").requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Passed:
    """What goes from one stage to the next for each microbatch: one tensor, or a tuple of several."""

    leaves: tuple[Leaf, ...]
    several: bool

    def __str__(self) -> str:
        kinds = (f"{leaf.dtype} {leaf.shape}{' with gradient' * leaf.requires_grad}" for leaf in self.leaves)
        return f"({', '.join(kinds)})"

    def value(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the next stage is called with."""
        return tuple(tensors) if self.several else tensors[0]


NOTHING = Passed((), False)


@dataclass(frozen=True)
class Link:
    """The stages of one pipeline, as one of them sees it.

    Attributes:
        group: of the pipeline's workers, stage by stage.
        device: where the values are.
    """

    group: dist.ProcessGroup | None
    device: torch.device
    index: int = field(init=False)
    stages: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", dist.get_rank(self.group))
        object.__setattr__(self, "stages", dist.get_world_size(self.group))

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.stages - 1

    def send(self, tensors: Sequence[torch.Tensor], stage: int) -> list[Sent]:
        """Start to send to `stage`; the tensors must not change until `wait`."""
        return [(dist.isend(tensor, self._rank(stage), group=self.group), tensor) for tensor in tensors]

    def receive(self, tensors: Sequence[torch.Tensor], stage: int) -> list[torch.Tensor]:
        """Fill `tensors` with what `stage` sends."""
        works = [dist.irecv(tensor, self._rank(stage), group=self.group) for tensor in tensors]
        for work in works:
            if work is not None:  # As it would be if this worker were not of the group.
                work.wait()
        return list(tensors)

    def check_same(self, shapes: str) -> list[Sent]:
        """Raise ConfigError unless stage 0 calls it with the same: stages would wait for what never comes."""
        own = torch.tensor([zlib.crc32(shapes.encode())])
        if self.first:
            return [sent for stage in range(1, self.stages) for sent in self.send([own], stage)]
        (theirs,) = self.receive([torch.empty_like(own)], 0)
        if not torch.equal(own, theirs):
            raise ConfigError(
                f"stage {self.index} of a pipeline was given a batch of {shapes}, but stage 0 one of other "
                f"shapes: the workers of one pipeline must be given the same batches, so split data by "
                f"self.world_rank // {self.stages}, not by world_rank"
            )
        return []

    def send_description(self, passed: Passed, stage: int) -> None:
        # Between the workers of one trainer, which run one program: what is unpickled is its own.
        dist.send_object_list([passed], self._rank(stage), group=self.group, device=torch.device("cpu"))

    def receive_description(self, stage: int) -> Passed:
        received: list[Any] = [None]
        dist.recv_object_list(received, self._rank(stage), group=self.group, device=torch.device("cpu"))
        passed: Passed = received[0]
        return passed

    def _rank(self, stage: int) -> int:
        return stage if self.group is None else dist.get_global_rank(self.group, stage)


def described(output: Any, index: int) -> tuple[tuple[torch.Tensor, ...], Passed]:
    """A stage's output as tensors that can be sent, and what they are."""
    several = isinstance(output, (tuple, list))
    tensors = tuple(output) if several else (output,)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise ConfigError(
            f"stage {index} of the pipeline returned {kinds or 'nothing'}; stages pass on a tensor or a "
            f"tuple of tensors: cut the model elsewhere (split=), or change what the block there returns"
        )
    tensors = tuple(tensor.contiguous() for tensor in tensors)
    leaves = tuple(Leaf.of(tensor) for tensor in tensors)
    return tensors, Passed(leaves, several)


def wait(sent: Sequence[Sent]) -> None:
    """Return once all of it is on its way, so that the tensors may change."""
    for work, _ in sent:
        work.wait()
