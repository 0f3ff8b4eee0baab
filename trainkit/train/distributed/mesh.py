"""Grid of workers: the workers of a row hold one copy of the model together and receive the same samples.

    four workers, model_ways=2     model 0   model 1
    data 0                           0         1        rank = data_index * model_ways + model_index
    data 1                           2         3

Workers of a column average gradients, and workers of a row exchange activations. A row may itself be a grid
of pipeline stages, each computed by several workers. Neighbors in a row have successive ranks, so that the
workers that exchange most data are on one machine. Source: Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", arXiv:2104.04473; and PyTorch's DeviceMesh,
https://docs.pytorch.org/docs/stable/distributed.html#devicemesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainkit.errors import ConfigError
from trainkit.train.distributed.process_group import ProcessGroup

DATA = "data"
"""Mesh dimension whose workers have copies of a model, each with its own samples (data parallelism)."""
STAGE = "stage"
"""Mesh dimension whose workers have consecutive stages of a pipeline (pipeline parallelism)."""
MODEL = "model"
"""Mesh dimension whose workers have parts of the same layers (tensor parallelism)."""
CONTEXT = "context"
"""Mesh dimension whose workers have parts of the same sequences (context parallelism)."""
REPLICA = "replica"
"""Mesh dimension whose workers belong to different copies of a model; each copy is sharded (FSDP)."""


def degree_mistakes(degree: int, num_workers: int) -> Iterator[str]:
    """Yield an error message with a remedy if `num_workers` workers can't form groups of `degree` workers."""
    if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
        yield f"degree must be a positive integer, not {degree!r}"
    elif num_workers % degree:
        yield f"{num_workers} workers can't form groups of {degree}: make num_workers a multiple of {degree}"


class DataParallelGroup(ProcessGroup):
    """Process group in which each row of the grid counts as one worker when samples are divided.

    All workers of a row receive the same samples. Collectives of this group run over all workers, so all
    workers must call them.

    Args:
        group: all workers.
        model_ways: number of workers in a row; the number of all workers must be a multiple of it.
    """

    def __init__(self, group: ProcessGroup, model_ways: int) -> None:
        self.rank = group.rank // model_ways
        self.world_size = group.world_size // model_ways
        self._group = group
        self._model_ways = model_ways

    @property
    def members(self) -> int:
        return self._group.world_size

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        return self._group.broadcast_integers(values)

    def gather_integers(self, value: int) -> list[int]:
        """Return one `value` for each row; all workers of a row must pass the same value.

        Raises:
            ConfigError: workers of one row pass different values.
        """
        gathered, ways = self._group.gather_integers(value), self._model_ways
        for first in range(0, len(gathered), ways):
            row = gathered[first : first + ways]
            if len(set(row)) > 1:
                workers = list(range(first, first + ways))
                raise ConfigError(
                    f"workers {workers} share one model, but their loaders have different counts {row}: give "
                    "them the same batches; with add_dist_sampler=True each registers the whole data set"
                )
        return gathered[::ways]

    def gather_values(self, value: Any) -> list[Any]:
        """Return the `value` of the first worker of each row."""
        return self._group.gather_values(value)[:: self._model_ways]

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        self._group.broadcast_tensors(tensors)

    def leave(self) -> None:
        self._group.leave()


def data_parallel_group(group: ProcessGroup, model_ways: int) -> ProcessGroup:
    """Return the group that divides the samples; `group` itself if each worker holds a whole model."""
    return group if model_ways == 1 else DataParallelGroup(group, model_ways)


def make_mesh(group: ProcessGroup, ways: Mapping[str, int], device: torch.device) -> DeviceMesh:
    """Return torch's DeviceMesh of all workers.

    All workers must call this function, in the same order as other collectives.

    Args:
        group: all workers, joined.
        ways: length of each dimension of the mesh, by name; ranks are successive along the last dimension.
        device: device of this worker; only its type matters.

    Raises:
        ConfigError: `group` has only one worker.
    """
    if len(ways) == 1:
        world = dist.group.WORLD
        if world is None:
            raise ConfigError("a single worker has no mesh: use num_workers=2 or more")
        return DeviceMesh.from_group(world, device.type, mesh_dim_names=tuple(ways))
    ranks = torch.arange(group.world_size).view(*ways.values())
    # `init_device_mesh` is not used, because its groups would have torch's default timeout, and could listen
    # on the network.
    groups = [group.subgroup(ranks.movedim(dim, -1).flatten(0, -2).tolist()) for dim in range(ranks.dim())]
    return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=tuple(ways))
