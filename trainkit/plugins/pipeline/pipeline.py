"""Pipeline parallelism: each worker holds one stage of the model, and batches are divided into microbatches.

    microbatches ──▶ stage 0 ──activations──▶ stage 1 ──▶ ... ──▶ last stage, loss
                             ◀──gradients────         ◀──     ◀──

All stages work at the same time, each on a different microbatch. The gradient of a step equals the gradient
over the whole batch. Several workers may hold one stage together, so that each worker has a part of the
stage's matrices. In this case, workers with the same part number in all stages form a pipeline:

    eight workers, two stages      stage 0, parts 0 and 1   stage 1, parts 0 and 1
    data 0                                0     1                  2     3
    data 1                                4     5                  6     7

Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
arXiv:1811.06965; Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv:2006.09503
(PipeDream-Flush, or 1F1B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from trainkit.errors import ConfigError
from trainkit.plugins.pipeline.schedule import Link, MicrobatchSchedule
from trainkit.plugins.pipeline.stages import NOT_ALONE, Split, StageModel, cut
from trainkit.train.distributed.mesh import DATA, MODEL, STAGE, data_parallel_group, make_mesh
from trainkit.train.distributed.tensors import local
from trainkit.train.strategies import gradients
from trainkit.train.strategies.base import (
    Criterion,
    Models,
    Optimizers,
    Place,
    StepSettings,
    Strategy,
    StrategySpec,
)
from trainkit.train.strategies.modules import compile_in_place
from trainkit.train.strategies.sharded import (
    ShardedStrategy,
    refuse_ddps_arguments,
    refuse_unusable,
)
from trainkit.train.strategies.tensor import TensorParallel
from trainkit.train.strategies.tensor_plan import split_model

_SCHEDULES = ("1f1b", "gpipe")

_MICROBATCHES_A_STAGE = 4
"""Number of microbatches for each stage.

