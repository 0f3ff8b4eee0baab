"""Runner of batches through a pipeline: torch's schedules decide when each stage processes each microbatch.

    stage 0                     stage 1                     last stage
    features ──▶ run ──values──▶ run ──values──▶ ... ──▶ run, criterion ◀── target, from stage 0
             ◀── gradients ──    ◀── gradients ──

For batches of one shape, the values that pass between two stages always have the same shape. When a batch
shape first occurs, one microbatch is sent through the stages in advance, together with a description of the
values.

Source: https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.microbatch import merge_chunks

from trainkit.errors import ConfigError
from trainkit.plugins.pipeline.stages import StageModel
from trainkit.train.distributed.tensors import is_spread, map_tensors, tensors_in
from trainkit.train.strategies.base import StepSettings

Sent = tuple[Any, torch.Tensor]
"""Pending transfer of a tensor, and the tensor, which must stay alive until the transfer is complete."""


@dataclass(frozen=True)
class Leaf:
    """Shape and type of a tensor that passes from one stage to the next."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Leaf:
        return Leaf(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device | str) -> torch.Tensor:
        """Return an uninitialized tensor of this shape and type, as a buffer for receiving."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def meta(self) -> torch.Tensor:
        """Return a tensor of this shape and type without memory; torch's stages only read its description."""
        return self.empty("meta").requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Passed:
    """Description of the values that pass between two stages for one microbatch: one tensor, or a tuple of
    tensors.
    """

    leaves: tuple[Leaf, ...]
    several: bool

    def __str__(self) -> str:
        kinds = (f"{leaf.dtype} {leaf.shape}{' with gradient' * leaf.requires_grad}" for leaf in self.leaves)
        return f"({', '.join(kinds)})"

    def value(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the received tensors as the argument of the next stage."""
        return tuple(tensors) if self.several else tensors[0]


NOTHING = Passed((), False)


@dataclass(frozen=True)
class Link:
    """Connection between one stage and the other stages of its pipeline.

    Attributes:
        group: workers of the pipeline, in the order of stages.
        device: device on which tensors are sent and received.
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
        """Start sending `tensors` to `stage`; the tensors must not change until `wait` returns."""
        return [(dist.isend(tensor, self._rank(stage), group=self.group), tensor) for tensor in tensors]

    def receive(self, tensors: Sequence[torch.Tensor], stage: int) -> list[torch.Tensor]:
        """Fill `tensors` with the values that `stage` sends."""
        works = [dist.irecv(tensor, self._rank(stage), group=self.group) for tensor in tensors]
        for work in works:
            if work is not None:  # torch returns None if this worker is not in the group.
                work.wait()
        return list(tensors)

    def check_same(self, shapes: str) -> list[Sent]:
        """Raise ConfigError if stage 0 has other batch shapes, because the stages would wait forever."""
        own = torch.tensor([zlib.crc32(shapes.encode())])
        if self.first:
            return [sent for stage in range(1, self.stages) for sent in self.send([own], stage)]
        (theirs,) = self.receive([torch.empty_like(own)], 0)
        if not torch.equal(own, theirs):
            raise ConfigError(
                f"stage {self.index} of a pipeline received a batch of {shapes}, but stage 0 received other "
                f"shapes: split data by self.world_rank // {self.stages}, so that all stages receive the same"
            )
        return []

    def send_description(self, passed: Passed, stage: int) -> None:
        # The value can be unpickled safely, because both workers run the same program.
        dist.send_object_list([passed], self._rank(stage), group=self.group, device=torch.device("cpu"))

    def receive_description(self, stage: int) -> Passed:
        received: list[Any] = [None]
        dist.recv_object_list(received, self._rank(stage), group=self.group, device=torch.device("cpu"))
        passed: Passed = received[0]
        return passed

    def _rank(self, stage: int) -> int:
        return stage if self.group is None else dist.get_global_rank(self.group, stage)


def described(output: Any, index: int) -> tuple[tuple[torch.Tensor, ...], Passed]:
    """Convert a stage's output to a tuple of tensors to send, and a description of the output."""
    several = isinstance(output, (tuple, list))
    tensors = tuple(output) if several else (output,)
    if not tensors or not all(
        isinstance(tensor, torch.Tensor) and not is_spread(tensor) for tensor in tensors
    ):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise ConfigError(
            f"stage {index} of the pipeline returned {kinds or 'nothing'}, but a stage must return a tensor "
            "or a tuple of tensors: cut the model elsewhere (split=), or change the last block of the stage"
        )
    tensors = tuple(tensor.contiguous() for tensor in tensors)
    leaves = tuple(Leaf.of(tensor) for tensor in tensors)
    return tensors, Passed(leaves, several)


def wait(sent: Sequence[Sent]) -> None:
    """Wait until all transfers are complete, so that the tensors may change."""
    for work, _ in sent:
        work.wait()


Criterion = Callable[..., torch.Tensor]

_WRAPPED = re.compile(r"failed to run (?:forward|stage backward)", re.IGNORECASE)
"""Pattern of the error message by which torch's schedules report an error in a stage's own code."""

# The loss has already been divided by the number of microbatches. After each batch, torch would divide the
# gradients too, including gradients accumulated from earlier batches. torch 2.6 never divides.
_UNSCALED: dict[str, Any] = (
    {"scale_grads": False} if "scale_grads" in inspect.signature(ScheduleGPipe).parameters else {}
)

_SHAPES_KEPT = 4
"""Number of batch shapes whose schedules are kept: full and last batches, in training and validation."""


class _Runner(nn.Module):
    """A stage as torch's schedule expects it: a module that receives tensors and returns tensors.

    The last stage computes the loss itself, so the output of the model may have any type.
    """

    def __init__(self, model: StageModel, link: Link, step: StepSettings) -> None:
        super().__init__()
        self._model = model
        self._link = link
        self._step = step
        self.incoming = self.outgoing = NOTHING
        # On the last stage, this function computes the value from which the backward pass starts, given the
        # output of a microbatch. torch calls the function for the microbatches in order.
        self.finish: Callable[[Any], torch.Tensor] = torch.mean

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run one microbatch of training; return the next stage's input, or the value from which the backward
        pass starts.
        """
        output = self.compute(tensors)
        if not self._link.last:
            tensors, passed = described(output, self._link.index)
            if passed != self.outgoing:
                raise ConfigError(
                    f"stage {self._link.index} returned {passed}, but {self.outgoing} for another microbatch "
                    "of the same shape: all results of a stage must have the same shapes and types. If "
                    "parameters were frozen or unfrozen, save a checkpoint and load it into a new trainer"
                )
            return tensors
        return self.finish(output)

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the output of this worker's stage for one microbatch."""
        if self._link.first:
            value: Any = tuple(tensors)
        else:
            if self._step.channels_last:
                tensors = [_channels_last(tensor) for tensor in tensors]
            value = self.incoming.value(tensors)
        with self._step.autocast(self._link.device):
            return self._model.stage(value)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


class MicrobatchSchedule:
    """Runner that sends batches through a pipeline. All workers of a pipeline must make the same calls, with
    batches of equal shapes.

    Args:
        model: this worker's stage.
        link: connection to the other stages.
        step: settings for precision and compilation.
        schedule: "1f1b" or "gpipe".
        microbatches: maximum number of microbatches of a batch.
    """

    def __init__(
        self, model: StageModel, link: Link, step: StepSettings, *, schedule: str, microbatches: int
    ) -> None:
        self._link = link
        self._runner = _Runner(model, link, step)
        self._step = step
        self._one_f_one_b = schedule == "1f1b"
        self._most = microbatches
        # The keys of this cache are batch shapes. All stages see the same shapes, so they drop the same least
        # recently used shape.
        self._known: OrderedDict[str, Any] = OrderedDict()

    def forward_backward(
        self,
        criterion: Criterion,
        features: Sequence[Any],
        target: Any,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        """Add the gradients of the mean loss; return this loss on the last stage, None on other stages."""
        link, runner = self._link, self._runner
        count, shapes = self._microbatches(features, target), _shapes((features, target))
        sent = link.check_same(shapes)
        target = self._pass_target(target, sent)
        losses: list[torch.Tensor] = []
        targets = _parts(target, count)

        def finish(output: Any) -> torch.Tensor:
            with self._step.autocast(link.device):
                loss = criterion(output, next(targets))
            losses.append(loss.detach())
            return (scaled(loss) / count).reshape(1)

        if not link.last:
            # A GradScaler must scale a loss before it can unscale gradients, and only the last stage has a
            # loss. The call of `scale` also marks the beginning of the gradients of this batch.
            scaled(torch.zeros((), device=link.device))
        runner.finish = finish
        schedule, runner.incoming, runner.outgoing = self._remembered(
            f"training {shapes}", lambda: self._schedule(count, features)
        )
        with _errors_of_the_user():
            # The argument is not used as a target, because the runner already has the targets; torch only
            # counts its microbatches.
            counted = {"target": torch.empty(count)} if link.last else {}
            schedule.step(*(features if link.first else ()), **counted)
        wait(sent)
        return torch.stack(losses).mean() if link.last else None

    def forward(
        self, criterion: Criterion, features: Sequence[Any], target: Any
    ) -> tuple[Any, torch.Tensor] | None:
        """Run a batch without gradients; return (output, loss) on the last stage, None on other stages."""
        link, runner = self._link, self._runner
        count, shapes = self._microbatches(features, target), _shapes((features, target))
        with torch.no_grad():
            sent = link.check_same(shapes)
            target = self._pass_target(target, sent)
            runner.incoming, runner.outgoing = self._remembered(
                f"forward {shapes}", lambda: self._described(count, features, training=False)
            )
            outputs, sending = [], list(sent)
            for part in _parts(features, count):
                outputs.append(runner.compute(part if link.first else self._receive()))
                if not link.last:
                    tensors, _ = described(outputs.pop(), link.index)
                    wait(sending)
                    sending = link.send(tensors, link.index + 1)
            wait(sending)
            if not link.last:
                return None
            output = outputs[0] if count == 1 else merge_chunks(outputs, None)
            with self._step.autocast(link.device):
                return output, criterion(output, target)

    # -- inside --------------------------------------------------------------------------------

    def _microbatches(self, features: Sequence[Any], target: Any) -> int:
        """Return the largest number of microbatches, up to `self._most`, that divides the batch evenly."""
        if not features or not all(isinstance(item, torch.Tensor) and item.dim() for item in features):
            raise ConfigError(
                "a pipeline cuts batches along their first dimension, so a model's features must be tensors "
                "with a first dimension: store other values in the block that needs them"
            )
        sizes = [len(feature) for feature in features]
        if len(set(sizes)) > 1:
            raise ConfigError(f"the first dimensions of a pipeline's features must be equal, not {sizes}")
        count = next(n for n in range(min(self._most, sizes[0]), 0, -1) if sizes[0] % n == 0)
        for leaf in tensors_in(target):
            if not leaf.dim() or len(leaf) % count:
                raise ConfigError(
                    f"a target of shape {tuple(leaf.shape)} can't be cut like a batch of {sizes[0]}: its "
                    f"first dimension must be a multiple of {count}"
                )
        return count

    def _pass_target(self, target: Any, sent: list[Sent]) -> Any:
        """Return stage 0's target on the last stage, because random transforms may differ between workers."""
        link = self._link
        if link.first and not link.last:
            sent += link.send([leaf.contiguous() for leaf in tensors_in(target)], link.stages - 1)
        elif link.last and not link.first:
            received = iter(link.receive([_like(leaf) for leaf in tensors_in(target)], 0))
            return map_tensors(lambda _: next(received), target)
        return target

    def _receive(self) -> list[torch.Tensor]:
        link = self._link
        buffers = [leaf.empty(link.device) for leaf in self._runner.incoming.leaves]
        return link.receive(buffers, link.index - 1)

    def _remembered(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
            if len(self._known) > _SHAPES_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _schedule(self, count: int, features: Sequence[torch.Tensor]) -> tuple[Any, Passed, Passed]:
        link = self._link
        incoming, outgoing = self._described(count, features, training=True)
        stage = PipelineStage(
            self._runner,
            link.index,
            link.stages,
            link.device,
            # The shapes are given explicitly, because torch would otherwise run the stage on uninitialized
            # memory to find the shapes.
            input_args=tuple(leaf.meta() for leaf in incoming.leaves),
            output_args=tuple(leaf.meta() for leaf in outgoing.leaves),
            group=link.group,
        )
        # With fewer microbatches than stages, both schedules run in the same order, and torch's 1F1B refuses
        # them.
        kind = Schedule1F1B if self._one_f_one_b and count >= link.stages else ScheduleGPipe
        return kind(stage, count, loss_fn=_first_of_both, **_UNSCALED), incoming, outgoing

    def _described(
        self, count: int, features: Sequence[torch.Tensor], *, training: bool
    ) -> tuple[Passed, Passed]:
        """Run one microbatch as a test; return descriptions of this stage's input and output.

        The test run has no side effects.
        """
        link, runner = self._link, self._runner
        if link.first:
            part = next(_parts(features, count))
            incoming = Passed(tuple(Leaf.of(tensor) for tensor in part), several=True)
        else:
            runner.incoming = incoming = link.receive_description(link.index - 1)
            part = self._receive()
            for tensor, leaf in zip(part, incoming.leaves, strict=True):
                tensor.requires_grad_(leaf.requires_grad)
        with _no_trace(runner, link.device), torch.set_grad_enabled(training):
            output = runner.compute(part)
            if link.last:
                # In training, the last stage returns a scaled loss as a tensor of one element.
                dtype = torch.get_default_dtype()
                return incoming, Passed((Leaf((1,), dtype, True),), several=False)
            tensors, outgoing = described(output, link.index)
        link.send_description(outgoing, link.index + 1)
        wait(link.send([tensor.detach() for tensor in tensors], link.index + 1))
        return incoming, outgoing


def _like(leaf: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized contiguous tensor in the shape of `leaf`; `leaf` may be channels_last here."""
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)


def _first_of_both(loss: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return loss


def _shapes(value: Any) -> str:
    return ", ".join(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in tensors_in(value))


def _parts(value: Any, count: int) -> Iterator[Any]:
    """Divide the tensors in `value` along their first dimension; yield `count` equal parts."""
    for number in range(count):

        def part(tensor: torch.Tensor, number: int = number) -> torch.Tensor:
            size = len(tensor) // count
            return tensor[number * size : (number + 1) * size]

        yield map_tensors(part, value)


@contextmanager
def _no_trace(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore buffers, such as batch norm's statistics, and random generators after the `with` block."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)


@contextmanager
def _errors_of_the_user() -> Iterator[None]:
    """Raise the original error of the user's code, instead of torch's error that wraps it."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__
        if cause is None or not _WRAPPED.search(str(error)):
            raise
        raise cause from cause.__cause__
