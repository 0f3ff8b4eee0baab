"""How workers of one machine meet and talk: a file to meet at, gloo on the loopback, NCCL for GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trainkit.errors import ConfigError

_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Nothing of a gang may listen on the network; who sets the variables differently is obeyed."""

_BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}
"""Counts and orders of samples are agreed upon on the CPU, also where gradients travel by NCCL."""


@dataclass(frozen=True)
class Rendezvous:
    """What a worker must know to meet the others.

    Attributes:
        file: path that all workers can open, in a folder that only the user can.
        backend: "gloo" or "nccl".
        timeout_s: how long one collective may take.
    """

    file: str
    backend: str
    timeout_s: float


class WorkerGroup:
    """The workers that train together, as one of them sees it; by itself, a group of one.

    Attributes:
        rank: this worker's number, from 0.
        world_size: how many there are.
    """

    rank = 0
    world_size = 1

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        """Worker 0's `values`, on every worker; the others' are ignored."""
        return list(values)

    def gather_integers(self, value: int) -> list[int]:
        """Every worker's `value`, by rank."""
        return [value]

    def all_true(self, flag: bool) -> bool:
        """Whether `flag` is true on every worker."""
        return flag

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite `tensors` with worker 0's."""

    def leave(self) -> None:
        """Part from the others; the group can't be used any more."""


class DistributedGroup(WorkerGroup):
    """Several processes, joined through torch.distributed."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._joined = True

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        length = torch.tensor([len(values)])
        dist.broadcast(length, src=0)
        data = torch.tensor(list(values)) if self.rank == 0 else torch.empty(int(length), dtype=torch.int64)
        dist.broadcast(data, src=0)
        return [int(value) for value in data.tolist()]

    def gather_integers(self, value: int) -> list[int]:
        gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(gathered, torch.tensor([value]))
        return [int(item) for item in gathered]

    def all_true(self, flag: bool) -> bool:
        answer = torch.tensor([int(flag)])
        dist.all_reduce(answer, op=dist.ReduceOp.MIN)
        return bool(answer)

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def leave(self) -> None:
        # Once: by the second time, this process may be in the group of another trainer.
        if self._joined and dist.is_initialized():
            dist.destroy_process_group()
        self._joined = False


def join(rendezvous: Rendezvous, *, rank: int, world_size: int) -> WorkerGroup:
    """Meet the other workers; returns once all are there.

    Raises:
        torch.distributed.DistError: they did not all come within `rendezvous.timeout_s`.
        ConfigError: this process is in a group already.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process is in a torch.distributed group already, and can be in one only: shut down the "
            "other TorchTrainer with use_local=True and several workers, or the group that the program made"
        )
    timeout = timedelta(seconds=rendezvous.timeout_s)
    store = dist.FileStore(rendezvous.file, world_size)  # type: ignore[attr-defined, unused-ignore]
    store.set_timeout(timeout)
    with _defaults(_LOOPBACK):
        dist.init_process_group(
            _BACKENDS[rendezvous.backend], store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    return DistributedGroup(rank, world_size)


@contextmanager
def _defaults(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables that are not set, for the length of the block."""
    absent = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(absent)
    try:
        yield
    finally:
        for name in absent:
            os.environ.pop(name, None)