With four microbatches, the stages are rarely idle (GPipe, section 3).
"""


@dataclass(frozen=True, kw_only=True)
class Pipeline(StrategySpec):
    """Strategy that divides the model into stages, one on each worker. Additional workers form further
    pipelines, which divide the data among them.

    Args:
        degree: number of stages; None: one more than the number of names in `split`; without names, the
            number of workers.
        split: names of the modules that begin the second and later stages; or a function that receives the
            model and returns the list of modules that the model calls one after another. None: the model must
            be an `nn.Sequential`, or have a method `stages()` that returns such a list. The model is then
            divided into stages with about equal numbers of bytes.
        schedule: "1f1b" keeps the activations of as many microbatches as there are stages; "gpipe" keeps the
            activations of all microbatches.
        microbatches: number of microbatches into which a batch is divided. If the batch can't be divided
            evenly, a smaller number is used. None: four times the number of stages.
        tensor: tensor parallelism that splits the matrices of each stage over several workers; None: one
            worker holds each stage. If only one of the degrees of `Pipeline` and `tensor` is given, the other
            degree follows from the number of workers.

    Raises:
        ConfigError: an argument has a wrong type or value.
    """

    spreads: ClassVar[bool] = True

    degree: int | None = None
    split: Split = None
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    microbatches: int | None = None
    tensor: TensorParallel | None = None

    def __post_init__(self) -> None:
        rules = [
            ("degree", _is_count_or_none(self.degree), "a positive integer or None"),
            ("microbatches", _is_count_or_none(self.microbatches), "a positive integer or None"),
            ("schedule", self.schedule in _SCHEDULES, f"one of {_SCHEDULES}"),
            (
                "split",
                self.split is None or callable(self.split) or _is_names(self.split),
                "a list of names of blocks, a function from the model to a list of modules, or None",
            ),
            (
                "tensor",
                self.tensor is None
                or (isinstance(self.tensor, TensorParallel) and self.tensor.data == "replicate"),
                'TensorParallel(...) with data="replicate", or None',
            ),
        ]
        given = vars(self)
        wrong = [
            f"Pipeline({name}=) must be {of}, not {given[name]!r}" for name, fits, of in rules if not fits
        ]
        named = self._named
        if not wrong and named is not None and self.degree not in (None, named):
            wrong = [f"degree={self.degree} contradicts split={self.split!r}, which makes {named} stages"]
        if not wrong and self.tensor is not None and not (self.tensor.degree or self.degree or named):
            wrong = [f"{self!r} needs a degree, its own or that of its tensor parallelism"]
        if wrong:
            raise ConfigError("; ".join(wrong))

    @property
    def _named(self) -> int | None:
        return len(self.split) + 1 if isinstance(self.split, Sequence) else None

    @property
    def stages(self) -> int:
        """Number of stages of each pipeline."""
        return self.degree or self._named or 1

    @property
    def parts(self) -> int:
        """Number of workers that hold one stage together."""
        return 1 if self.tensor is None else self.tensor.degree or 1

    @property
    def model_ways(self) -> int:
        return self.stages * self.parts

    @property
    def reporter(self) -> int:
        return (self.stages - 1) * self.parts

    def for_workers(self, num_workers: int) -> Pipeline:
        """Return a copy in which the number of stages and the number of workers per stage are set."""
        stages = self.degree or self._named or max(num_workers // self.parts, 1)
        tensor = None if self.tensor is None else self.tensor.for_workers(max(num_workers // stages, 1))
        return replace(self, degree=stages, tensor=tensor)

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        if devices_per_worker > 1:
            yield (
                f"a stage uses one device, but gpus_per_worker={devices_per_worker}: leave it out, and pass "
                f"num_workers={num_workers * devices_per_worker}"
            )
        if self.tensor is not None:
            of_stage = num_workers // self.stages
            yield from self.tensor.mistakes(num_workers=of_stage, devices_per_worker=1, step=step)

    def build(self, place: Place) -> Strategy:
        return PipelineStrategy(self.for_workers(place.group.world_size), place)


class PipelineStrategy(ShardedStrategy):
    """The stage of a pipeline that this worker holds.

    Args:
        spec: the strategy, with a degree.
        place: devices of this worker, group of all workers, and settings of a step.
    """

    def __init__(self, spec: Pipeline, place: Place) -> None:
        super().__init__(place)
        self.data = data_parallel_group(place.group, spec.model_ways)
        self.averages = self.data.world_size > 1
        self._spec = spec
        ways = {DATA: self.data.world_size, STAGE: spec.stages}
        if spec.tensor is not None:
            ways[MODEL] = spec.parts
        self._mesh = make_mesh(place.group, ways, self.devices[0])
        self._copies = self._mesh.get_group(DATA)
        self._link = Link(self._mesh.get_group(STAGE), self.devices[0])
        self._sync = True
        self._model: StageModel | None = None
        self._relay: MicrobatchSchedule | None = None

    # -- placing -------------------------------------------------------------------------------

    def place(self, models: Models, optimizers: Optimizers, ddp_args: Mapping[str, Any]) -> list[nn.Module]:
        for optimizer in optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise ConfigError("LBFGS needs all gradients on one worker: use another optimizer, or DDP()")
        refuse_ddps_arguments("Pipeline", ddp_args, wrap=self._place.wrap)
        if len(models) != 1:
            raise ConfigError(
                f"Pipeline() trains one model; {len(models)} were registered: use DDP() or FSDP()"
            )
        model, degree, step = models[0], self._spec.stages, self._step
        refuse_unusable(model, "split already: register the plain model, and pass tensor=TensorParallel(...)")
        # The model is cut before any change, so that a model that can't be cut stays intact.
        parts = cut(model, self._spec.split, degree)
        self._note([model], optimizers)
        self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
        placed = StageModel(model, parts, self._link.index, self.devices[0], self._split_over_workers())
        if step.channels_last:
            placed.stage.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if step.compile:
            compile_in_place(placed.stage)
        self._hand_over([model], optimizers)
        for optimizer in optimizers:
            gradients.step_by_kind(optimizer)
        # NCCL's first operation in a group needs all workers of the group, but later operations are only
        # between two stages. Therefore, the first operation includes all workers of the pipeline.
        dist.all_reduce(torch.zeros(1, device=self.devices[0]), group=self._link.group)
        self._model = placed
        self._relay = MicrobatchSchedule(
            placed,
            self._link,
            step,
            schedule=self._spec.schedule,
            microbatches=self._spec.microbatches or _MICROBATCHES_A_STAGE * degree,
        )
        return [placed]

    def _split_over_workers(self) -> Callable[[nn.Module], None] | None:
        tensor = self._spec.tensor
        if tensor is None:
            return None
        return lambda model: split_model(model, self._mesh[MODEL], tensor.plan, self.group)

    # -- stepping ------------------------------------------------------------------------------

    def forward_backward(
        self,
        model: nn.Module,
        criterion: Criterion,
        features: Sequence[Any],
        target: Any,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor | None:
        loss = self._stages.forward_backward(criterion, features, target, scaled)
        if self._sync and self.averages:
            trained = [each for each in model.parameters() if each.requires_grad]
            gradients.average_gradients(trained, self._copies)
        return loss

    def forward(
        self, model: nn.Module, criterion: Criterion, features: Sequence[Any], target: Any
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._stages.forward(criterion, features, target)

    def backward(self, loss: torch.Tensor) -> NoReturn:
        raise ConfigError(NOT_ALONE)

    def sync_gradients(self, now: bool) -> None:
        self._sync = now

    def make_scaler(self) -> torch.amp.GradScaler:
        return gradients.SharedScaler(self.devices[0].type)

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        return gradients.clip(parameters, max_norm, self.devices[0], self._link.group)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # Each pipeline has computed its own statistics, such as the statistics of batch norm, so the
        # statistics of the first pipeline are copied to all pipelines.
        if self.data.world_size > 1 and self._model is not None:
            first = dist.get_global_rank(self._copies, 0)
            for buffer in self._model.buffers():
                dist.broadcast(local(buffer), src=first, group=self._copies)
        yield

    def leave(self) -> None:
        # The schedule uses process groups, so it must be released before the groups are destroyed.
        self._relay = None
        self.group.leave()

    # -- state ---------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.whole if isinstance(model, StageModel) else model

    @property
    def _stages(self) -> MicrobatchSchedule:
        if self._relay is None:
            raise ConfigError("this worker has left its pipeline: create a new TorchTrainer")
        return self._relay


def _is_count_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _is_names(value: Any) -> bool:
    named = isinstance(value, (list, tuple)) and bool(value)
    return named and all(isinstance(name, str) for name in value)
