"""Context parallelism: each sequence is cut into parts, and each worker computes all layers for one part.

    two workers        tokens 0..n/2  ─▶ layers ─▶ attention ─▶ layers ─▶ loss of these tokens
                                                      ⇅ keys and values of the others
                       tokens n/2..n  ─▶ layers ─▶ attention ─▶ layers ─▶ loss of these tokens

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
arXiv:2310.01889; implemented by torch.distributed.tensor.experimental.context_parallel,
https://docs.pytorch.org/tutorials/unstable/context_parallel.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainkit.errors import ConfigError
from trainkit.train.distributed.mesh import CONTEXT
from trainkit.train.distributed.tensors import map_tensors, tensors_in
from trainkit.train.strategies.base import (
    Criterion,
    ModelDegree,
    Models,
    Optimizers,
    Place,
    Strategy,
)
from trainkit.train.strategies.gradients import AveragingStrategy, GradientAverage
from trainkit.train.strategies.sharded import refuse_ddps_arguments

_KERNELS = {
    "cpu": [SDPBackend.MATH],
    "cuda": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION],
}
"""Attention kernels with which torch's context parallelism can exchange keys and values, by type of
device.
"""

_UNKNOWN_OPERATION = ("sharding strategy", "mixed torch.Tensor and DTensor")
"""Texts in torch's errors about an attention that torch can't compute for parts of a sequence."""

_NOT_ALONE = (
    "with strategy=ContextParallel() each worker has only its own part of each sequence: in train_batch "
    "call self.forward_backward(features, target) instead of the model, the loss and self.backward(loss), "
    "then self.optimizer_step(); in validate_batch call self.forward(features, target)"
)


@dataclass(frozen=True, kw_only=True)
class ContextParallel(ModelDegree):
    """Context parallelism: every worker has the whole model, but only a part of each sequence.

    Args:
        degree: number of workers that share a sequence; None means all workers. If the trainer has more
            workers, several groups of `degree` workers exist, and each group gets its own samples.
        seq_dim: dimension of the sequence in all features, in the target and in the model's output.
        buffers: dictionary from names of the model's buffers to the dimension of the buffer that counts
            positions in the sequence. The dictionary must name all buffers with an entry for each position,
            such as rotary embeddings. In this dimension, the buffers must be as long as the sequences.

    Raises:
        ConfigError: an argument is wrong.
    """

    too_few = "ContextParallel needs at least 2 workers: raise num_workers, or pass strategy='auto'"
    several_devices = "each worker uses only one device: pass gpus_per_worker=1 and use more workers"

    seq_dim: int = 1
    buffers: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_dim(self.seq_dim):
            raise ConfigError(f"ContextParallel: seq_dim must be a dimension >= 0, not {self.seq_dim!r}")
        if not isinstance(self.buffers, Mapping) or not all(map(_is_dim, self.buffers.values())):
            raise ConfigError(f"ContextParallel: buffers must be {{name: dimension}}, not {self.buffers!r}")

    def build(self, place: Place) -> Strategy:
        return ContextParallelStrategy(self.for_workers(place.group.world_size), place)


class ContextParallelStrategy(AveragingStrategy):
    """Context parallelism, seen from one worker; workers in a row of the mesh share their sequences."""

    averages = True

    def __init__(self, spec: ContextParallel, place: Place) -> None:
        super().__init__(place, CONTEXT, spec.model_ways)
        self._spec = spec

    def place(self, models: Models, optimizers: Optimizers, ddp_args: Mapping[str, Any]) -> list[nn.Module]:
        refuse_ddps_arguments("ContextParallel", ddp_args, wrap=self._place.wrap)
        for model in models:
            known = dict(model.named_buffers())
            if unknown := [name for name in self._spec.buffers if name not in known]:
                raise ConfigError(
                    f"ContextParallel(buffers=): {type(model).__name__} has no buffer {', '.join(unknown)}; "
                    f"it has {', '.join(known) or 'none'}"
                )
        placed = super().place(models, optimizers, ddp_args)
        world = dist.group.WORLD
        for model in placed:
            self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
            self._buffers += list(model.buffers())
            if world is not None and any(parameter.requires_grad for parameter in model.parameters()):
                # All parts of a sequence are equally long, so the sequence's gradient is the mean of the
                # parts' gradients.
                self._averages.append(GradientAverage(model.parameters(), world))
        return placed

    def forward_backward(
        self,
        model: nn.Module,
        criterion: Criterion,
        features: Sequence[Any],
        target: Any,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        with self._in_parts(model, features, target) as (own, wanted):
            with self._step.autocast(self.devices[0]):
                loss = criterion(model(*own), wanted)
            scaled(loss).backward()  # type: ignore[no-untyped-call]
        return self._mean(loss.detach())

    def forward(
        self, model: nn.Module, criterion: Criterion, features: Sequence[Any], target: Any
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        with (
            torch.no_grad(),
            self._in_parts(model, features, target) as (own, wanted),
            self._step.autocast(self.devices[0]),
        ):
            part = model(*own)
            loss = criterion(part, wanted)
        (output,) = context_parallel_unshard(self._mesh[CONTEXT], [part.contiguous()], [self._spec.seq_dim])
        return output, self._mean(loss)

    def backward(self, loss: torch.Tensor) -> NoReturn:
        raise ConfigError(_NOT_ALONE)

    @contextmanager
    def _in_parts(
        self, model: nn.Module, features: Sequence[Any], target: Any
    ) -> Iterator[tuple[Sequence[Any], Any]]:
        """Yield this worker's part of features and target; inside the block, attention covers all parts."""
        self._check_lengths(features, target)
        # The tensors belong to the loader or the user, so they are copied, and the copies are cut in place.
        own, wanted = map_tensors(torch.clone, (tuple(features), target))
        inputs, held, places = tensors_in((own, wanted)), dict(model.named_buffers()), self._spec.buffers
        cut = [*inputs, *(held[name] for name in places)]
        dims = [*[self._spec.seq_dim] * len(inputs), *places.values()]
        kernels = _KERNELS[self.devices[0].type]
        try:
            with (
                context_parallel(
                    self._mesh[CONTEXT], buffers=cut, buffer_seq_dims=dims, no_restore_buffers=set(inputs)
                ),
                sdpa_kernel(kernels),
            ):
                yield own, wanted
        except (RuntimeError, NotImplementedError) as error:
            if not any(text in str(error) for text in _UNKNOWN_OPERATION):
                raise
            raise ConfigError(
                f"torch can't split this attention among workers ({error}): CPUs support only attention "
                "without a mask (is_causal=False, attn_mask=None), GPUs only fused kernels (attn_mask=None)"
            ) from error

    def _check_lengths(self, features: Sequence[Any], target: Any) -> None:
        dim, multiple = self._spec.seq_dim, 2 * self._spec.model_ways
        shapes = [tuple(tensor.shape) for tensor in tensors_in((tuple(features), target))]
        lengths = {shape[dim] if len(shape) > dim else 0 for shape in shapes}
        if len(lengths) != 1 or (length := lengths.pop()) == 0 or length % multiple:
            raise ConfigError(
                f"ContextParallel(seq_dim={dim}): features and target have the shapes {shapes}. "
                f"Dimension {dim} must have the same length in all of them, "
                f"a multiple of {multiple}: pad the sequences"
            )

    def _mean(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean of `loss` over the workers that share this worker's sequences."""
        total = loss.clone()
        dist.all_reduce(total, group=self._mesh.get_group(CONTEXT))
        return total / self._spec.model_ways


def _is_dim(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
